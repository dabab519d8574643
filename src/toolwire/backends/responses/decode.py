"""Decodes Responses events (or one plain response) to turn events.

The same content arrives up to four times: as deltas, in a `.done`, in `output_item.done` and in the final `output`. The
first is delivered; the others add only what was missing. Servers may omit any of the four. Frames about calls are
read as in the public aggregator (`core/shapes.py`).

For a client that speaks Responses too, deltas keep their frames and every other frame becomes a `RawFrame`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import msgspec

from toolwire.backends.decoder import UNREADABLE, TurnDecoder, check_count, usage_of
from toolwire.backends.failures import Error, complete_error, make_stream_failure
from toolwire.backends.phases import PhasedMessages
from toolwire.backends.responses.tracker import ItemTracker, TrackedItem
from toolwire.backends.responses.wire import (
    DIALECT,
    ReplyItem,
    Response,
    StreamEvent,
    make_loose_payload,
    read_documented_event,
    read_documented_item,
    read_ending,
)
from toolwire.core.backend import ContextWindow
from toolwire.core.batch import find_delta_openings
from toolwire.core.errors import Failure
from toolwire.core.events import (
    FILTER_REASONS,
    CallArgs,
    CallStarted,
    Delta,
    Event,
    MessageEnded,
    Note,
    RawFrame,
    Reason,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningKind,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from toolwire.core.lane import Check
from toolwire.core.raw import NULL, fields_of, list_of, object_in
from toolwire.core.shapes import CALL_TYPES, read_fragments
from toolwire.core.sse import Frame

_decode_event = msgspec.json.Decoder(StreamEvent).decode
_decode_lax = msgspec.json.Decoder(StreamEvent, strict=False).decode  # numbers may be strings
_decode_response = msgspec.json.Decoder(Response).decode

_REASONS: dict[str | None, Reason] = {
    **dict.fromkeys(FILTER_REASONS, "filter"),
    "max_messages": "stop",
    "steered": "stop",
}

_FAILURES = frozenset(("error", "response.failed", "response.cancelled"))
"""The events that state why a turn failed."""

# Items that need no note if none of their content is delivered.
_IGNORED_ITEMS = frozenset(("compaction", "message", "reasoning"))

SHELL_CALL = "local_shell_call"
SUMMARY_DELTA = "response.reasoning_summary_text.delta"
ADDED, DONE = "response.output_item.added", "response.output_item.done"
SNAPSHOT = "response.function_call_arguments.delta"
"""The events that hold all arguments so far, if the profile says so."""
DELTA_FIELDS = find_delta_openings("delta")


class Decoder(TurnDecoder):
    """A stage from frames to turn events, for one turn."""

    delta_fields = DELTA_FIELDS
    has_items = True

    def __init__(
        self, seed: str, names: Sequence[str] = (), *, snapshots: bool = False, keeps_frames: bool = False
    ) -> None:
        super().__init__(seed, names, snapshots=snapshots, keeps_frames=keeps_frames)
        self._frame: Frame | None = None  # the frame being read, where frames are kept
        self._final = b""  # the last frame with a whole response, where frames are kept
        self._output = ItemTracker()
        self._is_done = False  # the server sent `[DONE]`
        self._listed: int | None = None  # the number of calls read from the final list
        self._delta_key: tuple[str | None, int | None, int | None] | None = None
        self._item = TrackedItem("", None)  # of the last delta, or the last that began or ended
        self._message: TrackedItem | None = None  # the message that the last text belongs to
        self._open_reasoning: TrackedItem | None = None
        self._phases: PhasedMessages | None = None
        self._error: Error | None = None  # of a failure whose reason is still incomplete

    def feed(self, frame: Frame) -> Sequence[Event]:
        if self.ended:
            return ()
        try:
            event = _decode_event(frame.data)
        except UNREADABLE:
            data, event = self._repair_event(frame)
            if event is None:
                return self._read_unreadable(frame)
            frame = Frame(frame.event, data)
        else:
            if self._surrogates.half:  # its other half did not arrive; the event then differs from its frame
                self._surrogates.half = ""
                self.opening.append(Note("letter_replaced"))
                event.delta = "\ufffd" + event.delta if event.delta is not None else None
            elif self._keeps_frames:
                self._frame = frame
        handler = self._HANDLERS.get(event.type)
        if handler is None or (self._error is not None and event.type not in _FAILURES):
            self._frame = None
            return self._read_other(event, frame)
        if self._frame is not None and event.response is not None:
            self._final = frame.data
        events = handler(self, event)
        if not self._started and events:
            events = [*self._start(event), *events]
        if self._frame is not None:
            self._frame = None
            if event.type not in self._DELTAS:
                answers = event.item.answers if event.item is not None else None
                events = [RawFrame(event.type, self._find_item_name(event), frame.data, answers), *events]
        return self._put_in_sequence(events) if len(events) != 1 else self._sequencer.feed(events[0])

    def find_check(self, delta: Delta) -> Check | None:
        return self._check_text(delta) if self._phases is None and self._error is None else None

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        body, response = self._read_plain(body, _decode_response)
        if response is None:
            return self.fail(Failure(502, "bad_reply", "The backend's reply is not a response object."))
        event = StreamEvent("response.completed", response=response)
        if response.error is not None or response.status in ("failed", "cancelled"):
            return [*self._start(event), *self.fail(make_stream_failure(response.error))]
        if response.output is None:
            return self.fail(Failure(502, "bad_reply", "The backend's reply holds no output."))
        # Whole items never interleave: there is nothing to put in sequence.
        if not self._keeps_frames:
            return [*self._start(event), *self._end_response(event)]
        self._final = b'{"response":' + body + b"}"
        return [RawFrame(event.type, "", self._final), *self._start(event), *self._end_response(event)]

    def _find_item_name(self, event: StreamEvent) -> str:
        """The name of the item that a frame is about, if any. The frame must have been handled."""
        if event.item is not None:
            return self._item.name
        if event.item_id or event.output_index is not None:
            return self._output.find(event.item_id, event.output_index).name
        return ""

    def end(self) -> Sequence[Event]:
        if self.ended:
            return ()
        if self._error is not None:
            return self.fail(make_stream_failure(self._error))
        return self._finish_open() if self._is_done else self._fail_cut()

    def _start(self, event: StreamEvent) -> list[Event]:
        if self._started:
            return []
        self._started = True
        response = event.response or Response()
        return [TurnStarted(response.id or "", response.model or ""), *self._take_opening()]

    def _repair_event(self, frame: Frame) -> tuple[bytes, StreamEvent | None]:
        """Read a frame with split characters or quoted numbers; of an unreadable ending, only its status and error."""
        data, event = self._read_mended(frame.data, _decode_lax)
        if event is None and data is frame.data:
            event = read_ending(data)
            self.opening += [Note("frame_skipped")] if event is not None else []
        return data, event

    def _read_unreadable(self, frame: Frame) -> Sequence[Event]:
        data = frame.data.strip()
        if data == b"[DONE]":  # without an event that says how the turn ended
            if self._error is not None:
                return self.end()
            self._is_done = self._started
            has_begun = self._output.is_begun or self._table.calls
            return self._finish_open() if has_begun else ()  # without content it is premature
        try:
            data.decode()
        except UnicodeDecodeError:
            return self.fail(Failure(502, "bad_encoding", "The backend sent text that is not UTF-8."))
        self._skip_frame(frame)
        return self._take_opening() if self._started else ()

    def _finish_open(self) -> Sequence[Event]:
        """End the turn; items that are still open are incomplete."""
        self.opening.append(Note("end_missing"))
        reason: Reason = "length" if self._output.is_cut else "stop"
        return self._put_in_sequence([*self._finish_calls(self._take_opening(), cut=True), TurnEnded(reason)])

    def _read_other(self, event: StreamEvent, frame: Frame) -> Sequence[Event]:
        if not event.type and event.error is not None:
            return self._read_failure(event)
        if self._error is not None:
            return ()  # only the reason of the failure matters
        if event.type == "response.required_action":
            started = self._start(StreamEvent())
            return self._put_in_sequence([*started, *self._read_loosely(msgspec.json.decode(frame.data))])
        if self._keeps_frames and event.type.startswith("response."):
            datas = frame.batch.render_frames() if frame.batch is not None else (frame.data,)
            about = self._find_item_name(event) if event.item is None else ""
            return self._put_in_sequence([RawFrame(event.type, about, data) for data in datas])
        return ()

    # Deltas

    def _read_arguments_delta(self, event: StreamEvent) -> Sequence[Event]:
        if event.call_id is None and not self._snapshots:
            more = self._table.extend(event.item_id or "", event.delta or "", self._frame)
            if more is not None:
                return (more,)
        events = self._read_call_event(event)
        if self._frame is not None and len(events) == 1:
            only = events[0]
            if isinstance(only, CallArgs) and only.text == event.delta:
                return (CallArgs(only.id, only.text, self._frame),)
        return events

    def _read_call_event(self, event: StreamEvent) -> list[Event]:
        """Read an event with some or all arguments of a call."""
        fragment = read_documented_event(event)
        if fragment is None:
            payload = {"item_id": event.item_id, "output_index": event.output_index, "delta": event.delta}
            [fragment] = read_fragments({**make_loose_payload(event), **payload})
        if self._snapshots and event.type == SNAPSHOT:
            fragment = msgspec.structs.replace(fragment, total=True)
        return self._table.feed(fragment)

    def _read_text_delta(
        self, event: StreamEvent, kind: type[TextDelta] | type[RefusalDelta] = TextDelta
    ) -> Sequence[Event]:
        item = self._find_item(event)
        if not event.delta:
            return ()
        if self._frame is not None:
            return (kind(event.delta, item.name, event.content_index or 0, self._frame),)
        text = event.delta if self._phases is None else self._phases.feed(item.name, event.delta)
        if not text:
            return ()
        delta = kind(text)
        return (delta,) if item is self._message else self._separate(delta)

    def _separate(self, delta: TextDelta | RefusalDelta) -> Sequence[Event]:
        """A delta of the selected item; if the previous message was another item, its end comes first."""
        earlier, self._message = self._message, self._item
        return (delta,) if self._keeps_frames or earlier in (None, self._item) else (MessageEnded(""), delta)

    def _read_reasoning_delta(self, event: StreamEvent) -> Sequence[Event]:
        item = self._find_item(event)
        if not event.delta:
            return ()
        kind: ReasoningKind = "content"
        part = event.content_index or 0
        if event.type == SUMMARY_DELTA:
            kind, part = "summary", event.summary_index or 0
        delta = ReasoningDelta(event.delta, kind, part)
        if self._frame is not None:
            frame = self._frame if event.type != "response.reasoning.delta" else None
            delta = ReasoningDelta(event.delta, kind, part, item.name, frame)
        if item is self._open_reasoning:
            return (delta,)
        earlier, self._open_reasoning = self._open_reasoning, item
        item.type = "reasoning"
        return (delta,) if earlier is None else (ReasoningEnded(), delta)

    def _find_item(self, event: StreamEvent) -> TrackedItem:
        """Select the item that a delta belongs to."""
        key = (event.item_id, event.output_index, event.content_index)
        if key != self._delta_key:
            self._delta_key = key
            self._item = self._output.find(event.item_id, event.output_index)
            self._item.seen_parts.add(event.content_index or 0)
        return self._item

    # Beginnings and ends

    def _begin_item(self, event: StreamEvent) -> Sequence[Event]:
        item = event.item
        if item is None:
            self._frame = None  # without its item it is not forwarded
            return ()
        self._select(self._output.begin(item.type, item.id, event.output_index))
        self._begin_phase(item)
        return self._read_call_item(item, event.output_index, ADDED) if item.type in CALL_TYPES else ()

    def _begin_phase(self, item: ReplyItem) -> None:
        """Store the phase of a message. Messages are compared from the first commentary on."""
        if item.phase == "commentary" and self._phases is None and not self._keeps_frames:
            self._phases = PhasedMessages()
        if self._phases is not None:
            self._phases.begin(self._item.name, item.phase)

    def _end_phase(self, item: str) -> Sequence[Event]:
        """The held text of a message, unless it repeats the commentary before it."""
        held = self._phases.end(item) if self._phases is not None else ""
        if isinstance(held, Note):
            return (held,)
        return self._separate(TextDelta(held)) if held else ()

    def _select(self, item: TrackedItem) -> None:
        self._item = item
        self._delta_key = None

    def _begin_part(self, event: StreamEvent) -> Sequence[Event]:
        part = event.part
        if part is None or part.type not in CALL_TYPES:
            return ()
        about = {"type": event.type, "item_id": event.item_id, "output_index": event.output_index}
        return self._read_loosely({**about, "part": make_loose_payload(part)})

    def _end_part(self, event: StreamEvent) -> Sequence[Event]:
        item, number = self._output.find(event.item_id, event.output_index), event.content_index or 0
        item.ended_parts.add(number)
        self._select(item)
        if event.type == "response.refusal.done":
            return self._add_part(number, RefusalDelta, event.refusal)
        return self._add_part(number, TextDelta, event.text)

    def _add_part(self, number: int, kind: type[TextDelta] | type[RefusalDelta], text: str | None) -> Sequence[Event]:
        """A whole part of the selected item, if no delta of it was delivered."""
        item = self._item
        if number in item.seen_parts:
            return ()
        item.seen_parts.add(number)
        if text and self._phases is not None:
            text = self._phases.feed(item.name, text)
        if not text:
            return ()
        return self._separate(kind(text, item.name, number) if self._keeps_frames else kind(text))

    def _end_item(self, event: StreamEvent) -> Sequence[Event]:
        item = event.item
        if item is None:
            self._frame = None
            return ()
        self._select(self._output.end(item.type, item.id, event.output_index))
        return self._complete_item(item, event.output_index)

    def _complete_item(self, item: ReplyItem, index: int | None) -> Sequence[Event]:
        """Read a whole item. `index` is used to find a call."""
        tracked = self._item
        tracked.was_forwarded = tracked.was_forwarded or self._frame is not None
        if item.type in CALL_TYPES:
            return self._read_call_item(item, index, DONE)
        if tracked.ended:
            return ()
        tracked.ended = True
        match item.type:
            case "message":
                return self._read_message_item(item, index)
            case "reasoning":
                return self._end_reasoning(item, tracked)
            case _ if self._keeps_frames:
                is_nameless = item.type == SHELL_CALL and not (item.call_id or item.id)
                return [Note("id_missing", item.type)] if is_nameless else ()
            case _ if item.content:
                return self._read_message_item(item, index)
            case _:
                return [Note("item_dropped", item.type)] if item.type not in _IGNORED_ITEMS else ()

    def _read_message_item(self, item: ReplyItem, index: int | None) -> list[Event]:
        out: list[Event] = []
        self._begin_phase(item)
        for number, part in enumerate(item.content or ()):
            if part.annotations and not self._keeps_frames:
                out.append(Note("annotations_dropped"))
            if part.type in CALL_TYPES:
                whole = {"type": "message", "id": item.id, "content": [make_loose_payload(part)]}
                out += self._read_loosely({"type": DONE, "output_index": index, "item": whole})
            elif part.refusal:
                out += self._add_part(number, RefusalDelta, part.refusal)
            else:
                out += self._add_part(number, TextDelta, part.text)
        if self._keeps_frames and self._item.name:
            out.append(MessageEnded(self._item.name))
        return [*out, *self._end_phase(self._item.name)]

    def _end_reasoning(self, item: ReplyItem, tracked: TrackedItem) -> list[Event]:
        out: list[Event] = []
        open, self._open_reasoning = self._open_reasoning, None
        if open not in (None, tracked):
            out.append(ReasoningEnded())
        if 0 not in tracked.seen_parts:
            kind: ReasoningKind = "summary" if item.summary else "content"
            parts = item.summary or item.content or ()
            name = tracked.name if self._keeps_frames else ""
            out += [ReasoningDelta(part.text, kind, number, name) for number, part in enumerate(parts) if part.text]
        if out or item.encrypted_content or 0 in tracked.seen_parts or self._keeps_frames:
            signature = item.encrypted_content or ""
            out.append(ReasoningEnded(item.id or "", signature, DIALECT if signature else ""))
        return out

    def _read_call_item(self, item: ReplyItem, index: int | None, type: str) -> Sequence[Event]:
        ended, is_listing = type == DONE, self._listed is not None
        if self._listed is not None:
            self._listed += 1
        position = self._listed or 0
        fragment = read_documented_item(item, index, ended=ended, open=ended and not is_listing, list_position=position)
        if fragment is not None:
            events = self._table.feed(fragment)
        else:
            events = self._read_loosely({"type": type, "output_index": index, "item": make_loose_payload(item)})
        if item.id or not self._keeps_frames:
            return events
        return [
            msgspec.structs.replace(each, item=self._item.name) if isinstance(each, CallStarted) else each
            for each in events
        ]

    def _read_loosely(self, payload: Any) -> list[Event]:
        fragments = read_fragments(payload)
        if self._listed is not None:  # after the final list no arguments follow
            position = self._listed
            fragments = [
                msgspec.structs.replace(fragment, open=False, list_position=position) for fragment in fragments
            ]
        return [event for fragment in fragments for event in self._table.feed(fragment)]

    def _end_response(self, event: StreamEvent) -> Sequence[Event]:
        response = event.response or Response()
        out = self._take_opening()
        listed = object_in(fields_of(self._final), "response").get("output", NULL) if self._final else NULL
        raws = list_of(listed) if listed != NULL else []
        self._listed = 0
        is_all_new = not self._output.is_begun
        for index, item in enumerate(check_count(response.output or ())):
            find = self._output.find_listed
            tracked = TrackedItem(item.id or "", index) if is_all_new else find(item.type, item.id, index)
            self._select(tracked)
            if raws and not tracked.was_forwarded:
                out.append(RawFrame(DONE, tracked.name, b'{"item":' + raws[index] + b"}", item.answers))
            # The final list may lack items, so a call with an id is not looked up by its index.
            out += self._complete_item(item, None if item.call_id else index)
        incomplete = response.status == "incomplete" or event.type == "response.incomplete"
        reason: Reason = "stop"
        self.given_reason = response.status or ""
        if incomplete:
            details = response.incomplete_details
            self.given_reason += f": {details.reason}" if details is not None else ""
            reason = _REASONS.get(details.reason if details else None, "length")
            if details is not None and "context" in (details.reason or ""):
                self.context_window = ContextWindow(is_full=True)
        out = self._finish_calls(out, cut=reason != "stop")
        if response.usage is not None:
            out.append(usage_of(*msgspec.structs.astuple(response.usage)))
        return [*out, TurnEnded(reason)]

    def _finish_calls(self, out: list[Event], *, cut: bool) -> list[Event]:
        """End the turn and every open call."""
        self.ended = True
        held = self._phases.held if self._phases is not None else None
        out += self._end_phase(held) if held is not None else ()
        return [*out, *self._table.drop_unclaimed(), *self._table.finish(cut=cut)]

    def _read_failure(self, event: StreamEvent) -> Sequence[Event]:
        """Fail the turn, or wait for the event that completes the reason: `error` or `response.failed`."""
        given = event.response.error if event.response is not None else event.error
        error = given or Error(event.message, None, event.param, event.code)
        first, known = self._error, complete_error(self._error or Error(), error)
        if first is not None or (known.message and (known.code or known.type)):
            return self.fail(make_stream_failure(known))
        self._error = known
        self.finishing += 1
        return ()

    _HANDLERS: ClassVar[dict[str, Callable[[Any, StreamEvent], Sequence[Event]]]] = {
        SNAPSHOT: _read_arguments_delta,
        "response.output_text.delta": _read_text_delta,
        SUMMARY_DELTA: _read_reasoning_delta,
        "response.reasoning_text.delta": _read_reasoning_delta,
        "response.reasoning.delta": _read_reasoning_delta,
        "response.refusal.delta": partial(_read_text_delta, kind=RefusalDelta),
        "response.custom_tool_call_input.delta": _read_arguments_delta,
        "response.created": _start,
        "response.in_progress": _start,
        "response.queued": _start,
        "response.output_item.added": _begin_item,
        "response.content_part.added": _begin_part,
        "response.function_call_arguments.done": _read_call_event,
        "response.custom_tool_call_input.done": _read_call_event,
        "response.output_text.done": _end_part,
        "response.refusal.done": _end_part,
        "response.output_item.done": _end_item,
        "response.completed": _end_response,
        "response.done": _end_response,
        "response.incomplete": _end_response,
        "response.failed": _read_failure,
        "response.cancelled": _read_failure,
        "error": _read_failure,
    }
    _DELTAS: ClassVar = frozenset(type for type in _HANDLERS if type.endswith(".delta"))
