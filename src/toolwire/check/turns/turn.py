"""A turn as a client received it, independent of the API, and the checks common to all APIs."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from toolwire.check.turns.frames import ReceivedFrame
from toolwire.check.turns.loose import Json, as_number, as_object, parse_json, quote
from toolwire.check.turns.rule import Finding, RequestFacts
from toolwire.core.events import CallKind

Finish: TypeAlias = Literal["", "stop", "calls", "length", "filter", "failed"]


LEAKS = re.compile(
    r"<tool_call>|</tool_call>|<use_tool>|<function=|<\|tool_call|<\|python_tag\|>|\[TOOL_CALLS\]|<\|channel\|>commentary"
    r"|<invoke name=|<.tool▁call|<function_calls>"
)
"""Notations of calls that a server failed to parse."""


class ObservedCall(msgspec.Struct, frozen=True):
    """A call as a client received it."""

    id: str
    name: str
    arguments: str
    kind: CallKind = "function"
    frames: tuple[int, ...] = ()
    is_closed: bool = False
    """Whether the server marked it as complete, however the turn ended."""
    signature: str = ""
    """What must come back with it; empty if the API has none."""

    @property
    def value(self) -> Any:
        """The arguments parsed as JSON; None if they are invalid."""
        return parse_json(self.arguments)


class ObservedUsage(msgspec.Struct, frozen=True):
    """Token counts as a client received them."""

    input: int
    output: int
    total: int | None = None
    cached: int | None = None
    """Part of the input; None if it is not reported."""
    reasoning: int | None = None
    """Part of the output; None if it is not reported."""

    @property
    def has_parts(self) -> bool:
        """Whether cached or reasoning tokens are reported."""
        return self.cached is not None or self.reasoning is not None


class ObservedTurn(msgspec.Struct, frozen=True):
    """A turn as a client received it."""

    text_pieces: tuple[tuple[int | None, str], ...] = ()
    """The text in pieces, each with the position of its frame; None in a plain answer."""
    calls: tuple[ObservedCall, ...] = ()
    finish: Finish = ""
    usage: ObservedUsage | None = None
    id: str = ""
    last: tuple[int, ...] = ()
    """The frames with the finish reason and the usage."""

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(piece for _, piece in self.text_pieces)

    @property
    def is_over(self) -> bool:
        """Whether it ended without a failure."""
        return self.finish not in ("", "failed")

    def list_text_frames(self, start: int, end: int) -> tuple[int, ...]:
        """The frames that hold this range of the text."""
        positions: list[int] = []
        for position, text in self.text_pieces:
            if position is not None and start < len(text) and end > 0:
                positions.append(position)
            start, end = start - len(text), end - len(text)
        return tuple(dict.fromkeys(positions))


class StreamReader(Protocol):
    """Reads the frames of a finished stream."""

    def read(self, received: Sequence[ReceivedFrame]) -> Iterable[Finding]:
        """The findings about the frames."""
        ...

    @property
    def turn(self) -> ObservedTurn:
        """The turn, after the frames were read."""
        ...


class TurnForm(msgspec.Struct, frozen=True):
    """How the turns of one API are read and checked."""

    reader: Callable[[RequestFacts], StreamReader]
    check_plain: Callable[[Json, RequestFacts], Iterable[Finding]]
    """The findings about a plain answer."""
    plain_turn: Callable[[Json], ObservedTurn]
    """The turn in a plain answer."""
    usage_on_request: bool = False
    """A stream reports token counts only if the request asks for them."""
    forced_call_stops: bool = False
    """A turn may end with `stop` after a call that the request forced."""
    ids_are_optional: bool = False
    """A call may have no id."""
    streams_arrays: bool = False
    """A stream may be one JSON array."""
    ignored: tuple[str, ...] = ("sse.data-only",)
    """The rules of framing that the API does not have."""


def check_turn(turn: ObservedTurn, facts: RequestFacts, form: TurnForm) -> Iterator[Finding]:
    """The findings about a turn of any API."""
    ids: set[str] = set()
    for call in turn.calls:
        if call.id in ids if call.id else not form.ids_are_optional:
            yield Finding("calls.id", f"A call of {call.name} has the id {call.id!r}.", call.frames)
        ids.add(call.id)
        if not call.name or (facts.tools is not None and call.name not in facts.tools):
            yield Finding("calls.name", f"A call has the name {call.name!r}.", call.frames)
        is_cut = turn.finish not in ("stop", "calls") and call is turn.calls[-1] and not call.is_closed
        if call.kind == "function" and not is_cut and not isinstance(call.value, dict):
            detail = f"A call of {call.name} has the arguments {quote(call.arguments)}."
            yield Finding("calls.json", detail, call.frames)
    may_stop = facts.forced and form.forced_call_stops
    if turn.finish == ("stop" if turn.calls else "calls") and not (turn.finish == "stop" and may_stop):
        detail = f"A turn with {len(turn.calls)} calls ends as if it had {'none' if turn.calls else 'some'}."
        yield Finding("calls.finish", detail, turn.last)
    leak = LEAKS.search(turn.text) if facts.tools else None
    if leak is not None:
        detail = f"The text holds {turn.text[leak.start() : leak.start() + 80]!r}."
        yield Finding("calls.leak", detail, turn.list_text_frames(*leak.span()), (leak[0],))
    wants_usage = facts.usage or (facts.usage is None and not form.usage_on_request)
    if turn.is_over and turn.usage is None and wants_usage:
        yield Finding("usage.reported", "The turn reports no tokens.", turn.last)
    if turn.usage is not None:
        yield from _check_usage(turn.usage, turn.last)


def _check_usage(usage: ObservedUsage, frames: tuple[int, ...]) -> Iterator[Finding]:
    if usage.total not in (None, usage.input + usage.output):
        detail = f"The total is {usage.total}, the input {usage.input} and the output {usage.output}."
        yield Finding("usage.sum", detail, frames)
    for word, part, of, whole in (
        ("cached", usage.cached, "input", usage.input),
        ("reasoning", usage.reasoning, "output", usage.output),
    ):
        if part is not None and not 0 <= part <= whole:
            yield Finding("usage.parts", f"{part} {word} tokens are part of {whole} tokens of {of}.", frames)


def as_usage(value: Any, input_field: str, output_field: str) -> ObservedUsage | None:
    """Token counts under these field names with their details; None if they are missing."""
    counts = as_object(value)
    input, output = as_number(counts.get(input_field)), as_number(counts.get(output_field))
    if input is None or output is None:
        return None
    cached = as_number(as_object(counts.get(f"{input_field}_details")).get("cached_tokens"))
    reasoning = as_number(as_object(counts.get(f"{output_field}_details")).get("reasoning_tokens"))
    return ObservedUsage(input, output, as_number(counts.get("total_tokens")), cached, reasoning)
