"""Prints the report in a terminal or a pipe: the verdict, a table by area, then every broken rule with one proof.

In a pipe lines are not wrapped, so that they can be searched, and faults are marked with `>>>` and `<<<`.
"""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from toolwire.check.exchange import Exchange
from toolwire.check.marks import Piece, mark, shorten
from toolwire.check.report.evidence import mask_url
from toolwire.check.rules import RULES
from toolwire.check.turns.rule import Finding
from toolwire.check.verdicts import Report, RuleCounts, Verdict, count_verdicts, find_consequences
from toolwire.core.display import clean

MAX_DETAILS = 3
"""Distinct findings shown for one rule; the others are counted."""
MAX_FRAMES = 2
"""Frames shown as the proof of a finding."""
MAX_LINES = 3
"""Lines shown of one frame, or of an answer that has no frames."""
MAX_CHARS = 160
"""Characters shown of a text from the server."""
MAX_BYTES = 400
"""Bytes shown of a frame or a request in which nothing is marked."""
UNBOUNDED = 1_000_000
"""The width of a pipe."""


def show(report: Report, console: Console) -> None:
    """Print a report."""
    if not console.is_terminal:
        console.width = UNBOUNDED
    _Printer(report, console).show()


class _Printer:
    def __init__(self, report: Report, console: Console) -> None:
        self._report = report
        self._console = console
        self._has_styles = console.is_terminal and not console.is_dumb_terminal
        self._exchanges = {each.number: each for each in report.exchanges}

    def show(self) -> None:
        report = self._report
        self._show_head()
        self._show_areas()
        causes: dict[str, list[Verdict]] = {}
        for each in report.broken:
            if not each.follows:
                causes.setdefault(each.rule, []).append(each)
        for verdicts in causes.values():
            self._show_broken(verdicts)
        self._show_not_observed()
        for api, reason in report.absent.items():
            self._line(f"{api} was not checked: {to_line(reason)}", 0, "dim")
        for api, reason in report.ended.items():
            self._line(f"{api} was not checked to the end: {to_line(reason)}", 0, "yellow")
        if report.spent:
            self._line("The budget of requests ended before the probes did: raise --budget.", 0, "yellow")

    def _line(self, text: str | Text, columns: int = 0, style: str = "") -> None:
        line = text if isinstance(text, Text) else Text(clean(text), style)
        self._console.print(Padding(line, (0, 0, 0, columns), expand=False))

    def _show_head(self) -> None:
        report = self._report
        counts = count_verdicts(report.verdicts)
        style = "bold red" if counts.must_broken else "bold green" if counts.passed else "bold yellow"
        self._line(report.headline, 0, style)
        model = f" with the model {to_line(report.model)}" if report.model else ""
        requests = len(report.exchanges)
        many = "" if requests == 1 else "s"
        about = f"{requests} request{many} in {report.seconds:.1f} s" if report.seconds else f"{requests} turn{many}"
        following = f"{counts.following} of the broken ones follow from others, " if counts.following else ""
        rules = f"{following}{counts.passed} passed, {counts.not_observed} not observed, counted for each API"
        self._line(f"{to_line(mask_url(report.target))}{model}: {about}; {rules}.")
        self._console.print()

    def _show_areas(self) -> None:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("area")
        for api in self._report.apis:
            table.add_column(api, justify="left")
        for area, counts in self._report.areas.items():
            table.add_row(area, *map(_make_cell, counts))
        with self._console.capture() as captured:
            self._console.print(table)
        for line in captured.get().splitlines():
            print(line.rstrip(), file=self._console.file)

    def _show_broken(self, verdicts: Sequence[Verdict]) -> None:
        """Print a broken rule that no other explains, for all of its APIs, with its consequences."""
        rule = RULES[verdicts[0].rule]
        apis = ", ".join(each.api for each in verdicts)
        self._console.print()
        head = Text(f"{rule.level} {rule.id}", "bold red" if rule.level == "MUST" else "yellow")
        self._line(head.append(f" on {apis}: {rule.requirement}", "default"))
        self._line(f"Harm: {rule.harm} ({rule.source})", 2, "dim")
        found = [each for verdict in verdicts for each in verdict.broken]
        counts = Counter(finding.detail for finding, _ in found)
        for detail in [*counts][:MAX_DETAILS]:
            times = f" ({counts[detail]} times)" if counts[detail] > 1 else ""
            self._line(f"Seen: {to_line(detail)}{times}", 2)
        more = sum([*counts.values()][MAX_DETAILS:])
        if more:
            self._line(f"and {more} more like it", 2, "dim")
        self._show_proof(found[0][0], self._exchanges[found[0][1]])
        for each in (each for verdict in verdicts for each in find_consequences(verdict, self._report.verdicts)):
            rule = RULES[each.rule]
            self._line(f"It follows: {rule.level} {rule.id} on {each.api}: {rule.requirement}", 2)
            self._line(to_line(each.broken[0][0].detail), 4, "dim")

    def _show_proof(self, finding: Finding, exchange: Exchange) -> None:
        """Print the request and the frames that show a finding, preferably those with marked parts."""
        if exchange.sent.url:
            body = mark(_plain(exchange.sent.body), finding) if exchange.sent.body else []
            head = Piece(f"> {exchange.sent.method} {to_line(mask_url(exchange.sent.url))} ")
            self._line(self._style([head, *_cut(body)]), 4)
        frames = [each.raw for each in exchange.find_frames(finding)] or [exchange.body[:65_536]]
        read = [[mark(_plain(line), finding) for line in frame.splitlines() if line] for frame in frames]
        best = [frame for frame in read if any(piece.is_marked for line in frame for piece in line)]
        for line in (line for frame in (best or read)[:MAX_FRAMES] for line in frame[:MAX_LINES]):
            self._line(self._style([Piece("< "), *_cut(line)]), 4)

    def _style(self, pieces: Sequence[Piece]) -> Text:
        text = Text(style="dim")
        for piece in pieces:
            words = clean(piece.text)
            if not piece.is_marked:
                text.append(words)
            elif self._has_styles:
                text.append(words, "not dim bold reverse red")
            else:
                text.append(f">>>{words}<<<")
        return text

    def _show_not_observed(self) -> None:
        apis: dict[tuple[str, str], list[str]] = {}
        for each in self._report.verdicts:
            if each.outcome == "not observed":
                apis.setdefault((each.reasons[0] if each.reasons else "", each.rule), []).append(each.api)
        if not apis:
            return
        rules: dict[str, dict[tuple[str, ...], list[str]]] = {}
        for (reason, rule), names in apis.items():
            rules.setdefault(reason, {}).setdefault(tuple(names), []).append(rule)
        self._console.print()
        self._line("not observed", 0, "bold")
        for reason, by_apis in rules.items():
            self._line(f"{to_line(reason)}:", 2, "dim")
            for names, ids in by_apis.items():
                self._line(f"{', '.join(names)}: {', '.join(ids)}", 4, "dim")
        self._console.print()


def _make_cell(counts: RuleCounts) -> Text:
    cell = Text()
    for number, word, style in (
        (counts.must_broken, "broken", "bold red"),
        (counts.should_broken, "should", "yellow"),
        (counts.passed, "passed", "green"),
        (counts.not_observed, "not observed", "dim"),
    ):
        if number:
            cell.append(f"{', ' if cell else ''}{number} {word}", style)
    return cell


def _cut(line: Sequence[Piece]) -> list[Piece]:
    if any(piece.is_marked for piece in line):
        return shorten(line)
    text = "".join(piece.text for piece in line)
    return [Piece(text if len(text) <= MAX_BYTES else f"{text[:MAX_BYTES]}…")]


def _plain(data: bytes) -> str:
    """Text without control characters."""
    return "".join(char if char.isprintable() else "\ufffd" for char in data.decode(errors="replace"))


def to_line(text: str, limit: int = MAX_CHARS) -> str:
    """A text from the server in one line, shortened and without control characters."""
    line = "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))
    return line if len(line) <= limit else f"{line[:limit]}…"
