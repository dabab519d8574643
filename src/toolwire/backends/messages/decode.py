"""Messages events (or one plain message) to turn events. Blocks come one after the other, so nothing interleaves."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from toolwire.backends.decoder import UNREADABLE, TurnDecoder, checked, counted
from toolwire.backends.failures import FAILED_REASONS, finish_failure, stream_failure
from toolwire.backends.messages.wire import Block, RawContent, ReplyMessage, StreamEvent, TokenUsage
from toolwire.core.backend import ContextWindow
from toolwire.core.batch import delta_fields
from toolwire.core.calls import Fragment
from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    Event,
    MessageEnded,
    Note,
    RawFrame,
    Reason,
    ReasoningDelta,
    ReasoningEnded,
    TextDelta,
    TurnEnded,
    TurnStarted,
    Usage,
)
from toolwire.core.sse import Frame
from toolwire.core.text import arguments_text, is_json

ORIGIN = "messages"
_KNOWN_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")
"""The types of blocks that there are events for."""

_decode_event = msgspec.json.Decoder(StreamEvent).decode
_decode_message = msgspec.json.Decoder(ReplyMessage).decode
_decode_raw_content = msgspec.json.Decoder(RawContent).decode

_TEXT = delta_fields("text", "thinking")
_INPUT = delta_fields("partial_json")

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

_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "thinking_tokens")


class Decoder(TurnDecoder):
    """A stage from frames to turn events, for one turn."""

    delta_fields = (*_TEXT, *_INPUT)
    snapshot_fields = _TEXT

    def __init__(
        self, seed: str, names: Sequence[str] = (), *, snapshots: bool = False, keeps_frames: bool = False
    ) -> None:
        super().__init__(seed, names, snapshots=snapshots, keeps_frames=keeps_frames)
        self._reason = ""
        self._usage: dict[str, float] = {}
        self._blocks: dict[int, Block] = {}
        self._grown: set[int] = set()  # tool blocks whose input came in deltas
        self._last: Fragment | None = None  # the end of a call whose arguments are not JSON

    def feed(self, frame: Frame) -> Sequence[Event]:
        if self.ended:
            return ()
        try:
            event = _decode_event(frame.data)
        except UNREADABLE:
            event = None
        if event is None or self._surrogates.half:
            repaired = self._repaired(frame)
            if repaired is None:
                return ()
            event, frame = repaired
        handler = self._HANDLERS.get(event.type or frame.event.decode("latin-1"))
        if handler is None:
            return self._failed(event) if event.error is not None else ()
        events = handler(self, event) if not self._keeps_frames else self._with_frame(event, frame)
        if self._reason and handler is not Decoder._ignore:
            self.finishing += 1
        if self._started and self._opening:
            behind = 1 if events and isinstance(events[0], TurnStarted) else 0
            events = [*events[:behind], *self._take_opening(), *events[behind:]]
        return self._in_sequence(events) if len(events) != 1 else self._sequencer.feed(events[0])

    def _repaired(self, frame: Frame) -> tuple[StreamEvent, Frame] | None:
        """A frame with split characters joined; None if it cannot be read."""
        if frame.data.strip() == b"[DONE]":
            return None
        data, event = self._read_mended(frame.data, _decode_event)
        if event is None:
            self._skip_frame(frame)
            return None
        return event, Frame(frame.event, data)

    def _with_frame(self, event: StreamEvent, frame: Frame) -> Sequence[Event]:
        """The turn events of an event, with its frame in the delta if it is one, or as a `RawFrame`."""
        type, item = event.type or frame.event.decode("latin-1"), f"{event.index}"
        handler = self._HANDLERS[type]
        match type:
            case "content_block_delta":
                return self._delta_with_frame(event, frame)
            case "content_block_start":
                shown = _block_start(item, frame.data, event.content_block or Block())
                return [*self._close_blocks(), shown, *handler(self, event)]
            case "content_block_stop":
                ended = [MessageEnded(item)] if self._type_at(event.index) == "text" else []
                return [*ended, RawFrame(type, item, frame.data), *handler(self, event)]
            case "message_start" | "message_delta" | "message_stop":
                events = handler(self, event)
                has_failed = self.ended and type != "message_stop"
                return events if has_failed else [RawFrame(type, "", frame.data), *events]
            case _:
                return handler(self, event)

    def _delta_with_frame(self, event: StreamEvent, frame: Frame) -> Sequence[Event]:
        delta = event.delta
        if delta is not None and self._type_at(event.index) in (*_KNOWN_BLOCKS, None):
            events = self._grow(event, frame)
            known = (delta.text, delta.partial_json, delta.thinking, delta.signature)
            if events or any(value is not None for value in known):
                return events
        return (RawFrame("content_block_delta", f"{event.index}", frame.data),)

    def _type_at(self, index: int) -> str | None:
        block = self._blocks.get(index)
        return block.type if block is not None else None

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        body, message = self._read_plain(body, _decode_message)
        if message is None:
            return self.fail(Failure(502, "bad_reply", "The backend's reply is not a message."))
        if message.error is not None:
            return self.fail(stream_failure(message.error))
        if (message.stop_reason or "").lower() in FAILED_REASONS:
            return self.fail(finish_failure(message.stop_reason or ""))
        if message.content is None:
            return self.fail(Failure(502, "bad_reply", "The backend's reply holds no content."))
        out: list[Event] = [*self._start(StreamEvent(message=message)), *self._take_opening()]
        raws = _decode_raw_content(body).content if self._keeps_frames else ()
        if self._keeps_frames:
            out.insert(0, RawFrame("message", "", body))
        for index, block in enumerate(checked(message.content)):
            if self._keeps_frames:
                out += self._close_blocks()
                data = b'{"content_block":' + bytes(raws[index]) + b"}"
                out.append(_block_start(f"{index}", data, block))
            out += self._open_block(StreamEvent(index=index, content_block=block))
            out += self._close_block(StreamEvent(index=index))
        self._reason = message.stop_reason or ""
        return self._in_sequence((*out, *self._stop(StreamEvent())))

    def end(self) -> Sequence[Event]:
        if self.ended:
            return ()
        return self._in_sequence(self._stop(StreamEvent())) if self._reason else self._cut()

    def _start(self, event: StreamEvent) -> Sequence[Event]:
        message = event.message or ReplyMessage()
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
                if block.citations and not self._keeps_frames:
                    out.append(Note("annotations_dropped"))
                item = f"{event.index}" if self._keeps_frames else ""  # so that two text blocks stay separate
                return [*out, TextDelta(block.text, item)] if block.text else out
            case "thinking":
                return [*out, ReasoningDelta(block.thinking)] if block.thinking else out
            case "redacted_thinking":
                return out
            case "tool_use":
                key = f"{event.index}"
                return [*out, *self._table.feed(Fragment("", key, block.id or "", name=block.name or "", named=True))]
            case _:
                return out if self._keeps_frames else [*out, Note("item_dropped", block.type)]

    def _close_blocks(self) -> list[Event]:
        """Close open blocks because another one follows: some servers send no `content_block_stop`."""
        out: list[Event] = []
        for index in sorted(self._blocks):
            out += self._close_block(StreamEvent(index=index))
        last, self._last = self._last, None
        return [*out, *self._table.feed(last)] if last is not None else out

    def _grow(self, event: StreamEvent, frame: Frame | None = None) -> Sequence[Event]:
        """Read a delta, with its frame where frames are kept."""
        delta = event.delta
        if delta is None:
            return ()
        if delta.partial_json is not None:
            block = self._blocks.get(event.index)
            if not delta.partial_json or (block is not None and block.type != "tool_use"):
                return ()
            self._grown.add(event.index)
            key, text = f"{event.index}", delta.partial_json
            more = None if self._snapshots else self._table.extend(key, text, frame)
            if more is not None:
                return (more,)
            events = self._table.feed(Fragment(text, key, total=self._snapshots))
            return [CallArgs(each.id, each.text, frame) if isinstance(each, CallArgs) else each for each in events]
        if delta.text:
            item = "" if frame is None else f"{event.index}"
            return [*self._ensured(), TextDelta(delta.text, item, frame=frame)]
        if delta.thinking:
            return [*self._ensured(), ReasoningDelta(delta.thinking, frame=frame)]
        block = self._blocks.get(event.index)
        if delta.signature and block is not None:
            block.signature = delta.signature  # the last one counts; they are not joined
        elif delta.type == "citations_delta" and not self._keeps_frames:
            return [Note("annotations_dropped")]
        return ()

    def _close_block(self, event: StreamEvent) -> Sequence[Event]:
        block = self._blocks.pop(event.index, None)
        if block is None:
            return ()
        match block.type:
            case "thinking":
                return [ReasoningEnded("", block.signature or "", ORIGIN)]
            case "redacted_thinking":
                return [ReasoningEnded("", block.data or "", ORIGIN, redacted=True)]
            case "tool_use":
                last = self._last_fragment(event.index, block)
                call = next((each for each in reversed(self._table.calls) if each.item == last.item), None)
                if last.text or call is None or is_json(call.text):
                    return self._table.feed(last)
                self._last = last  # perhaps cut: the end of the turn decides
                return ()
            case _:
                return ()

    def _last_fragment(self, index: int, block: Block) -> Fragment:
        """The end of a call. An input that came whole at the start is used if no delta followed."""
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
                return self.fail(finish_failure(self._reason))
        self._count(event.usage)
        return ()

    def _stop(self, event: StreamEvent) -> Sequence[Event]:
        out = self._ensured()
        if self._surrogates.half:
            out.append(Note("letter_replaced"))
        for index in sorted(self._blocks):
            out += self._close_block(StreamEvent(index=index))
        reason = self._finish_reason(out)
        if self._last is not None:
            out += self._table.feed(msgspec.structs.replace(self._last, complete=reason == "stop"))
        out += self._table.finish(cut=reason != "stop")
        if self._usage:
            out.append(self._counted())
        self.ended = True
        return [*out, TurnEnded(reason)]

    def _finish_reason(self, out: list[Event]) -> Reason:
        given = self._reason
        if given == "pause_turn":
            out += () if self._keeps_frames else (Note("turn_paused"),)
            return "stop"
        if given == "tool_use" and not self._table.calls:
            out.append(Note("reason_unfounded", given))
        if given == "model_context_window_exceeded":
            self.context_window = ContextWindow(is_full=True)
        if given not in _REASONS and not (given and self._keeps_frames):
            out.append(Note("reason_unknown", given) if given else Note("reason_missing"))
        return _REASONS.get(given, "stop")

    def _failed(self, event: StreamEvent) -> Sequence[Event]:
        return self.fail(stream_failure(event.error))

    def _ignore(self, event: StreamEvent) -> Sequence[Event]:
        return ()

    def _count(self, usage: TokenUsage | None) -> None:
        """Take token counts. They are running totals: the last number wins, and a missing one changes nothing."""
        if usage is None:
            return
        counts = {**(usage.output_tokens_details or {}), **msgspec.structs.asdict(usage)}
        self._usage |= {name: counts[name] for name in _COUNTS if isinstance(counts.get(name), int | float)}

    def _counted(self) -> Usage:
        fresh, output, cached, written, thinking = (counted(self._usage.get(name)) for name in _COUNTS)
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


def _block_start(about: str, data: bytes, block: Block) -> RawFrame:
    """A frame in which a block begins."""
    call = block.tool_use_id or ""
    answers = call if block.type == "tool_result" and isinstance(call, str) else None
    return RawFrame("content_block_start", about, data, answers, block.type not in _KNOWN_BLOCKS)
