"""A picture of a stream, as SVG that stands in a page: what came when.

The lanes from top to bottom are text, reasoning, calls and other. A tick is an event. A bar is a call from its first
event to its last. A mark above and a line through all lanes is an event that breaks a rule.

Positions across are percents, so that the picture is as wide as its place and its letters stay as large as they are.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from toolwire.check.exchange import Exchange
from toolwire.check.report.evidence import readable
from toolwire.check.report.lanes import LANES, Bar, bars_of, lanes_of
from toolwire.check.turns.frames import Heard

SHORT = 0.1
"""Seconds. A stream that came faster is drawn in the order of its events."""
MOST_BARS = 8
MOST_LETTERS = 22
"""Of a call's name."""
TOP, LANE, BAR, FOOT = 22, 24, 26, 20
"""Heights in pixels: of the marks, of a lane, of a call and of the axis."""


def timeline(exchange: Exchange, offending: Iterable[int]) -> str:
    """The picture; empty if there was no stream."""
    if not exchange.heard:
        return ""
    lanes = lanes_of(exchange)
    across = _positions(exchange.heard)
    places = [place for place in sorted({*offending}) if place in across]
    bars = [*bars_of(exchange, lanes)]
    ground: list[str] = []
    front: list[str] = []
    top = TOP
    for lane in LANES:
        xs = [across[place] for place, its in lanes.items() if its == lane]
        if not xs:
            continue
        height = LANE + (min(len(bars), MOST_BARS) * BAR if lane == "calls" else 0)
        ground += _ground(lane, top, height)
        front += _ticks(lane, top, xs)
        if lane == "calls":
            front += _bars(_most_telling(bars, places), len(bars) - MOST_BARS, top + LANE, across)
        top += height
    marked = {across[place]: place for place in reversed(places)}
    parts = [*ground, *_axis(exchange.heard, across, top), *_marks(marked, top), *front]
    says = escape(_summary(exchange.heard, bars))
    return (
        f'<figure><svg role="img" aria-label="{says}" height="{top + FOOT}" class="timeline">{"".join(parts)}</svg>'
        f"<figcaption>{says}</figcaption></figure>"
    )


def _is_timed(heard: Sequence[Heard]) -> bool:
    return heard[-1].at >= SHORT


def _positions(heard: Sequence[Heard]) -> dict[int, float]:
    """Where every event stands, in percent: by its time, or by its place if all came at once."""
    if _is_timed(heard):
        shares = [each.at / heard[-1].at for each in heard]
    else:
        shares = [index / max(len(heard) - 1, 1) for index in range(len(heard))]
    return {each.place: round(1 + 98 * share, 1) for each, share in zip(heard, shares, strict=True)}


def _summary(heard: Sequence[Heard], bars: Sequence[Bar]) -> str:
    last = heard[-1].at
    calls = f"{len(bars) or 'no'} call{'' if len(bars) == 1 else 's'}"
    about = f"{len(heard)} event{'' if len(heard) == 1 else 's'} and {calls}"
    if _is_timed(heard):
        return f"{about}, over the {last:.2f} s since the request."
    at = f"all within {max(last * 1000, 1):.0f} ms" if last else "the times are not known"
    return f"{about}, in the order in which they came; {at}."


def _ground(lane: str, top: int, height: int) -> Iterator[str]:
    yield f'<rect class="lane" y="{top}" width="100%" height="{height - 2}"/>'
    yield f'<text class="name" x="-8" y="{top + 15}">{lane}</text>'


def _ticks(lane: str, top: int, xs: Sequence[float]) -> Iterator[str]:
    yield f'<g class="{lane}">'
    for x in dict.fromkeys(xs):
        yield f'<rect class="tick" x="{x}%" y="{top + 5}" width="2" height="{LANE - 12}"/>'
    yield "</g>"


def _most_telling(bars: Sequence[Bar], places: Sequence[int]) -> list[Bar]:
    """As many calls as there is room for, first of all those with offending events."""
    telling = sorted(bars, key=lambda bar: not any(bar.first <= place <= bar.last for place in places))
    return sorted(telling[:MOST_BARS], key=lambda bar: bar.first)


def _bars(bars: Sequence[Bar], hidden: int, top: int, across: dict[int, float]) -> Iterator[str]:
    for row, bar in enumerate(bars):
        y, left, right = top + row * BAR, across[bar.first], across[bar.last]
        x, anchor = (left, "start") if left < 35 else (right, "end") if right > 65 else ((left + right) / 2, "middle")
        name = readable(bar.name) or "no name"
        short = name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"
        more = f" and {hidden} more" if hidden > 0 and row == len(bars) - 1 else ""
        yield (
            f'<g class="calls"><title>{escape(name)}: events {bar.first} to {bar.last}</title>'
            f'<rect class="bar" x="{left}%" y="{y + 13}" width="{max(right - left, 1):.1f}%" height="8" rx="3"/>'
            f'<text class="call" x="{x:.1f}%" y="{y + 8}" text-anchor="{anchor}">{escape(short + more)}</text></g>'
        )


def _axis(heard: Sequence[Heard], across: dict[int, float], top: int) -> Iterator[str]:
    if _is_timed(heard):
        last = heard[-1].at
        step = next(size for size in _steps() if last / size <= 4)
        stops = [(1 + 98 * step * count / last, _seconds(step * count)) for count in range(int(last / step) + 1)]
    else:
        stops = [(across[place], f"#{place}") for place in dict.fromkeys((heard[0].place, heard[-1].place))]
    for x, label in stops:
        yield f'<rect class="grid" x="{x:.1f}%" y="{TOP}" width="1" height="{top - TOP}"/>'
        yield f'<text class="stop" x="{x:.1f}%" y="{top + 13}" text-anchor="{_anchor(x)}">{label}</text>'


def _steps() -> Iterator[float]:
    """Round numbers: 0.01, 0.02, 0.05, 0.1 and so on."""
    size = 0.01
    while True:
        yield from (size, 2 * size, 5 * size)
        size *= 10


def _seconds(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") + " s"


def _anchor(x: float) -> str:
    """How a text stands at a place so that it stays inside of the picture."""
    return "start" if x < 5 else "end" if x > 95 else "middle"


def _marks(marked: dict[float, int], top: int) -> Iterator[str]:
    """Marks for the offending events, and their numbers where there is room."""
    labelled = -100.0
    for x, place in sorted(marked.items()):
        yield f'<rect class="fault" x="{x}%" y="{TOP - 6}" width="2" height="{top - TOP + 6}"/>'
        yield f'<svg x="{x}%" y="{TOP - 10}" overflow="visible"><path class="mark" d="M-4 0h10l-5 7z"/></svg>'
        if x - labelled > 12:
            yield f'<text class="number" x="{x}%" y="9" text-anchor="{_anchor(x)}">#{place}</text>'
            labelled = x
