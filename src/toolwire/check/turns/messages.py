"""The rules about the form of Messages, streamed and plain."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from toolwire.check.turns.frames import ReceivedFrame
from toolwire.check.turns.loose import Json, as_number, as_object, as_objects, as_text, quote
from toolwire.check.turns.rule import Finding, RequestFacts
from toolwire.check.turns.turn import Finish, ObservedCall, ObservedTurn, ObservedUsage, TurnForm

STOPS: dict[str, Finish] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "compaction": "stop",
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "filter",
}
DELTAS = {
    "text_delta": (("text",), "text"),
    "citations_delta": (("text",), ""),
    "input_json_delta": (("tool_use", "server_tool_use", "mcp_tool_use"), "partial_json"),
    "thinking_delta": (("thinking",), "thinking"),
    "signature_delta": (("thinking",), "signature"),
    "compaction_delta": (("compaction",), ""),
}
"""By type of delta: the blocks it may appear in, and the field with its text, if any."""
EMPTY: dict[str, Json] = {
    "text": {"text": ""},
    "thinking": {"thinking": ""},
    "tool_use": {"input": {}},
}
"""The empty fields of a block at its start."""
KNOWN = {
    "message_start",
    "message_delta",
    "message_stop",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "error",
    "ping",
}


def _report(rule: str, detail: str, *received: ReceivedFrame) -> Finding:
    return Finding(f"messages.{rule}", detail, tuple(each.position for each in received))


class MessagesStream:
    """Reads a finished stream as the anthropic SDK does, and reports its faults."""

    def __init__(self, facts: RequestFacts) -> None:
        self._blocks: list[_Block] = []
        self._open: _Block | None = None
        self._message: Json = {}
        self._end: Json = {}
        self._stopped: tuple[int, ...] = ()
        self._failed = False

    def read(self, received: Sequence[ReceivedFrame]) -> Iterator[Finding]:
        """The findings about the frames."""
        for each in received:
            if each.is_done:
                yield _report("unknown-event", "`[DONE]` is no event of the API.", each)
        events = [each for each in received if each.is_event and each.type != "ping"]
        for each in events:
            kind = each.type
            if each.event != kind:
                yield _report("event-name", f"{kind or 'An event'} is sent under the name {each.event!r}.", each)
            if kind not in KNOWN:
                yield _report("unknown-event", f"{kind!r} is no event of the API.", each)
        known = [each for each in events if each.type in KNOWN]
        self._failed = any(each.type == "error" for each in known)
        yield from self._check_opening(known)
        yield from self._check_error(known) if self._failed else self._check_closing(known)
        blocks = {
            "content_block_start": self._start_block,
            "content_block_delta": self._grow_block,
            "content_block_stop": self._stop_block,
        }
        for each in events:
            if each.type in blocks:
                yield from blocks[each.type](each)
        if self._open is not None and not self._failed:
            yield _report("block-order", f"Block {len(self._blocks) - 1} is never stopped.", *events[-1:])

    @property
    def turn(self) -> ObservedTurn:
        """The turn, after the frames were read."""
        text = tuple(piece for block in self._blocks if block.kind == "text" for piece in block.pieces)
        calls = tuple(block.make_call() for block in self._blocks if block.kind == "tool_use")
        reason = as_text(as_object(self._end.get("delta")).get("stop_reason"))
        finish: Finish = "failed" if self._failed else STOPS.get(reason, "")
        usage = _read_usage({**as_object(self._message.get("usage")), **as_object(self._end.get("usage"))})
        return ObservedTurn(text, calls, finish, usage, as_text(self._message.get("id")), self._stopped)

    def _check_opening(self, events: Sequence[ReceivedFrame]) -> Iterator[Finding]:
        starts = [each for each in events if each.type == "message_start"]
        if not starts and [each.type for each in events] == ["error"]:
            return
        if len(starts) != 1 or starts[0] is not events[0]:
            detail = f"message_start comes {len(starts)} times, or not first."
            yield _report("opening", detail, *events[:1], *starts)
        if not starts:
            return
        self._message = message = starts[0].inner("message")
        is_empty = message.get("content") == [] and message.get("stop_reason") is None
        if not as_text(message.get("id")) or message.get("role") != "assistant" or not is_empty:
            yield _report("opening", f"message_start holds {quote(message)}.", starts[0])
        if as_number(as_object(message.get("usage")).get("input_tokens")) is None:
            yield _report("start-usage", f"message_start has the usage {quote(message.get('usage'))}.", starts[0])
        yield from _check_fields(message, "message_start", starts[0])

    def _check_closing(self, events: Sequence[ReceivedFrame]) -> Iterator[Finding]:
        """Check the end. The documentation allows several `message_delta`; the last one counts, as in the SDK."""
        ends = [each for each in events if each.type == "message_delta"]
        closing = events[events.index(ends[0]) :] if ends else events[-2:]
        if [each.type for each in closing] != [*["message_delta"] * max(1, len(ends)), "message_stop"]:
            detail = f"The stream ends with {' and '.join(each.type for each in events[-2:])}."
            yield _report("closing", detail, *closing)
        if not ends:
            return
        end, delta = ends[-1], ends[-1].inner("delta")
        self._end, self._stopped = end.fields, (end.position,)
        if as_text(delta.get("stop_reason")) not in STOPS:
            yield _report("closing", f"The stop reason is {quote(delta.get('stop_reason'))}.", end)
        if "stop_sequence" not in delta:
            yield _report("fields", "message_delta lacks its stop_sequence.", end)
        null = [name for name in NULLABLE if name not in delta]
        if null:
            yield _report("null-fields", f"message_delta lacks its {', '.join(null)}.", end)
        if as_number(end.inner("usage").get("output_tokens")) is None:
            yield _report("delta-usage", f"message_delta has the usage {quote(end.fields.get('usage'))}.", end)

    def _check_error(self, events: Sequence[ReceivedFrame]) -> Iterator[Finding]:
        errors = [each for each in events if each.type == "error"]
        ends = [each for each in events if each.type in ("message_delta", "message_stop")]
        if errors != [*events[-1:]] or ends:
            detail = "Something follows an error, or the turn ended before it."
            yield _report("error-event", detail, *errors, *ends, *events[-1:])
        for each in errors:
            error = each.inner("error")
            if not (isinstance(error.get("type"), str) and isinstance(error.get("message"), str)):
                yield _report("error-event", f"The error is {quote(each.fields.get('error'))}.", each)

    def _start_block(self, each: ReceivedFrame) -> Iterator[Finding]:
        if self._open is not None:
            yield _report("block-order", "A block starts while another is open.", each)
        index = each.fields.get("index")
        if as_number(index) != len(self._blocks):
            yield _report("block-index", f"A block starts at {quote(index)} where {len(self._blocks)} is next.", each)
        self._open = block = _Block(each.inner("content_block"), each.position)
        self._blocks.append(block)
        for field, empty in EMPTY.get(block.kind, {}).items():
            if block.start.get(field) != empty:
                detail = f"A {block.kind} block starts with the {field} {quote(block.start.get(field))}."
                yield _report("block-start", detail, each)
        if block.kind == "tool_use" and not (as_text(block.start.get("id")) and as_text(block.start.get("name"))):
            yield _report("block-keys", f"A call starts as {quote(block.start)}.", each)

    def _grow_block(self, each: ReceivedFrame) -> Iterator[Finding]:
        delta, block = each.inner("delta"), self._find_open_block(each)
        kind = as_text(delta.get("type"))
        kinds, field = DELTAS.get(kind, ((), ""))
        if block is None:
            index = quote(each.fields.get("index"))
            yield _report("block-order", f"A delta is for block {index}, which is not open.", each)
        elif block.kind not in kinds or (field and not isinstance(delta.get(field), str)):
            yield _report("delta", f"{quote(delta)} comes in a {block.kind} block.", each)
        else:
            yield from block.grow(kind, as_text(delta.get(field)), each)

    def _stop_block(self, each: ReceivedFrame) -> Iterator[Finding]:
        block = self._find_open_block(each)
        if block is None:
            yield _report("block-order", f"Block {quote(each.fields.get('index'))} stops and is not open.", each)
        elif block.kind == "text" and not block.text:
            yield _report("block-empty", "A text block has no text.", each)
        self._open = None

    def _find_open_block(self, each: ReceivedFrame) -> "_Block | None":
        """The open block, if the event is about it."""
        return self._open if as_number(each.fields.get("index")) == len(self._blocks) - 1 else None


class _Block:
    """One block, assembled from its deltas."""

    def __init__(self, start: Json, position: int) -> None:
        self.start = start
        self.kind = as_text(start.get("type"))
        self.pieces: list[tuple[int | None, str]] = []
        self._frames = [position]
        self._is_signed = False

    @property
    def text(self) -> str:
        return "".join(piece for _, piece in self.pieces)

    def grow(self, kind: str, text: str, each: ReceivedFrame) -> Iterator[Finding]:
        self._frames.append(each.position)
        if kind in ("signature_delta", "thinking_delta"):
            if self._is_signed:
                yield _report("delta", "Thinking continues after its signature.", each)
            self._is_signed = kind == "signature_delta"
        if kind != "signature_delta":
            self.pieces.append((each.position, text))

    def make_call(self) -> ObservedCall:
        """The call as an SDK assembles it: without deltas its input is that of its start event."""
        call = _read_call(self.start)
        return msgspec.structs.replace(call, arguments=self.text or call.arguments, frames=tuple(self._frames))


def _read_usage(counts: Json) -> ObservedUsage | None:
    input, output = as_number(counts.get("input_tokens")), as_number(counts.get("output_tokens"))
    cached = [as_number(counts.get(key)) or 0 for key in ("cache_creation_input_tokens", "cache_read_input_tokens")]
    return None if input is None or output is None else ObservedUsage(input + sum(cached), output)


NULLABLE = ("container", "stop_details")
NULLABLE_COUNTS = (
    "cache_creation",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "server_tool_use",
    "service_tier",
)


def _check_fields(message: Json, what: str, *received: ReceivedFrame) -> Iterator[Finding]:
    """Check the fields that only some clients need."""
    lacking = [] if as_text(message.get("model")) else ["model"]
    lacking += [] if "stop_sequence" in message else ["stop_sequence"]
    if lacking:
        yield _report("fields", f"{what} lacks its {', '.join(lacking)}.", *received)
    null = [name for name in NULLABLE if name not in message]
    if isinstance(message.get("usage"), dict):
        null += [f"usage.{name}" for name in NULLABLE_COUNTS if name not in message["usage"]]
    if null:
        yield _report("null-fields", f"{what} lacks its {', '.join(null)}.", *received)


# A plain answer


def check_plain(body: Json, facts: RequestFacts) -> Iterator[Finding]:
    """The findings about a plain answer."""
    about = {key: body.get(key) for key in ("type", "role", "id", "stop_reason")}
    sound = about["type"] == "message" and about["role"] == "assistant" and as_text(about["id"])
    if not sound or as_text(about["stop_reason"]) not in STOPS or not isinstance(body.get("content"), list):
        yield _report("message", f"The answer is {quote(about)} with the content {quote(body.get('content'))}.")
    if _read_usage(as_object(body.get("usage"))) is None:
        yield _report("message", f"The answer has the usage {quote(body.get('usage'))}.")
    yield from _check_fields(body, "The answer")
    for block in as_objects(body.get("content")):
        if block.get("type") == "tool_use":
            if not (as_text(block.get("id")) and as_text(block.get("name"))):
                yield _report("block-keys", f"A call is {quote(block)}.")
            if not isinstance(block.get("input"), dict):
                yield _report("input", f"A call has the input {quote(block.get('input'))}.")
        if block.get("type") == "text" and not block.get("text"):
            yield _report("block-empty", "A text block has no text.")


def plain_turn(body: Json) -> ObservedTurn:
    """The turn in a plain answer."""
    blocks = as_objects(body.get("content"))
    text = tuple((None, as_text(block.get("text"))) for block in blocks if block.get("type") == "text")
    calls = tuple(_read_call(block) for block in blocks if block.get("type") == "tool_use")
    finish = STOPS.get(as_text(body.get("stop_reason")), "")
    return ObservedTurn(text, calls, finish, _read_usage(as_object(body.get("usage"))), as_text(body.get("id")))


def _read_call(block: Json) -> ObservedCall:
    value: Any = block.get("input")
    return ObservedCall(as_text(block.get("id")), as_text(block.get("name")), msgspec.json.encode(value).decode())


FORM = TurnForm(MessagesStream, check_plain, plain_turn)
