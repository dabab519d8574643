"""Messages events (or one plain message) to turn events. Blocks come one after the other, so nothing interleaves."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from toolwire.backends.decoder import UNREADABLE, TurnDecoder, counted
from toolwire.backends.failures import FAILED_REASONS, Error, failed, failed_reason
from toolwire.backends.messages.wire import Block, Message, StreamEvent, TokenUsage, Written
from toolwire.core.backend import ContextWindow
from toolwire.core.errors import Failure
from toolwire.core.events import (
    SPOKEN_BLOCKS,
    CallArgs,
    Event,
    MessageEnded,
    Note,
    Reason,
    ReasoningDelta,
    ReasoningEnded,
    TextDelta,
    Told,
    TurnEnded,
    TurnStarted,
    Usage,
)
from toolwire.core.identity import Fragment
from toolwire.core.pieces import flowing
from toolwire.core.sse import Frame
from toolwire.core.text import arguments_text, is_json

ISSUER = "messages"

_decode_event = msgspec.json.Decoder(StreamEvent).decode
_decode_message = msgspec.json.Decoder(Message).decode
_decode_written = msgspec.json.Decoder(Written).decode

_TEXT = flowing("text", "thinking")
_TEXT_AND_INPUT = (*_TEXT, *flowing("partial_json"))

_REASONS: dict[str, Reason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "stop",
    "compaction": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "filter",
    "content_filtered": "filter",
    "guardrail_intervened": "filter",
}


class Decoder(TurnDecoder):
    """A stage from frames to turn events, for one turn. `keeps_frames`: the client speaks this dialect too.

    `snapshots`: a `partial_json` is all of the input so far.
    """

    flowing = _TEXT_AND_INPUT

    def __init__(
        self, seed: str, names: Sequence[str] = (), *, snapshots: bool = False, keeps_frames: bool = False
    ) -> None:
        super().__init__(seed, names)
        self._keeps = keeps_frames
        self._snapshots = snapshots
        if snapshots:
            self.flowing = _TEXT  # totals must not be joined
        self._reason = ""
        self._usage: dict[str, float] = {}
        self._blocks: dict[int, Block] = {}
        self._grown: set[int] = set()  # tool blocks whose input came in pieces
        self._last: Fragment | None = None  # the end of a call whose arguments are no JSON

    def feed(self, frame: Frame) -> Sequence[Event]:
        if self.ended:
            return ()
        try:
            event = _decode_event(frame.data)
        except UNREADABLE:
            event = None
        if event is None or self._halves.half:
            mended = self._mended(frame)
            if mended is None:
                return ()
            event, frame = mended
        handler = self._HANDLERS.get(event.type or frame.event.decode("latin-1"))
        if handler is None:
            return self._failed(event) if event.error is not None else ()
        events = handler(self, event) if not self._keeps else self._kept(event, frame)
        if self._reason and handler is not Decoder._ignore:
            self.finishing += 1
        if self._started and self._opening:
            opening, self._opening = self._opening, []
            behind = 1 if events and isinstance(events[0], TurnStarted) else 0
            events = [*events[:behind], *opening, *events[behind:]]
        return [out for each in events for out in self._row.feed(each)]

    def _mended(self, frame: Frame) -> tuple[StreamEvent, Frame] | None:
        """A frame with the letters whole that were cut in half; None if it cannot be read."""
        if frame.data.strip() == b"[DONE]":
            return None
        data = self._made_whole(frame.data)
        try:
            return _decode_event(data), Frame(frame.event, data)
        except UNREADABLE:
            self._skip_frame(frame)
            return None

    def _kept(self, event: StreamEvent, frame: Frame) -> Sequence[Event]:
        """An event's events with the frame itself: in the delta, if it is one, or told beside them."""
        type, about = event.type or frame.event.decode("latin-1"), f"{event.index}"
        told = Told(type, about, frame.data, event.content_block.type if event.content_block is not None else "")
        handler = self._HANDLERS[type]
        match type:
            case "content_block_delta":
                return self._kept_delta(event, frame, told)
            case "content_block_start":
                return [*self._close_blocks(), told, *handler(self, event)]
            case "content_block_stop":
                ended = [MessageEnded(about)] if self._type_at(event.index) == "text" else []
                return [*ended, told, *handler(self, event)]
            case "message_start" | "message_delta" | "message_stop":
                events = handler(self, event)
                has_failed = self.ended and type != "message_stop"
                return events if has_failed else [Told(type, "", frame.data), *events]
            case _:
                return handler(self, event)

    def _kept_delta(self, event: StreamEvent, frame: Frame, told: Told) -> Sequence[Event]:
        type, delta = self._type_at(event.index), event.delta
        if delta is None or type not in (*SPOKEN_BLOCKS, None):
            return (told,)
        events = self._grow(event)
        if events or delta.signature is not None or delta.partial_json is not None:
            return [_framed(each, event.index, frame) for each in events]
        return () if delta.text is not None or delta.thinking is not None else (told,)

    def _type_at(self, index: int) -> str | None:
        block = self._blocks.get(index)
        return block.type if block is not None else None

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        try:
            message = _decode_message(body)
        except UNREADABLE:
            body = self._made_whole(body)
            try:
                message = _decode_message(body)
            except UNREADABLE:
                return self._fail(Failure(502, "bad_reply", "The backend's reply is not a message."))
        if message.error is not None:
            return self._fail(_failure(message.error))
        if (message.stop_reason or "").lower() in FAILED_REASONS:
            return self._fail(failed_reason(message.stop_reason or ""))
        if message.content is None:
            return self._fail(Failure(502, "bad_reply", "The backend's reply holds no content."))
        out: list[Event] = [*self._start(StreamEvent(message=message)), *self._opening]
        self._opening = []
        written = _decode_written(body).content if self._keeps else ()
        if self._keeps:
            out.insert(0, Told("message", "", body))
        for place, block in enumerate(message.content):
            if self._keeps:
                out += self._close_blocks()
                data = b'{"content_block":' + bytes(written[place]) + b"}"
                out.append(Told("content_block_start", f"{place}", data, block.type))
            opened = self._open_block(StreamEvent(index=place, content_block=block))
            out += [_placed(event, place) for event in opened] if self._keeps else opened
            out += self._close_block(StreamEvent(index=place))
        self._reason = message.stop_reason or ""
        return [out for each in (*out, *self._stop(StreamEvent())) for out in self._row.feed(each)]

    def end(self) -> Sequence[Event]:
        if self.ended:
            return ()
        if not self._reason:
            return self._cut()
        return [out for each in self._stop(StreamEvent()) for out in self._row.feed(each)]

    def _start(self, event: StreamEvent) -> Sequence[Event]:
        message = event.message or Message()
        self._count(message.usage)
        if self._started:
            return ()
        self._started = True
        return [TurnStarted(message.id or "", message.model or "")]

    def _ensured(self) -> list[Event]:
        return [] if self._started else [*self._start(StreamEvent())]

    def _open_block(self, event: StreamEvent) -> Sequence[Event]:
        block = event.content_block or Block()
        out = [*self._ensured(), *self._close_blocks()]
        self._blocks[event.index] = block
        match block.type:
            case "text":
                if block.citations and not self._keeps:
                    out.append(Note("annotations_dropped"))
                return [*out, TextDelta(block.text)] if block.text else out
            case "thinking":
                return [*out, ReasoningDelta(block.thinking)] if block.thinking else out
            case "redacted_thinking":
                return out
            case "tool_use":
                key = f"{event.index}"
                return [*out, *self._table.feed(Fragment("", key, block.id or "", name=block.name or "", named=True))]
            case _:
                return out if self._keeps else [*out, Note("item_dropped", block.type)]

    def _close_blocks(self) -> list[Event]:
        """Something follows: what is open is over, although some servers do not say so, and was not cut."""
        out: list[Event] = []
        for index in sorted(self._blocks):
            out += self._close_block(StreamEvent(index=index))
        last, self._last = self._last, None
        return [*out, *self._table.feed(last)] if last is not None else out

    def _grow(self, event: StreamEvent) -> Sequence[Event]:
        delta = event.delta
        if delta is None:
            return ()
        if delta.partial_json is not None:
            known = self._blocks.get(event.index)
            if not delta.partial_json or (known is not None and known.type != "tool_use"):
                return ()
            self._grown.add(event.index)
            key, text = f"{event.index}", delta.partial_json
            more = None if self._snapshots else self._table.extend(key, text)
            return (more,) if more is not None else self._table.feed(Fragment(text, key, total=self._snapshots))
        if delta.text:
            return [*self._ensured(), TextDelta(delta.text)]
        if delta.thinking:
            return [*self._ensured(), ReasoningDelta(delta.thinking)]
        block = self._blocks.get(event.index)
        if delta.signature and block is not None:
            block.signature = delta.signature  # the last one counts; they are not joined
        elif delta.type == "citations_delta" and not self._keeps:
            return [Note("annotations_dropped")]
        return ()

    def _close_block(self, event: StreamEvent) -> Sequence[Event]:
        block = self._blocks.pop(event.index, None)
        if block is None:
            return ()
        match block.type:
            case "thinking":
                return [ReasoningEnded("", block.signature or "", ISSUER)]
            case "redacted_thinking":
                return [ReasoningEnded("", block.data or "", ISSUER, redacted=True)]
            case "tool_use":
                last = self._last_fragment(event.index, block)
                call = next((each for each in self._table.calls if each.item == last.item), None)
                if last.text or call is None or is_json(call.text):
                    return self._table.feed(last)
                self._last = last  # half of it, perhaps: the end of the turn will tell
                return ()
            case _:
                return ()

    def _last_fragment(self, index: int, block: Block) -> Fragment:
        """A call's end. An input that was given whole at the start counts if nothing came after it."""
        given = b"" if block.input is msgspec.UNSET else bytes(block.input).strip()
        # Some servers write the input as a string that holds its JSON.
        text = arguments_text(msgspec.Raw(given)) if given.startswith(b'"') else given.decode()
        if index in self._grown or text.strip() in ("", "{}", "null"):
            return Fragment("", f"{index}", ended=True)
        return Fragment(text, f"{index}", total=True, ended=True)

    def _change(self, event: StreamEvent) -> Sequence[Event]:
        if event.delta is not None and event.delta.stop_reason:
            self._reason = event.delta.stop_reason
            if self._reason.lower() in FAILED_REASONS:
                return self._fail(failed_reason(self._reason))
        self._count(event.usage)
        return ()

    def _stop(self, event: StreamEvent) -> Sequence[Event]:
        out = self._ensured()
        if self._halves.half:
            out.append(Note("letter_replaced"))
        for index in sorted(self._blocks):
            out += self._close_block(StreamEvent(index=index))
        reason = self._known_reason(out)
        if self._last is not None:
            out += self._table.feed(msgspec.structs.replace(self._last, complete=reason == "stop"))
        out += self._table.finish(cut=reason != "stop")
        if self._usage:
            out.append(self._counted())
        self.ended = True
        return [*out, TurnEnded(reason)]

    def _known_reason(self, out: list[Event]) -> Reason:
        given = self._reason
        if given == "pause_turn":
            out += () if self._keeps else (Note("turn_paused"),)
            return "stop"
        if given == "tool_use" and not self._table.calls:
            out.append(Note("reason_unfounded", given))
        if given == "model_context_window_exceeded":
            self.context_window = ContextWindow(is_full=True)
        if given not in _REASONS and not (given and self._keeps):
            out.append(Note("reason_unknown", given) if given else Note("reason_missing"))
        return _REASONS.get(given, "stop")

    def _failed(self, event: StreamEvent) -> Sequence[Event]:
        return self._fail(_failure(event.error))

    def _ignore(self, event: StreamEvent) -> Sequence[Event]:
        return ()

    def _count(self, usage: TokenUsage | None) -> None:
        """Counters are running totals: the last number stands, and one that is missing changes nothing."""
        if usage is None:
            return
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            value = getattr(usage, name)
            if value is not None:
                self._usage[name] = value
        thinking = (usage.output_tokens_details or {}).get("thinking_tokens")
        if isinstance(thinking, int | float):
            self._usage["thinking_tokens"] = thinking

    def _counted(self) -> Usage:
        fresh, output, cached, written, thinking = (
            counted(self._usage.get(name))
            for name in (
                "input_tokens",
                "output_tokens",
                "cache_read_input_tokens",
                "cache_creation_input_tokens",
                "thinking_tokens",
            )
        )
        return Usage(fresh + cached + written, output, cached, written, thinking)

    _HANDLERS: ClassVar[dict[str, Callable[[Any, StreamEvent], Sequence[Event]]]] = {
        "content_block_delta": _grow,
        "content_block_start": _open_block,
        "content_block_stop": _close_block,
        "message_start": _start,
        "message_delta": _change,
        "message_stop": _stop,
        "error": _failed,
        "ping": _ignore,
    }


def _framed(event: Event, index: int, frame: Frame) -> Event:
    match event:
        case CallArgs(id, text):
            return CallArgs(id, text, frame)
        case TextDelta(text):
            return TextDelta(text, f"{index}", frame=frame)
        case ReasoningDelta(text, kind, part):
            return ReasoningDelta(text, kind, part, frame=frame)
        case _:
            return event


def _placed(event: Event, index: int) -> Event:
    """A text with its place, so that two blocks stay two."""
    return TextDelta(event.text, f"{index}") if isinstance(event, TextDelta) else event


def _failure(given: Any) -> Failure:
    try:
        error = msgspec.convert(given, Error)
    except msgspec.ValidationError:
        error = Error(message=given if isinstance(given, str) else None)
    return failed(error)
