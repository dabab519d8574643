"""Searches the contents of files: with ripgrep if it is installed, else with a Python process that writes its format.

With Python, patterns are those of `re`, and `.` also matches invalid UTF-8. It runs in a process, not a thread, because
a bad pattern can occupy `re` forever, and a process can be killed.
"""

import base64
import codecs
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from toolwire.agent.tools.file_access import MAX_FILE_BYTES
from toolwire.agent.tools.walk import GIT, walk

Mode: TypeAlias = Literal["files", "lines", "count"]


class GrepArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of Grep."""

    pattern: Annotated[str, Meta(description="A regular expression, matched within one line.")]
    path: Annotated[
        str, Meta(description="The file or directory to search, absolute or from the working directory.")
    ] = "."
    glob: Annotated[str, Meta(description="Only files like this, such as *.py, src/**/*.ts or !*.min.js.")] = ""
    mode: Annotated[
        Mode,
        Meta(description="lines: the matching lines; files: the names of files; count: the number of matching lines."),
    ] = "lines"
    ignore_case: bool = False
    context: Annotated[int, Meta(ge=0, le=20, description="Lines to show around each match.")] = 0
    limit: Annotated[int, Meta(ge=1, le=1000, description="The maximum number of lines or files.")] = 100

    @property
    def around(self) -> int:
        """Lines to return around each match."""
        return self.context if self.mode == "lines" else 0


class RipgrepText(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text as ripgrep writes it: `bytes` is base64, for text that is not UTF-8."""

    text: str = ""
    bytes: str = ""

    def __str__(self) -> str:
        return base64.b64decode(self.bytes).decode(errors="surrogateescape") if self.bytes else self.text


class RipgrepData(msgspec.Struct, frozen=True, omit_defaults=True):
    """The data of a line of `rg --json`."""

    path: RipgrepText = RipgrepText()
    lines: RipgrepText = RipgrepText()
    line_number: int = 0
    binary_offset: int | None = None


class RipgrepEvent(msgspec.Struct, frozen=True):
    """A line of `rg --json`: a file begins, has lines, and ends."""

    type: str
    data: RipgrepData = RipgrepData()


def command(arguments: GrepArguments, root: Path) -> list[str]:
    """The command that searches, and writes a `RipgrepEvent` per line or an error."""
    program = shutil.which("rg")
    if program is None:
        source = str(Path(__file__).parents[3])
        encoded = msgspec.json.encode(arguments).decode()
        return [sys.executable, "-P", "-W", "ignore", "-c", _CHILD, source, encoded, str(root)]
    words = [program, "--no-config", "--json", "--sort=path", "--no-messages", "--crlf", "--no-mmap", "--hidden"]
    words += ["--no-ignore-dot", "--no-ignore-exclude", "--no-ignore-global", f"--glob=!{GIT}"]
    words += [f"--max-filesize={MAX_FILE_BYTES}", f"--context={arguments.around}"]
    if arguments.ignore_case:
        words.append("--ignore-case")
    if arguments.mode == "files":
        words.append("--max-count=1")
    name = arguments.glob.rpartition("/")[2]
    if name and "**" not in name and not re.search(r"[!:{}\\]", arguments.glob):
        # A type only narrows the search; `--glob` would include ignored files. The results are filtered exactly.
        words += [f"--type-add=wanted:{name}", "--type=wanted"]
    return [*words, f"--regexp={arguments.pattern}", "--", str(root)]


_CHILD = """
import sys, types
source = sys.argv[1]
sys.path.append(source)
agent = sys.modules["toolwire.agent"] = types.ModuleType("toolwire.agent")  # without the engine
agent.__path__ = [source + "/toolwire/agent"]
from toolwire.agent.tools.ripgrep import main
main(*sys.argv[2:])
"""


def main(encoded: str, root: str) -> None:
    """Search as ripgrep does, in the child."""
    arguments = msgspec.json.decode(encoded, type=GrepArguments)
    try:
        pattern = re.compile(arguments.pattern, re.IGNORECASE if arguments.ignore_case else 0)
    except re.error as error:
        sys.exit(f"error: {error}")
    top = Path(root)
    files = [top] if top.is_file() else (top.joinpath(*parts) for parts in walk(top))
    for path in files:
        for event in _search_file(path, pattern, arguments):
            sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
        sys.stdout.buffer.flush()


def _search_file(path: Path, pattern: re.Pattern[str], arguments: GrepArguments) -> Iterator[RipgrepEvent]:
    data = b""
    with suppress(OSError):
        if path.lstat().st_size <= MAX_FILE_BYTES:
            data = path.read_bytes()
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = data.decode("utf-16", errors="replace")
    else:
        text = "" if b"\0" in data else data.decode("utf-8-sig", errors="replace")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    matches = [number for number, line in enumerate(lines) if pattern.search(line.removesuffix("\r"))]
    if not matches:
        return
    if arguments.mode == "files":
        del matches[1:]
    around = arguments.around
    numbers = sorted({each for at in matches for each in range(max(0, at - around), min(len(lines), at + around + 1))})
    name = RipgrepData(path=RipgrepText(bytes=base64.b64encode(os.fsencode(path)).decode()))
    yield RipgrepEvent("begin", name)
    is_match = set(matches)
    for number in numbers:
        data = RipgrepData(lines=RipgrepText(lines[number]), line_number=number + 1)
        yield RipgrepEvent("match" if number in is_match else "context", data)
    yield RipgrepEvent("end", name)
