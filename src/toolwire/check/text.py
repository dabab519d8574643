"""The report in a terminal: a table by area, then every finding with the bytes that show it."""

from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from toolwire.check.exchange import Exchange
from toolwire.check.rules import RULES
from toolwire.check.turns.rule import Finding
from toolwire.check.verdicts import Report, RuleCounts, Verdict, consequences, count_verdicts
from toolwire.core.terminal import clean

MAX_SHOWN = 3
"""Findings shown for one rule; the others are counted."""
MAX_CHARS = 160
"""Characters shown of a text from the server."""
MAX_BYTES = 400
"""Bytes shown of a frame or a request."""


def show(report: Report, console: Console) -> None:
    """Print a report."""
    console.print(_table(report))
    for verdict in report.broken:
        if not verdict.follows:
            _show_broken(verdict, report, console)
    _show_not_observed(report, console)
    for api, reason in report.absent.items():
        console.print(Text(f"{api} was not checked: {readable(reason)}", "dim"))
    if report.spent:
        console.print("[yellow]The budget of requests ended before the probes did: raise --budget.[/]")
    console.print(_summary(report))


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("area")
    for api in report.apis:
        table.add_column(api, justify="left")
    for area, counts in report.areas.items():
        table.add_row(area, *map(_cell, counts))
    return table


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


def _show_broken(verdict: Verdict, report: Report, console: Console) -> None:
    rule = RULES[verdict.rule]
    style = "bold red" if rule.level == "MUST" else "yellow"
    console.print(f"\n[{style}]{rule.level} {rule.id}[/] on {verdict.api}: {escape(rule.requirement)}")
    console.print(_indented(f"{rule.harm} ({rule.source})", 2))
    numbers = {each.number: each for each in report.exchanges}
    counts = Counter(finding.detail for finding, _ in verdict.broken)
    examples = {finding.detail: (finding, number) for finding, number in reversed(verdict.broken)}
    shown = 0
    for detail in [*counts][:MAX_SHOWN]:
        times = f" ({counts[detail]} times)" if counts[detail] > 1 else ""
        console.print(_indented(readable(detail) + times, 2, ""))
        finding, number = examples[detail]
        request = [] if number == shown else [*_request(numbers[number])]
        for line in (*request, *_answer(numbers[number], finding)):
            console.print(_indented(line, 4))
        shown = number
    more = sum([*counts.values()][MAX_SHOWN:])
    if more > 0:
        console.print(_indented(f"and {more} more like it", 2))
    for each in consequences(verdict, report.verdicts):
        _show_consequence(each, console)


def _show_consequence(verdict: Verdict, console: Console) -> None:
    """A rule that is broken as a consequence of the one above; the bytes are shown there."""
    rule = RULES[verdict.rule]
    console.print(_indented(f"It follows: {rule.level} {rule.id}. {rule.requirement}", 2, ""))
    console.print(_indented(readable(verdict.broken[0][0].detail), 4))


def _request(exchange: Exchange) -> Iterator[str]:
    if exchange.sent.url:
        yield f"> {exchange.sent.method} {exchange.sent.url} {_cut(exchange.sent.body)}"


def _answer(exchange: Exchange, finding: Finding) -> Iterator[str]:
    frames = [each.raw for each in exchange.shown_by(finding)] or [exchange.body[:2000]]
    for frame in frames[:MAX_SHOWN]:
        for line in filter(None, frame[:MAX_BYTES].splitlines()):
            yield f"< {_plain(line)}"
        if len(frame) > MAX_BYTES:
            yield "< …"


def _cut(data: bytes) -> str:
    return _plain(data[:MAX_BYTES]) + ("…" if len(data) > MAX_BYTES else "")


def _plain(data: bytes) -> str:
    """Text without control characters."""
    return "".join(char if char.isprintable() else "\ufffd" for char in data.decode(errors="replace"))


def _show_not_observed(report: Report, console: Console) -> None:
    not_observed: dict[tuple[str, str], list[str]] = {}
    for each in report.verdicts:
        if each.outcome == "not observed":
            not_observed.setdefault((each.api, each.reasons[0] if each.reasons else ""), []).append(each.rule)
    if not_observed:
        console.print("\n[bold]not observed[/]")
    for (api, reason), rules in not_observed.items():
        console.print(_indented(f"{api}: {readable(reason)}", 2))
        console.print(_indented(", ".join(rules), 4))


def _indented(line: str, columns: int, style: str = "dim") -> Padding:
    return Padding(Text(clean(line), style), (0, 0, 0, columns), expand=False)


def readable(text: str) -> str:
    """A text from the server in one line, shortened and without control characters."""
    line = "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))
    return line if len(line) <= MAX_CHARS else f"{line[:MAX_CHARS]}…"


def _summary(report: Report) -> Text:
    counts = count_verdicts(report.verdicts)
    broken = f"{counts.must_broken} MUST and {counts.should_broken} SHOULD broken"
    counted = f"{broken}, {counts.passed} passed, {counts.not_observed} not observed"
    requests = len(report.exchanges)
    many = "" if requests == 1 else "s"
    about = f"{requests} request{many} in {report.seconds:.1f} s" if report.seconds else f"{requests} turn{many}"
    following = f"\n{counts.following} of the broken rules follow from others." if counts.following else ""
    return Text(f"\n{counted}; {about}.{following}", "bold red" if counts.must_broken else "bold green")
