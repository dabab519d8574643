"""Decodes Messages events (or one plain message) to turn events.

Some servers have several blocks open at once, and some never stop a block. So the first open block is read as it comes,
and the events of later blocks wait until it ends:

- with its stop, or with the turn;
- when another block starts, if its own input or signature is complete;
- when a later block grows, if it is not a call and has not grown since that block started.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from toolwire.backends.decoder import UNREADABLE, TurnDecoder, as_count, check_count
from toolwire.backends.failures import FAILED_REASONS, make_finish_failure, make_stream_failure
from toolwire.backends.messages.wire import Block, ReplyMessage, StreamEvent, TokenUsage
from toolwire.core.backend import ContextWindow
from toolwire.core.batch import find_delta_openings
from toolwire.core.call_index import Fragment
from toolwire.core.errors import BackendFault, Failure
from toolwire.core.events import (
    FILTER_REASONS,
    CallArgs,
    Delta,
    Event,
    MessageEnded,
    Note,
    RawFrame,
    Reason,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnStarted,
    Usage,
)
from toolwire.core.lane import Check
from toolwire.core.raw import arguments_text, fields_of, list_of
from toolwire.core.sequence import MAX_HELD_CHARS
from toolwire.core.sse import Frame
from toolwire.core.text import is_json

DIALECT = "messages"
"""The dialect of this backend's protocol, and the origin of its signatures."""
_KNOWN_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")
"""The types of blocks that turn events represent."""

_decode_event = msgspec.json.Decoder(StreamEvent).decode
_decode_lax = msgspec.json.Decoder(StreamEvent, strict=False).decode  # numbers may be strings
_decode_message = msgspec.json.Decoder(ReplyMessage).decode

_TEXT = find_delta_openings("text", "thinking")
_INPUT = find_delta_openings("partial_json")

_REASONS: dict[str, Reason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "stop",
    "compaction": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    **dict.fromkeys(FILTER_REASONS, "filter"),
}

_STARTS = ("content_block_start", b"content_block_start")
_OF_BLOCKS = frozenset(("content_block_start", "content_block_delta", "content_block_stop"))
_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "thinking_tokens")

EVENTS_BEFORE_SIGNATURE = 64
"""After this many events of the next block, open reasoning is no longer expected to be signed."""


class _Waiting(msgspec.Struct):
    """A block behind the open one."""

    start: int
    """Its number among all starts; 0 if it continues a block that was closed without a stop."""
    grown: int
    """The number of starts when it last grew."""
    events: list[tuple[StreamEvent, Frame]] = []


