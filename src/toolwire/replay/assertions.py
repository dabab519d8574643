"""`toolwire replay --assert`: runs test cases, and prints what differs from what their clients must get.

ok       cases/weather.jsonl
differs  cases/files.jsonl
         call 2: arguments differ at key `path`: expected "a.txt", got "b.txt"
2 cases: 1 ok, 1 differs
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Literal, TextIO, TypeAlias
from xml.etree import ElementTree

import msgspec

from toolwire.core.display import escape_invisible
from toolwire.core.errors import ToolwireError
from toolwire.replay.command import ReplayOptions, find_files, read_whole
from toolwire.turns.cases import run_case

Verdict: TypeAlias = Literal["ok", "differs", "error"]


class CaseResult(msgspec.Struct, frozen=True):
    """The result of one case."""

    path: Path
    verdict: Verdict
    lines: Sequence[str] = ()
    """The differences, or why the case cannot be run."""


def run_cases(options: ReplayOptions, out: TextIO, report: BinaryIO | None) -> bool:
    """Run the cases that the options select; returns whether all of them are ok. Raises `ValueError`, or `OSError`.

    Recordings that do not say what is expected are passed over. `report` is written as JUnit XML.
    """
    if options.direction or options.events or options.call or options.json or options.full or options.written_as:
        raise ValueError("--assert goes with --request, --dialect and --junit only")
    results: list[CaseResult] = []
    for path in find_files(options):
        try:
            recording = read_whole(path)
            if recording.case is None or options.dialect not in ("", recording.head.dialect):
                continue
            found = run_case(recording)
            result = CaseResult(path, "differs" if found else "ok", [escape_invisible(line) for line in found])
        except (ValueError, ToolwireError) as error:
            result = CaseResult(path, "error", [escape_invisible(str(error))])
        results.append(result)
        print(f"{result.verdict:<8} {escape_invisible(str(path))}", *result.lines, sep="\n         ", file=out)
    if not results:
        raise ValueError("there is no test case; the console saves turns as test cases")
    counts = Counter(result.verdict for result in results)
    cases = f"{len(results)} case{'s' if len(results) != 1 else ''}"
    print(f"{cases}: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}", file=out)
    if report is not None:
        _write_report(results, counts, report)
    return counts["ok"] == len(results)


def _write_report(results: Sequence[CaseResult], counts: Counter[str], file: BinaryIO) -> None:
    numbers = {"tests": len(results), "failures": counts["differs"], "errors": counts["error"]}
    attributes = {name: str(number) for name, number in numbers.items()}
    root = ElementTree.Element("testsuites", attributes)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "toolwire replay", **attributes})
    for result in results:
        names = {"classname": escape_invisible(str(result.path.parent)), "name": escape_invisible(result.path.stem)}
        case = ElementTree.SubElement(suite, "testcase", names)
        if result.verdict != "ok":
            kind = "failure" if result.verdict == "differs" else "error"
            ElementTree.SubElement(case, kind, {"message": result.lines[0]}).text = "\n".join(result.lines)
    ElementTree.ElementTree(root).write(file, "utf-8", xml_declaration=True)
