"""The report in a terminal or a pipe: the verdict, a table by area, then every broken rule with one proof.

In a pipe nothing is wrapped, so that lines can be searched, and what is wrong stands between `>>>` and `<<<`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from toolwire.check.exchange import Exchange
from toolwire.check.marks import Piece, marked, shortened
from toolwire.check.report.evidence import address
from toolwire.check.rules import RULES
from toolwire.check.turns.rule import Finding
from toolwire.check.verdicts import Report, RuleCounts, Verdict, consequences, count_verdicts
from toolwire.core.terminal import clean

MAX_DETAILS = 3
"""Different findings named for one rule; the others are counted."""
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
        self._verdict()
        self._table()
        for verdicts in _by_rule(report.broken):
            self._broken(verdicts)
        self._not_observed()
        for api, reason in report.absent.items():
            self._line(f"{api} was not checked: {readable(reason)}", 0, "dim")
        for api, reason in report.ended.items():
            self._line(f"{api} was not checked to the end: {readable(reason)}", 0, "yellow")
        if report.spent:
            self._line("The budget of requests ended before the probes did: raise --budget.", 0, "yellow")

    def _line(self, text: str | Text, columns: int = 0, style: str = "") -> None:
        line = text if isinstance(text, Text) else Text(clean(text), style)
        self._console.print(Padding(line, (0, 0, 0, columns), expand=False))

    def _verdict(self) -> None:
        report = self._report
        counts = count_verdicts(report.verdicts)
        style = "bold red" if counts.must_broken else "bold green" if counts.passed else "bold yellow"
        self._line(report.headline, 0, style)
        model = f" with the model {readable(report.model)}" if report.model else ""
        requests = len(report.exchanges)
        many = "" if requests == 1 else "s"
        about = f"{requests} request{many} in {report.seconds:.1f} s" if report.seconds else f"{requests} turn{many}"
        following = f"{counts.following} of the broken ones follow from others, " if counts.following else ""
        rules = f"{following}{counts.passed} passed, {counts.not_observed} not observed, counted for each API"
        self._line(f"{readable(address(report.target))}{model}: {about}; {rules}.")
        self._console.print()

    def _table(self) -> None:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("area")
        for api in self._report.apis:
            table.add_column(api, justify="left")
        for area, counts in self._report.areas.items():
            table.add_row(area, *map(_cell, counts))
        with self._console.capture() as captured:
            self._console.print(table)
        for line in captured.get().splitlines():
            print(line.rstrip(), file=self._console.file)

    def _broken(self, verdicts: Sequence[Verdict]) -> None:
        """One rule that is broken by itself, on one API or on several."""
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
            self._line(f"Seen: {readable(detail)}{times}", 2)
        more = sum([*counts.values()][MAX_DETAILS:])
        if more:
            self._line(f"and {more} more like it", 2, "dim")
        self._proof(found[0][0], self._exchanges[found[0][1]])
        for verdict in verdicts:
            for each in consequences(verdict, self._report.verdicts):
                self._consequence(each)

    def _consequence(self, verdict: Verdict) -> None:
        """A rule that is broken as a consequence of the one above; the bytes are shown there."""
        rule = RULES[verdict.rule]
        self._line(f"It follows: {rule.level} {rule.id} on {verdict.api}: {rule.requirement}", 2)
        self._line(readable(verdict.broken[0][0].detail), 4, "dim")

    def _proof(self, finding: Finding, exchange: Exchange) -> None:
        if exchange.sent.url:
            body = marked(_plain(exchange.sent.body), finding) if exchange.sent.body else []
            head = Piece(f"> {exchange.sent.method} {readable(address(exchange.sent.url))} ")
            self._line(self._styled([head, *_cut(body)]), 4)
        for line in _answer_lines(exchange, finding):
            self._line(self._styled([Piece("< "), *_cut(line)]), 4)

    def _styled(self, all_pieces: Sequence[Piece]) -> Text:
        text = Text(style="dim")
        for piece in all_pieces:
            words = clean(piece.text)
            if not piece.is_marked:
                text.append(words)
            elif self._has_styles:
                text.append(words, "not dim bold reverse red")
            else:
                text.append(f">>>{words}<<<")
        return text

    def _not_observed(self) -> None:
        not_observed: dict[str, dict[str, list[str]]] = {}
        for each in self._report.verdicts:
            if each.outcome == "not observed":
                reason = each.reasons[0] if each.reasons else ""
                not_observed.setdefault(reason, {}).setdefault(each.rule, []).append(each.api)
        if not_observed:
            self._console.print()
            self._line("not observed", 0, "bold")
        for reason, rules in not_observed.items():
            self._line(f"{readable(reason)}:", 2, "dim")
            for apis, names in _by_apis(rules).items():
                self._line(f"{', '.join(apis)}: {', '.join(names)}", 4, "dim")
        if not_observed:
            self._console.print()


def _by_rule(broken: Sequence[Verdict]) -> list[list[Verdict]]:
    """The broken rules without the consequences, the APIs of each together."""
    rules: dict[str, list[Verdict]] = {}
    for each in broken:
        if not each.follows:
            rules.setdefault(each.rule, []).append(each)
    return [*rules.values()]


def _by_apis(rules: dict[str, list[str]]) -> dict[tuple[str, ...], list[str]]:
    out: dict[tuple[str, ...], list[str]] = {}
    for rule, apis in rules.items():
        out.setdefault(tuple(apis), []).append(rule)
    return out


def _cell(counts: RuleCounts) -> Text:
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


def _answer_lines(exchange: Exchange, finding: Finding) -> Iterator[list[Piece]]:
    """The lines of the frames that show a finding best: those in which something is marked."""
    frames = [each.raw for each in exchange.shown_by(finding)] or [exchange.body[:65_536]]
    read = [[marked(_plain(line), finding) for line in frame.splitlines() if line] for frame in frames]
    best = [frame for frame in read if any(piece.is_marked for line in frame for piece in line)]
    for frame in (best or read)[:MAX_FRAMES]:
        yield from frame[:MAX_LINES]


def _cut(line: Sequence[Piece]) -> list[Piece]:
    if any(piece.is_marked for piece in line):
        return shortened(line)
    text = "".join(piece.text for piece in line)
    return [Piece(text if len(text) <= MAX_BYTES else f"{text[:MAX_BYTES]}…")]


def _plain(data: bytes) -> str:
    """Text without control characters."""
    return "".join(char if char.isprintable() else "\ufffd" for char in data.decode(errors="replace"))


def readable(text: str, most: int = MAX_CHARS) -> str:
    """A text from the server in one line, shortened and without control characters."""
    line = "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))
    return line if len(line) <= most else f"{line[:most]}…"