class Decoder(TurnDecoder):
    """A stage from frames to turn events, for one turn."""

    delta_fields = (*_TEXT, *_INPUT)
    snapshot_fields = _TEXT

    def __init__(
        self, seed: str, names: Sequence[str] = (), *, snapshots: bool = False, keeps_frames: bool = False
    ) -> None:
        super().__init__(seed, names, snapshots=snapshots, keeps_frames=keeps_frames)
        self._reason = self._explanation = ""
        self._usage: dict[str, float] = {}
        self._blocks: dict[int, Block] = {}  # the open block
        self._waiting: dict[int, _Waiting] = {}  # those behind it, in their order
        self._left: dict[int, Block] = {}  # blocks that were closed without a stop, except calls
        self._starts = 0  # blocks that have started
        self._grown = 0  # the number of starts when the open block last grew
        self._held_bytes = 0  # bytes of the events that wait
        self._held_deltas = 0  # deltas that had to wait so far
        self._was_tested = False  # `_is_over` has tested the open block

    @property
    def held(self) -> int:
        return self._held_deltas + super().held

    def feed(self, frame: Frame) -> Sequence[Event]:
        if self.ended:
            return ()
        try:
            event = _decode_event(frame.data)
        except UNREADABLE:
            event = None
        if event is None or self._surrogates.half:
            repaired = self._repair(frame)
            if repaired is None:
                return ()
            event, frame = repaired
        type = event.type or frame.event.decode("latin-1")
        handler = self._HANDLERS.get(type)
        if handler is None:
            if event.error is None and type != "error":
                return ()  # a ping, or an event that we do not know
            notes = self._take_opening() if self._started else []
            return [*notes, *self.fail(make_stream_failure(event.error))]
        if type == "content_block_start" or ((self._waiting or self._left) and type in _OF_BLOCKS):
            events = self._put_in_order(event, frame)
        else:
            events = handler(self, event) if not self._keeps_frames else self._read_with_frame(event, frame)
        if self._reason:
            self.finishing += 1
        if self._started and self.opening:
            behind = 1 if events and isinstance(events[0], TurnStarted) else 0
            events = [*events[:behind], *self._take_opening(), *events[behind:]]
        return self._put_in_sequence(events) if len(events) != 1 else self._sequencer.feed(events[0])

    def find_check(self, delta: Delta) -> Check | None:
        return self._check_text(delta) if not (self._waiting or self._left or self._reason) else None

    def _repair(self, frame: Frame) -> tuple[StreamEvent, Frame] | None:
        """A frame with split characters joined; None if it cannot be read."""
        if frame.data.strip() == b"[DONE]":
            return None
        data, event = self._read_mended(frame.data, _decode_lax)
        if event is None:
            self._skip_frame(frame)
            return None
        return event, Frame(frame.event, data)

    def _put_in_order(self, event: StreamEvent, frame: Frame) -> list[Event]:
        """Read an event about a block, or let it wait for the end of the open block."""
        index, out = event.index, list[Event]()
        if (event.type or frame.event) in _STARTS:
            self._starts += 1
            if index not in self._waiting:
                while self._blocks and (index in self._blocks or self._is_over()):
                    out += [*self._close_blocks(), *self._read_next_blocks()]
                if self._blocks:
                    self._waiting[index] = _Waiting(self._starts, self._starts)
        elif index in self._left and index not in self._blocks and index not in self._waiting:
            late = self._read_late(event)
            if late is not None:
                return late
            # Late content is read at once if the open block is text, or already divided.
            if all(block.type == "text" or index in self._left for index, block in self._blocks.items()):
                out += self._close_blocks()
            else:
                self._waiting[index] = _Waiting(0, self._starts)
        elif _has_content(event):
            out += self._close_left_blocks(index)
        if index in self._waiting:
            self._waiting[index].events.append((event, frame))
            self._held_deltas += _has_content(event)
            self._held_bytes += len(frame.data)
            if self._held_bytes > MAX_HELD_CHARS:
                message = f"More than {MAX_HELD_CHARS} bytes wait behind an open block."
                raise BackendFault(Failure(502, "call_too_large", message))
            return out
        out += self._read(event, frame)
        return [*out, *self._read_next_blocks()]

    def _close_left_blocks(self, index: int) -> list[Event]:
        """Close open blocks that have not grown since the start of this one, which is growing."""
        out: list[Event] = []
        if index in self._blocks:
            self._grown = self._starts
        elif index in self._waiting:
            waiting = self._waiting[index]
            waiting.grown = self._starts
            while self._blocks and index in self._waiting and self._is_left(waiting):
                out += [*self._close_blocks(), *self._read_next_blocks()]
        return out

    def _is_left(self, waiting: _Waiting) -> bool:
        """Whether the open block is complete, or has not grown since the start of this one.

        A call waits for its input; reasoning waits a while for its signature.
        """
        [block] = self._blocks.values()
        if block.type == "tool_use" or (self._keeps_frames and block.type not in _KNOWN_BLOCKS):
            return False
        if _is_signed(block):
            return True
        is_late = block.type != "thinking" or len(waiting.events) >= EVENTS_BEFORE_SIGNATURE
        return is_late and self._grown < waiting.start

    def _read_late(self, event: StreamEvent) -> list[Event] | None:
        """Handle the stop or a late delta of a block that was closed without a stop; None if it has more content."""
        delta, left = event.delta, self._left[event.index]
        if delta is None:
            del self._left[event.index]
            return []
        if delta.text or delta.thinking or (delta.signature and left.type == "thinking" and _is_blank(left)):
            return None
        if delta.signature and delta.signature != left.signature:
            return [Note("signature_late")]
        return [Note("annotations_dropped")] if delta.type == "citations_delta" else []

    def _is_over(self) -> bool:
        """Whether the open block is complete. Tested once, when another block starts."""
        if self._was_tested:
            return False
        self._was_tested = True
        [(index, block)] = self._blocks.items()
        if block.type == "tool_use":
            call = self._table.find_latest(f"{index}")
            return call is not None and is_json(call.text)
        return _is_signed(block)

    def _read_next_blocks(self) -> list[Event]:
        """Read waiting events until a block is open."""
        out: list[Event] = []
        while self._waiting and not self._blocks:
            waiting = self._waiting.pop(next(iter(self._waiting)))
            for event, frame in waiting.events:
                self._held_bytes -= len(frame.data)
                out += self._read(event, frame)
            self._grown = waiting.grown
        return out

    def _read(self, event: StreamEvent, frame: Frame) -> Sequence[Event]:
        left = self._left.get(event.index)
        if left is not None and event.delta is not None and event.index not in self._blocks:
            out = self._close_blocks()
            self._blocks[event.index] = Block(left.type)
            self._grown = self._starts
            if _is_blank(left):
                del self._left[event.index]  # nothing of it has been delivered
            return [*out, *self._read(event, frame)]
        if self._keeps_frames:
            return self._read_with_frame(event, frame)
        return self._HANDLERS[event.type or frame.event.decode("latin-1")](self, event)

    def _read_with_frame(self, event: StreamEvent, frame: Frame) -> Sequence[Event]:
        """The turn events of an event. A delta keeps its frame; any other frame becomes a `RawFrame`."""
        type, item = event.type or frame.event.decode("latin-1"), f"{event.index}"
        handler = self._HANDLERS[type]
        match type:
            case "content_block_delta":
                delta = event.delta
                if delta is not None and self._type_at(event.index) in (*_KNOWN_BLOCKS, None):
                    events = self._grow(event, frame)
                    known = (delta.text, delta.partial_json, delta.thinking, delta.signature)
                    if events or any(value is not None for value in known):
                        return events
                return (RawFrame(type, item, frame.data),)
            case "content_block_start":
                shown = _make_block_start(item, frame.data, event.content_block or Block())
                return [*self._close_blocks(), shown, *handler(self, event)]
            case "content_block_stop":
                ended = [MessageEnded(item)] if self._type_at(event.index) == "text" else []
                return [*ended, RawFrame(type, item, frame.data), *handler(self, event)]
            case _:  # about the message
                return [RawFrame(type, "", frame.data), *handler(self, event)]

    def _type_at(self, index: int) -> str | None:
        return self._blocks[index].type if index in self._blocks else None

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        body, message = self._read_plain(body, _decode_message)
        if message is None:
            return self.fail(Failure(502, "bad_reply", "The backend's reply is not a message."))
        if message.error is not None:
            return self.fail(make_stream_failure(message.error))
        if (message.stop_reason or "").lower() in FAILED_REASONS:
            return self.fail(make_finish_failure(message.stop_reason or ""))
        if message.content is None:
            return self.fail(Failure(502, "bad_reply", "The backend's reply holds no content."))
        out: list[Event] = [*self._start(StreamEvent(message=message)), *self._take_opening()]
        raws = list_of(fields_of(body)["content"]) if self._keeps_frames else ()
        if self._keeps_frames:
            out.insert(0, RawFrame("message", "", body))
        for index, block in enumerate(check_count(message.content)):
            if self._keeps_frames:
                out += self._close_blocks()
                data = b'{"content_block":' + bytes(raws[index]) + b"}"
                out.append(_make_block_start(f"{index}", data, block))
            out += self._open_block(StreamEvent(index=index, content_block=block))
            out += self._close_block(StreamEvent(index=index))
        self._reason, self._explanation = message.stop_reason or "", _explanation_of(message.stop_details)
        return self._put_in_sequence((*out, *self._stop(StreamEvent())))

    def end(self) -> Sequence[Event]:
        if self.ended:
            return ()
        return self._put_in_sequence(self._stop(StreamEvent())) if self._reason else self._fail_cut()

    def _start(self, event: StreamEvent) -> list[Event]:
        message = event.message or ReplyMessage()
        self._count_tokens(message.usage)
        if self._started:
            return []
        self._started = True
        return [TurnStarted(message.id or "", message.model or "")]

    def _open_block(self, event: StreamEvent) -> Sequence[Event]:
        block = event.content_block or Block()
        out = [*self._start(StreamEvent()), *self._close_blocks()]
        self._blocks[event.index] = block
        self._left.pop(event.index, None)
        self._grown = self._starts
        self._was_tested = False
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
                fragment = Fragment(
                    "", f"{event.index}", block.id or "", event.index, name=block.name or "", named=True
                )
                return [*out, *self._table.feed(msgspec.structs.replace(fragment, default=_input_of(block)))]
            case _:
                return out if self._keeps_frames else [*out, Note("item_dropped", block.type)]

    def _close_blocks(self) -> list[Event]:
        """Close the open block because another one follows."""
        out: list[Event] = []
        for index, block in tuple(self._blocks.items()):
            out += self._close_block(StreamEvent(index=index))
            if block.type not in ("tool_use", "redacted_thinking"):
                self._left[index] = block
            if block.type == "text" and self._keeps_frames:
                out += [MessageEnded(f"{index}"), RawFrame("content_block_stop", f"{index}", b"{}")]
        return [*out, *self._table.close_block()]

    def _grow(self, event: StreamEvent, frame: Frame | None = None) -> Sequence[Event]:
        """Read a delta, with its frame where frames are kept."""
        delta = event.delta
        if delta is None:
            return ()
        if delta.partial_json is not None:
            block = self._blocks.get(event.index)
            if not delta.partial_json or (block is not None and block.type != "tool_use"):
                return ()
            key, text = f"{event.index}", delta.partial_json
            more = None if self._snapshots else self._table.extend(key, text, frame)
            if more is not None:
                return (more,)
            events = self._table.feed(Fragment(text, key, index=event.index, total=self._snapshots, early=True))
            return [
                CallArgs(each.id, text, frame) if isinstance(each, CallArgs) and each.text == text else each
                for each in events
            ]
        if delta.text:
            item = "" if frame is None else f"{event.index}"
            return [*self._start(StreamEvent()), TextDelta(delta.text, item, frame=frame)]
        block = self._blocks.get(event.index)
        if delta.thinking:
            if block is not None:
                block.thinking = delta.thinking
            return [*self._start(StreamEvent()), ReasoningDelta(delta.thinking, frame=frame)]
        if delta.signature and event.index in self._left:
            return [Note("signature_late")]  # part of the signed text was delivered without it
        if delta.signature and block is not None:
            block.signature = delta.signature  # the last one counts
        elif delta.type == "citations_delta" and not self._keeps_frames:
            return [Note("annotations_dropped")]
        return ()

    def _close_block(self, event: StreamEvent) -> Sequence[Event]:
        block = self._blocks.pop(event.index, None)
        if block is None:
            return ()
        self._left.pop(event.index, None)
        match block.type:
            case "thinking":
                return [ReasoningEnded("", block.signature or "", DIALECT)]
            case "redacted_thinking":
                return [ReasoningEnded("", block.data or "", DIALECT, redacted=True)]
            case "tool_use":
                return self._table.end_block(Fragment("", f"{event.index}", ended=True, early=True))
            case _:
                return ()

    def _read_message_delta(self, event: StreamEvent) -> Sequence[Event]:
        if event.delta is not None and event.delta.stop_reason:
            self._reason = event.delta.stop_reason
            self._explanation = _explanation_of(event.delta.stop_details)
            if self._reason.lower() in FAILED_REASONS:
                self._failure = make_finish_failure(self._reason)
        self._count_tokens(event.usage)
        return ()

    def _stop(self, event: StreamEvent) -> Sequence[Event]:
        if self._failure is not None:
            return self._fail_cut()
        out = self._start(StreamEvent())
        if self._surrogates.half:
            out.append(Note("letter_replaced"))
        while self._blocks:
            last = StreamEvent(index=next(iter(self._blocks)))
            out += self._close_blocks() if self._waiting else self._close_block(last)
            out += self._read_next_blocks()
        reason = self._finish_reason(out)
        out += self._table.close_block(complete=reason == "stop")
        out += self._table.drop_unclaimed()
        out += self._table.finish(cut=reason != "stop")
        if self._usage:
            fresh, output, cached, written, thinking = (as_count(self._usage.get(name)) for name in _COUNTS)
            out.append(Usage(fresh + cached + written, output, cached, written, thinking))
        self.ended = True
        return [*out, TurnEnded(reason)]

    def _finish_reason(self, out: list[Event]) -> Reason:
        given = self.given_reason = self._reason
        if given == "pause_turn":
            out += () if self._keeps_frames else (Note("turn_paused"),)
            return "stop"
        if given == "tool_use" and not self._table.calls:
            out.append(Note("reason_unfounded", given))
        if given == "model_context_window_exceeded":
            self.context_window = ContextWindow(is_full=True)
        reason = _REASONS.get(given.lower())
        if reason is None and not (given and self._keeps_frames):
            out.append(Note("reason_unknown", given) if given else Note("reason_missing"))
        if reason == "filter" and self._explanation and not self._keeps_frames:
            out.append(RefusalDelta(self._explanation))
        return reason or "stop"

    def _count_tokens(self, usage: TokenUsage | None) -> None:
        """Store token counts. They are running totals: the last number wins, and a missing one changes nothing."""
        if usage is None:
            return
        counts = {**(usage.output_tokens_details or {}), **msgspec.structs.asdict(usage)}
        self._usage |= {name: counts[name] for name in _COUNTS if isinstance(counts.get(name), int | float)}

    _HANDLERS: ClassVar[dict[str, Callable[[Any, StreamEvent], Sequence[Event]]]] = {
        "content_block_delta": _grow,
        "content_block_start": _open_block,
        "content_block_stop": _close_block,
        "message_start": _start,
        "message_delta": _read_message_delta,
        "message_stop": _stop,
    }


