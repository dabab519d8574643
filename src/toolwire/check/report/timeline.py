"""A timeline of a stream as inline SVG.

The lanes from top to bottom are text, reasoning, calls and other. A tick is an event, and a bar a call from its first
event to its last. A mark at the top, with a line through all lanes, is an event that breaks a rule. Faulty streams are
drawn too: an event of an item that never started is classified by its own type.

Horizontal positions are percentages, so that the picture fills the available width while its text keeps its size.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Literal, TypeAlias

import msgspec

from toolwire.check.exchange import Exchange
from toolwire.check.report.evidence import escape, escape_invisible
from toolwire.check.turns.frames import ReceivedFrame
from toolwire.check.turns.loose import as_object, as_objects, as_text

Lane: TypeAlias = Literal["text", "reasoning", "calls", "other"]
LANES: tuple[Lane, ...] = ("text", "reasoning", "calls", "other")
_TYPE_WORDS: tuple[tuple[Lane, tuple[str, ...]], ...] = (
    ("reasoning", ("reasoning", "thinking", "signature")),
    ("calls", ("_call", "tool_use", "input_json")),
    ("text", ("text", "refusal", "content_part", "citations")),
)
"""Substrings of the types of events, items, blocks and deltas; the first match decides."""
_CHAT_FIELDS: tuple[tuple[Lane, tuple[str, ...]], ...] = (
    ("calls", ("tool_calls", "function_call")),
    ("text", ("content", "refusal")),
    ("reasoning", ("reasoning_content", "reasoning", "reasoning_details", "thinking")),
)
"""Fields of a chat's deltas; the first match decides. Those for reasoning are not standard."""
_GEMINI_FIELDS: tuple[tuple[Lane, tuple[str, ...]], ...] = (
    ("calls", ("functionCall",)),
    ("reasoning", ("thought",)),
    ("text", ("text",)),
)
"""Fields of Gemini's parts; the first match decides."""

MIN_SECONDS = 0.1
"""The shortest stream that is drawn by time; a faster one is drawn by the order of its events."""
MAX_BARS = 8
MAX_NAME_CHARS = 22
"""Characters shown of a call's name."""
TOP, LANE, BAR, FOOT = 22, 24, 26, 20
"""Heights in pixels: of the marks, of a lane, of a call and of the axis."""


class Bar(msgspec.Struct, frozen=True):
    """A call, from its first event to its last."""

    name: str
    first: int
    last: int


def draw_timeline(exchange: Exchange, offending: Iterable[int]) -> str:
    """Draw a timeline; empty if there was no stream."""
    received = exchange.received
    if not received:
        return ""
    lanes = _find_lanes(exchange)
    seconds = received[-1].at
    is_timed = seconds >= MIN_SECONDS
    shares = [
        each.at / seconds if is_timed else index / max(len(received) - 1, 1) for index, each in enumerate(received)
    ]
    across = {each.position: round(1 + 98 * share, 1) for each, share in zip(received, shares, strict=True)}
    positions = [position for position in sorted({*offending}) if position in across]
    bars = [*_find_calls(exchange, lanes)]
    ground: list[str] = []
    front: list[str] = []
    top = TOP
    for lane in LANES:
        xs = dict.fromkeys(across[position] for position, its in lanes.items() if its == lane)
        if not xs:
            continue
        height = LANE + (min(len(bars), MAX_BARS) * BAR if lane == "calls" else 0)
        ground.append(f'<rect class="lane" y="{top}" width="100%" height="{height - 2}"/>')
        ground.append(f'<text class="name" x="-8" y="{top + 15}">{lane}</text>')
        ticks = (f'<rect class="tick" x="{x}%" y="{top + 5}" width="2" height="{LANE - 12}"/>' for x in xs)
        front += [f'<g class="{lane}">', *ticks, "</g>"]
        if lane == "calls":
            front += _draw_bars(bars, positions, top + LANE, across)
        top += height
    marks = {across[position]: position for position in reversed(positions)}
    if is_timed:
        stops = [
            (1 + 98 * time / seconds, f"{time:.2f}".rstrip("0").rstrip(".") + " s") for time in _find_stops(seconds)
        ]
        scale = f"over the {seconds:.2f} s since the request"
    else:
        ends = dict.fromkeys((received[0].position, received[-1].position))
        stops = [(across[position], f"#{position}") for position in ends]
        at = f"all within {max(seconds * 1000, 1):.0f} ms" if seconds else "the times are not known"
        scale = f"in the order in which they came; {at}"
    for x, label in stops:
        ground.append(f'<rect class="grid" x="{x:.1f}%" y="{TOP}" width="1" height="{top - TOP}"/>')
        ground.append(f'<text class="stop" x="{x:.1f}%" y="{top + 13}" text-anchor="{_anchor(x)}">{label}</text>')
    parts = [*ground, *_draw_marks(marks, top), *front]
    calls = f"{len(bars) or 'no'} call{'' if len(bars) == 1 else 's'}"
    detail = escape(f"{len(received)} event{'' if len(received) == 1 else 's'} and {calls}, {scale}.")
    return (
        f'<figure><svg role="img" aria-label="{detail}" height="{top + FOOT}" class="timeline">{"".join(parts)}</svg>'
        f"<figcaption>{detail}</figcaption></figure>"
    )


