"""A report for people, in a terminal: a table by area, then every finding with its bytes."""

from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from toolwire.check.exchange import Exchange
from toolwire.check.rules import RULES
from toolwire.check.run import Report, shown_finding
from toolwire.check.talks import Verdict

MOST_SHOWN = 3
"""Findings of one rule that are shown; the others are counted."""
MOST_BYTES = 400
"""Bytes of a frame or a request that are shown."""


def show(report: Report, console: Console) -> None:
    """Print a report."""
    console.print(_table(report))
    for verdict in report.broken:
        _show_broken(verdict, report, console)
    _show_unseen(report, console)
    for api, why in report.absent.items():
        console.print(f"[dim]{api}: not there ({escape(why[:100])})[/]")
    if report.spent:
        console.print("[yellow]The budget of requests ended before the probes did: raise --budget.[/]")
    console.print(_summary(report))


def outcome(verdict: Verdict) -> str:
    """What is known about a rule: `broken`, `passed`, or `not observed`."""
    return "broken" if verdict.broken else "passed" if verdict.seen else "not observed"


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("area")
    for api in report.apis:
        table.add_column(api, justify="left")
    areas = dict.fromkeys(RULES[each.rule].area for each in report.verdicts)
    for area in areas:
        cells = [
            _cell([each for each in report.verdicts if each.api == api and _area(each) == area]) for api in report.apis
        ]
        table.add_row(area, *cells)
    return table


def _area(verdict: Verdict) -> str:
    return RULES[verdict.rule].area


def _cell(verdicts: list[Verdict]) -> Text:
    counts = Counter(outcome(each) for each in verdicts)
    must = sum(1 for each in verdicts if each.broken and RULES[each.rule].level == "MUST")
    cell = Text()
    for number, word, style in (
        (must, "broken", "bold red"),
        (counts["broken"] - must, "should", "yellow"),
        (counts["passed"], "passed", "green"),
        (counts["not observed"], "not observed", "dim"),
    ):
        if number:
            cell.append(f"{', ' if cell else ''}{number} {word}", style)
    return cell


def _show_broken(verdict: Verdict, report: Report, console: Console) -> None:
    rule = RULES[verdict.rule]
    style = "bold red" if rule.level == "MUST" else "yellow"
    console.print(f"\n[{style}]{rule.level} {rule.id}[/] on {verdict.api}: {escape(rule.says)}")
    console.print(Padding(Text(f"{rule.harm} ({rule.source})", "dim"), (0, 0, 0, 2)))
    numbers = {each.number: each for each in report.exchanges}
    for finding, number in verdict.broken[:MOST_SHOWN]:
        console.print(Padding(Text(finding.says), (0, 0, 0, 2)))
        for line in _bytes(numbers[number], [*shown_finding(finding, numbers[number])]):
            console.print(Padding(Text(line, "dim"), (0, 0, 0, 4)))
    more = len(verdict.broken) - MOST_SHOWN
    if more > 0:
        console.print(Padding(Text(f"and {more} more like it", "dim"), (0, 0, 0, 2)))


def _bytes(exchange: Exchange, frames: list[bytes]) -> Iterator[str]:
    yield f"> {exchange.sent.method} {exchange.sent.url} {_cut(exchange.sent.body)}"
    for frame in frames[:MOST_SHOWN]:
        for line in _cut(frame.rstrip(b"\n")).splitlines():
            yield f"< {line}"


def _cut(data: bytes) -> str:
    text = data.decode(errors="replace")
    return text if len(text) <= MOST_BYTES else f"{text[:MOST_BYTES]}…"


def _show_unseen(report: Report, console: Console) -> None:
    unseen = [each for each in report.verdicts if outcome(each) == "not observed" and each.unseen]
    if unseen:
        console.print("\n[bold]not observed[/]")
    for each in unseen:
        console.print(Padding(Text(f"{each.rule} on {each.api}: {each.unseen[0][:120]}", "dim"), (0, 0, 0, 2)))


def _summary(report: Report) -> Text:
    counts = Counter(outcome(each) for each in report.verdicts)
    must = sum(1 for each in report.broken if RULES[each.rule].level == "MUST")
    should = counts["broken"] - must
    words = f"{must} MUST and {should} SHOULD broken, {counts['passed']} passed, {counts['not observed']} not observed"
    about = (
        f"{len(report.exchanges)} requests in {report.seconds:.1f} s"
        if report.seconds
        else f"{len(report.exchanges)} turns"
    )
    return Text(f"\n{words}; {about}.", "bold red" if must else "bold green")