def _has_content(event: StreamEvent) -> bool:
    delta = event.delta
    return delta is not None and bool(delta.text or delta.thinking or delta.partial_json or delta.signature)


def _is_signed(block: Block) -> bool:
    """Whether this is complete reasoning."""
    return block.type == "redacted_thinking" or bool(block.type == "thinking" and block.signature)


def _is_blank(block: Block) -> bool:
    """Whether the block has neither reasoning nor a signature."""
    return not (block.thinking or block.signature)


def _explanation_of(details: Any) -> str:
    """The server's explanation of a refusal, from `stop_details`."""
    explanation: Any = details.get("explanation") if isinstance(details, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return explanation if isinstance(explanation, str) else ""


def _input_of(block: Block) -> str:
    """An input that came whole at the start; some servers write it as a string of JSON."""
    given = b"" if block.input is msgspec.UNSET else bytes(block.input).strip()
    text = arguments_text(msgspec.Raw(given)) if given.startswith(b'"') else given.decode()
    return "" if text.strip() in ("", "{}", "null") else text


def _make_block_start(about: str, data: bytes, block: Block) -> RawFrame:
    """A frame in which a block begins."""
    call = block.tool_use_id or ""
    answers = call if block.type == "tool_result" and isinstance(call, str) else None
    return RawFrame("content_block_start", about, data, answers, block.type not in _KNOWN_BLOCKS)