def _find_stops(seconds: float) -> list[float]:
    """Up to five round times on the axis."""
    round_numbers = (digit * 10.0**exponent for exponent in count(-2) for digit in (1, 2, 5))
    step = next(size for size in round_numbers if seconds / size <= 4)
    return [step * number for number in range(int(seconds / step) + 1)]


def _draw_bars(bars: Sequence[Bar], positions: Sequence[int], top: int, across: dict[int, float]) -> Iterator[str]:
    """Draw as many calls as there is room for; those with marked events take precedence."""
    ranked = sorted(bars, key=lambda bar: not any(bar.first <= position <= bar.last for position in positions))
    shown = sorted(ranked[:MAX_BARS], key=lambda bar: bar.first)
    hidden = len(bars) - len(shown)
    for row, bar in enumerate(shown):
        y, left, right = top + row * BAR, across[bar.first], across[bar.last]
        x, anchor = (left, "start") if left < 35 else (right, "end") if right > 65 else ((left + right) / 2, "middle")
        name = escape_invisible(bar.name) or "no name"
        short = name if len(name) <= MAX_NAME_CHARS else f"{name[: MAX_NAME_CHARS - 1]}…"
        more = f" and {hidden} more" if hidden and row == len(shown) - 1 else ""
        yield (
            f'<g class="calls"><title>{escape(name)}: events {bar.first} to {bar.last}</title>'
            f'<rect class="bar" x="{left}%" y="{y + 13}" width="{max(right - left, 1):.1f}%" height="8" rx="3"/>'
            f'<text class="call" x="{x:.1f}%" y="{y + 8}" text-anchor="{anchor}">{escape(short + more)}</text></g>'
        )


def _anchor(x: float) -> str:
    """The text anchor that keeps a label inside the picture."""
    return "start" if x < 5 else "end" if x > 95 else "middle"


def _draw_marks(marked: dict[float, int], top: int) -> Iterator[str]:
    """Mark the events that break a rule, with their numbers where there is room."""
    labelled = -100.0
    for x, position in sorted(marked.items()):
        yield f'<rect class="fault" x="{x}%" y="{TOP - 6}" width="2" height="{top - TOP + 6}"/>'
        yield f'<svg x="{x}%" y="{TOP - 10}" overflow="visible"><path class="mark" d="M-4 0h10l-5 7z"/></svg>'
        if x - labelled > 12:
            yield f'<text class="number" x="{x}%" y="9" text-anchor="{_anchor(x)}">#{position}</text>'
            labelled = x


# Lanes and calls


def _find_lanes(exchange: Exchange) -> dict[int, Lane]:
    """The lane of every event, by its position."""
    lanes: dict[int, Lane] = {}
    parts: dict[int | None, Lane] = {}
    for each in exchange.received:
        if "choices" in each.fields:  # a chunk of a chat
            deltas = [as_object(choice.get("delta")) for choice in as_objects(each.fields.get("choices"))]
            given = {name for delta in deltas for name, value in delta.items() if value}
            lanes[each.position] = _first_lane(_CHAT_FIELDS, lambda name, given=given: name in given)
            continue
        if "candidates" in each.fields:  # a chunk of Gemini
            contents = [as_object(candidate.get("content")) for candidate in as_objects(each.fields["candidates"])]
            given = {
                name for content in contents for part in as_objects(content.get("parts")) for name in part if part[name]
            }
            lanes[each.position] = _first_lane(_GEMINI_FIELDS, lambda name, given=given: name in given)
            continue
        fields, part = each.fields, _find_part(each)
        inner = [as_text(each.inner(name).get("type")) for name in ("item", "content_block", "part", "delta")]
        words = " ".join((each.type, *inner))
        own = "text" if inner[0] == "message" else _first_lane(_TYPE_WORDS, lambda word, words=words: word in words)
        if part is not None and ("item" in fields or "content_block" in fields):
            parts[part] = own
        lanes[each.position] = parts.get(part, own)
    return lanes


def _first_lane(table: Sequence[tuple[Lane, Sequence[str]]], matches: Callable[[str], bool]) -> Lane:
    for lane, words in table:
        if any(matches(word) for word in words):
            return lane
    return "other"


def _find_part(each: ReceivedFrame) -> int | None:
    """The number of the item or block that an event is about."""
    index = each.fields.get("output_index", each.fields.get("index"))
    return index if type(index) is int else None


def _find_calls(exchange: Exchange, lanes: dict[int, Lane]) -> Iterator[Bar]:
    """The calls of a stream, including those that never ended."""
    parts: dict[int, list[ReceivedFrame]] = {}
    for each in exchange.received:
        part = _find_part(each)
        if part is not None and lanes[each.position] == "calls":
            parts.setdefault(part, []).append(each)
    for call in exchange.turn.calls:
        own = [part for part, events in parts.items() if {each.position for each in events} & {*call.frames}]
        positions = [*call.frames, *(each.position for part in own for each in parts.pop(part))]
        if positions:
            yield Bar(call.name, min(positions), max(positions))
    for events in parts.values():
        begun = as_object(events[0].fields.get("item") or events[0].fields.get("content_block"))
        name = as_text(begun.get("name")) or as_text(begun.get("type"))
        yield Bar(name, events[0].position, events[-1].position)
