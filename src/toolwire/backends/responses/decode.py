"""Responses events (or one plain response) to turn events.

The same fact comes up to four times: as deltas, in a `.done`, in `output_item.done` and in the final `output`. Whatever
came first is passed on; the rest adds only what was missing. Servers leave out any of the four.

For a client that speaks Responses too, deltas keep their frames and every other frame is told as it came.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from toolwire.backends.decoder import UNREADABLE, TurnDecoder, counted
from toolwire.backends.failures import Error, failed
from toolwire.backends.responses.wire import (
    DELTAS,
    DIALECT,
    ENDINGS,
    Ending,
    Item,
    Part,
    RawOutput,
    Response,
    StreamEvent,
    TokenUsage,
)
from toolwire.core.backend import ContextWindow
from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallStarted,
    Event,
    MessageEnded,
    Note,
    Reason,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningKind,
    RefusalDelta,
    TextDelta,
    Told,
    TurnEnded,
    TurnStarted,
    Usage,
)
from toolwire.core.identity import Fragment
from toolwire.core.loose import CALL_TYPES, read_call, read_fragments
from toolwire.core.pieces import flowing
from toolwire.core.sse import Frame
from toolwire.core.surrogates import SurrogateHalves
from toolwire.core.text import arguments_text

_decode_event = msgspec.json.Decoder(StreamEvent).decode
_decode_ending = msgspec.json.Decoder(Ending).decode
_decode_response = msgspec.json.Decoder(Response).decode
_decode_output = msgspec.json.Decoder(RawOutput).decode

_REASONS: dict[str | None, Reason] = {"content_filter": "filter", "max_messages": "stop", "steered": "stop"}

# Items that say something about a turn but are not part of the answer.
_SILENT_ITEMS = frozenset(("compaction", "message", "reasoning"))


FLOWING = flowing("delta")


class Decoder(TurnDecoder):
    """A stage from frames to turn events, for one turn. `keeps_frames`: the client speaks this dialect too."""

    def __init__(
        self, seed: str, names: Sequence[str] = (), *, snapshots: bool = False, keeps_frames: bool = False
    ) -> None:
        super().__init__(seed, names, tells_items=keeps_frames)
        self._keeps = keeps_frames
        self._frame: Frame | None = None  # of the delta being read, where frames are kept
        self._items_told: set[str] = set()
        self._final = b""  # the latest frame with a whole response, where frames are kept
        self._snapshots = snapshots
        self.flowing = () if snapshots else FLOWING  # totals must not be joined
        self._halves = SurrogateHalves()
        self._speaking: tuple[str | None, int | None, int | None] | None = None
        self._thinking: tuple[str | None, int | None] | None = None  # the reasoning item that is being told
        self._heard: set[tuple[str | int | None, int]] = set()  # parts whose text was passed on, by item and by place
        self._items_ended: set[str | int] = set()
        self._nameless = 0
        self._late_names: dict[str, str] = {}  # of calls whose items were not announced

    def feed(self, frame: Frame) -> Sequence[Event]:
        if self.ended:
            return ()
        try:
            event = _decode_event(frame.data)
        except UNREADABLE:
            event = self._mended(frame)
            if event is None:
                return self._cannot_read(frame)
        else:
            if self._halves.half:
                self._give_up_half(event)  # so it says more than its frame
            elif self._keeps:
                self._frame = frame
        handler = self._HANDLERS.get(event.type)
        if handler is None:
            return self._other(event, frame)
        told = self._told(event, frame.data) if self._frame is not None and event.type not in DELTAS else None
        events = handler(self, event)
        if not self._started and events:
            events = [*self._start(event), *events]
        if self._frame is not None:
            self._frame = None
            events = events if told is None else [told, *events]
        row = self._row.feed
        if len(events) == 1:
            return row(events[0])
        return [out for each in events for out in row(each)]

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        response = self._read_plain(body)
        if response is None:
            return self._fail(Failure(502, "bad_reply", "The backend's reply is not a response object."))
        event = StreamEvent("response.completed", response=response)
        if response.error is not None or response.status in ("failed", "cancelled"):
            return [*self._start(event), *self._failed(event)]
        if response.output is None:
            return self._fail(Failure(502, "bad_reply", "The backend's reply holds no output."))
        # Whole items never interleave: there is nothing to put in a row.
        if not self._keeps:
            return [*self._start(event), *self._completed(event)]
        told = self._told(event, b'{"response":' + body + b"}")
        return [told, *self._start(event), *self._completed(event)]

    def _told(self, event: StreamEvent, data: bytes) -> Told:
        """A frame as it came."""
        item = event.item
        about = event.item_id or (item.id if item is not None else None) or self._place_name(event.output_index)
        if event.type == "response.output_item.done":
            self._items_told.add(about)
        if event.response is not None:
            self._final = data
        return Told(event.type, about, data)

    def _name_of(self, event: StreamEvent) -> str:
        return event.item_id or self._place_name(event.output_index)

    def _place_name(self, place: int | None) -> str:
        """What an item is called that has no id: by its place, as no id of a server's can be."""
        return f"@{place}" if place is not None else ""

    def _read_plain(self, body: bytes) -> Response | None:
        try:
            return _decode_response(body)
        except UNREADABLE:
            mended = self._halves.mended(body)
        if mended is None:
            return None
        self._opening += [Note("letter_replaced")] * self._halves.lost
        try:
            return _decode_response(mended)
        except UNREADABLE:
            return None

    def end(self) -> Sequence[Event]:
        return () if self.ended else self._cut()

    def _start(self, event: StreamEvent) -> list[Event]:
        self._started = True
        opening, self._opening = self._opening, []
        response = event.response or Response()
        return [TurnStarted(response.id or "", response.model or ""), *opening]

    def _mended(self, frame: Frame) -> StreamEvent | None:
        """What can still be read of a frame that is not as it should be: a delta, or that the turn is over."""
        lost = self._halves.lost
        mended = self._halves.mended(frame.data)
        try:
            if mended is not None:
                self._opening += [Note("letter_replaced")] * (self._halves.lost - lost)
                return _decode_event(mended)
            ending = _decode_ending(frame.data)
        except UNREADABLE:
            return None
        if ending.type not in ENDINGS:
            return None
        self._opening.append(Note("frame_skipped"))
        return StreamEvent(ending.type, response=Response(status=ending.response.status, error=ending.response.error))

    def _give_up_half(self, event: StreamEvent) -> None:
        """The other half of a letter did not come."""
        self._halves.half = ""
        self._opening.append(Note("letter_replaced"))
        if event.delta is not None:
            event.delta = "\ufffd" + event.delta

    def _cannot_read(self, frame: Frame) -> Sequence[Event]:
        data = frame.data.strip()
        if data == b"[DONE]":
            return ()
        try:
            data.decode()
        except UnicodeDecodeError:
            return self._fail(Failure(502, "bad_encoding", "The backend sent text that is not UTF-8."))
        self._unreadable += 1
        if self._started:
            return [Note("frame_skipped")]
        self._opening.append(Note("frame_skipped"))
        return ()

    def _other(self, event: StreamEvent, frame: Frame) -> Sequence[Event]:
        if not event.type and event.error is not None:
            return self._error(event)
        if event.type == "response.required_action":
            return self._read_loosely(frame)
        if self._keeps and event.type.startswith("response."):
            told = frame.pieces.single() if frame.pieces is not None else (frame.data,)
            about = event.item_id or ""
            return [out for data in told for out in self._row.feed(Told(event.type, about, data))]
        return ()

    def _read_loosely(self, frame: Frame) -> list[Event]:
        out: list[Event] = [] if self._started else self._start(StreamEvent())
        for fragment in read_fragments(msgspec.json.decode(frame.data)):
            out += [each for event in self._table.feed(fragment) for each in self._row.feed(event)]
        return out

    # What arrives all the time

    def _arguments_delta(self, event: StreamEvent) -> Sequence[Event]:
        if not self._snapshots:
            more = self._table.extend(event.item_id or "", event.delta or "", self._frame)
            if more is not None:
                return (more,)
        return self._framed(event, self._table.feed(_fragment(event, event.delta, total=self._snapshots)))

    def _input_delta(self, event: StreamEvent) -> Sequence[Event]:
        more = self._table.extend(event.item_id or "", event.delta or "", self._frame)
        if more is not None:
            return (more,)
        return self._framed(event, self._table.feed(_fragment(event, event.delta, kind="custom")))

    def _framed(self, event: StreamEvent, events: Sequence[Event]) -> Sequence[Event]:
        """The first delta of a call, with its frame if it says the same."""
        if self._frame is None or len(events) != 1:
            return events
        only = events[0]
        if isinstance(only, CallArgs) and only.text == event.delta:
            return (CallArgs(only.id, only.text, self._frame),)
        return events

    def _text_delta(self, event: StreamEvent) -> Sequence[Event]:
        self._hear(event)
        if not event.delta:
            return ()
        if self._frame is None:
            return (TextDelta(event.delta),)
        return (TextDelta(event.delta, self._name_of(event), event.content_index or 0, self._frame),)

    def _refusal_delta(self, event: StreamEvent) -> Sequence[Event]:
        self._hear(event)
        if not event.delta:
            return ()
        if self._frame is None:
            return (RefusalDelta(event.delta),)
        return (RefusalDelta(event.delta, self._name_of(event), event.content_index or 0, self._frame),)

    def _summary_delta(self, event: StreamEvent) -> Sequence[Event]:
        return self._think(event, "summary", event.summary_index or 0)

    def _reasoning_delta(self, event: StreamEvent) -> Sequence[Event]:
        return self._think(event, "content", event.content_index or 0)

    def _think(self, event: StreamEvent, kind: ReasoningKind, part: int) -> Sequence[Event]:
        self._hear(event)
        if not event.delta:
            return ()
        delta = ReasoningDelta(event.delta, kind, part)
        if self._frame is not None:
            frame = self._frame if event.type != "response.reasoning.delta" else None
            delta = ReasoningDelta(event.delta, kind, part, self._name_of(event), frame)
        item = (event.item_id, event.output_index)
        earlier, self._thinking = self._thinking, item
        return (delta,) if earlier in (None, item) else (ReasoningEnded(), delta)

    def _hear(self, event: StreamEvent) -> None:
        key = (event.item_id, event.output_index, event.content_index)
        if key != self._speaking:
            self._speaking = key
            self._mark_heard(event.item_id, event.output_index, event.content_index or 0)

    def _mark_heard(self, item_id: str | None, place: int | None, part: int) -> None:
        self._heard.update((key, part) for key in (item_id, place) if key not in (None, ""))

    def _has_heard(self, item_id: str | None, place: int | None, part: int) -> bool:
        return any((key, part) in self._heard for key in (item_id, place) if key not in (None, ""))

    # What begins and ends

    def _created(self, event: StreamEvent) -> Sequence[Event]:
        return () if self._started else self._start(event)

    def _item_added(self, event: StreamEvent) -> Sequence[Event]:
        item = event.item
        return self._call_item(item, event.output_index, ended=False) if item is not None else ()

    def _part_added(self, event: StreamEvent) -> Sequence[Event]:
        part = event.part
        if part is None or part.type not in CALL_TYPES:
            return ()
        return self._call_part(part, event.item_id or "", event.output_index, ended=False)

    def _arguments_done(self, event: StreamEvent) -> Sequence[Event]:
        id, name = event.call_id or "", event.name or ""
        if name and not id and event.item_id and not self._table.knows(event.item_id):
            # The item was not announced and will say its id: until then the call has no name.
            self._late_names[event.item_id] = name
            name = ""
        text = arguments_text(event.arguments)
        return self._table.feed(_fragment(event, text, id=id, name=name, total=True, named=bool(name)))

    def _input_done(self, event: StreamEvent) -> Sequence[Event]:
        return self._table.feed(_fragment(event, arguments_text(event.input), kind="custom", total=True))

    def _text_done(self, event: StreamEvent) -> Sequence[Event]:
        if self._has_heard(event.item_id, event.output_index, event.content_index or 0):
            return ()
        self._hear(event)
        return [self._text(event.text, self._name_of(event), event.content_index or 0)] if event.text else ()

    def _refusal_done(self, event: StreamEvent) -> Sequence[Event]:
        if self._has_heard(event.item_id, event.output_index, event.content_index or 0):
            return ()
        self._hear(event)
        return [RefusalDelta(event.refusal)] if event.refusal else ()

    def _item_done(self, event: StreamEvent) -> Sequence[Event]:
        item = event.item
        if item is None:
            return ()
        place = event.output_index
        if place is None and not item.id:
            place = self._nameless  # an item without a name of any kind counts by its turn
            self._nameless += 1
        return self._whole_item(item, place)

    def _whole_item(self, item: Item, place: int | None) -> Sequence[Event]:
        keys = {key for key in (item.id, place) if key is not None}
        if item.type in ("function_call", "custom_tool_call"):
            return self._call_item(item, place, ended=True)
        if keys & self._items_ended:
            return ()
        self._items_ended |= keys
        match item.type:
            case "message":
                return self._message(item, place)
            case "reasoning":
                return self._reasoning(item, place)
            case _ if self._keeps:
                return ()
            case _ if item.content:
                return self._message(item, place)
            case _:
                return [Note("item_dropped", item.type)] if item.type not in _SILENT_ITEMS else ()

    def _message(self, item: Item, place: int | None) -> list[Event]:
        out: list[Event] = []
        name = item.id or self._place_name(place)
        for number, part in enumerate(item.content or ()):
            if part.annotations and not self._keeps:
                out.append(Note("annotations_dropped"))
            if part.type in CALL_TYPES:
                out += self._call_part(part, item.id or "", place, ended=True)
            elif not self._has_heard(item.id, place, number):
                self._mark_heard(item.id, place, number)
                if part.refusal:
                    named = (name, number) if self._keeps else ("", 0)
                    out.append(RefusalDelta(part.refusal, *named))
                elif part.text:
                    out.append(self._text(part.text, name, number))
        if self._keeps and name:
            out.append(MessageEnded(name))
        return out

    def _text(self, text: str, item: str | None, part: int) -> TextDelta:
        return TextDelta(text, item or "", part) if self._keeps else TextDelta(text)

    def _reasoning(self, item: Item, place: int | None) -> list[Event]:
        out: list[Event] = []
        told, self._thinking = self._thinking, None
        if told is not None and _are_two(told, (item.id, place)):
            out.append(ReasoningEnded())
        if not self._has_heard(item.id, place, 0):
            kind: ReasoningKind = "summary" if item.summary else "content"
            parts = item.summary or item.content or ()
            name = (item.id or self._place_name(place)) if self._keeps else ""
            out += [ReasoningDelta(part.text, kind, number, name) for number, part in enumerate(parts) if part.text]
        if out or item.encrypted_content or self._has_heard(item.id, place, 0) or self._keeps:
            seal = item.encrypted_content or ""
            out.append(ReasoningEnded(item.id or "", seal, DIALECT if seal else ""))
        return out

    def _call_item(self, item: Item, place: int | None, *, ended: bool) -> Sequence[Event]:
        custom = item.type == "custom_tool_call"
        if not custom and item.type != "function_call":
            return ()
        text = arguments_text(item.input if custom else item.arguments)
        events = self._table.feed(
            Fragment(
                text,
                item.id or "",
                item.call_id or "",
                place,
                name=item.name or "",
                namespace=item.namespace or "",
                kind="custom" if custom else "function",
                total=True,
                named=True,
                ended=ended,
                complete=item.status != "incomplete",
            )
        )
        if item.id or not self._keeps:
            return events
        name = self._place_name(place)
        return [msgspec.structs.replace(each, item=name) if isinstance(each, CallStarted) else each for each in events]

    def _call_part(self, part: Part, item_id: str, place: int | None, *, ended: bool) -> Sequence[Event]:
        fragment = read_call(part.as_call())
        return self._table.feed(
            msgspec.structs.replace(fragment, item=item_id, index=place, named=True, total=True, ended=ended)
        )

    def _completed(self, event: StreamEvent) -> Sequence[Event]:
        response = event.response or Response()
        out: list[Event] = [*self._opening]
        self._opening = []
        raws = _decode_output(self._final).response.output if self._final else None
        for place, item in enumerate(response.output or ()):
            name = item.id or self._place_name(place)
            if raws and name not in self._items_told:
                out.append(Told("response.output_item.done", name, b'{"item":' + raws[place] + b"}"))
            # The final list may leave items out, so a call with an id of its own is not looked for by its place.
            out += self._whole_item(item, None if item.call_id else place)
        incomplete = response.status == "incomplete" or event.type == "response.incomplete"
        reason: Reason = "stop"
        if incomplete:
            details = response.incomplete_details
            reason = _REASONS.get(details.reason if details else None, "length")
            if details is not None and "context" in (details.reason or ""):
                self.context_window = ContextWindow(is_full=True)
        for key, name in self._late_names.items():
            if not self._table.knows(key):
                out += self._table.feed(Fragment("", key, name=name, named=True))
        out += self._table.finish(cut=reason != "stop")
        if response.usage is not None:
            out.append(_usage(response.usage))
        self.ended = True
        return [*out, TurnEnded(reason)]

    def _failed(self, event: StreamEvent) -> Sequence[Event]:
        return self._fail(failed(event.response.error if event.response else event.error))

    def _error(self, event: StreamEvent) -> Sequence[Event]:
        flat = Error(event.message, None, event.param, event.code)
        return self._fail(failed(event.error or flat))

    def _nothing(self, event: StreamEvent) -> Sequence[Event]:
        return ()

    _HANDLERS: ClassVar[dict[str, Callable[[Any, StreamEvent], Sequence[Event]]]] = {
        "response.function_call_arguments.delta": _arguments_delta,
        "response.output_text.delta": _text_delta,
        "response.reasoning_summary_text.delta": _summary_delta,
        "response.reasoning_text.delta": _reasoning_delta,
        "response.reasoning.delta": _reasoning_delta,
        "response.refusal.delta": _refusal_delta,
        "response.custom_tool_call_input.delta": _input_delta,
        "response.created": _created,
        "response.in_progress": _created,
        "response.queued": _created,
        "response.output_item.added": _item_added,
        "response.content_part.added": _part_added,
        "response.content_part.done": _nothing,
        "response.function_call_arguments.done": _arguments_done,
        "response.custom_tool_call_input.done": _input_done,
        "response.output_text.done": _text_done,
        "response.refusal.done": _refusal_done,
        "response.reasoning_summary_part.added": _nothing,
        "response.reasoning_summary_part.done": _nothing,
        "response.reasoning_summary_text.done": _nothing,
        "response.reasoning_text.done": _nothing,
        "response.output_item.done": _item_done,
        "response.completed": _completed,
        "response.done": _completed,
        "response.incomplete": _completed,
        "response.failed": _failed,
        "response.cancelled": _failed,
        "error": _error,
    }


def _are_two(one: tuple[str | None, int | None], other: tuple[str | None, int | None]) -> bool:
    """Whether these names and places are of two items. Names decide, if both have one."""
    if one[0] and other[0]:
        return one[0] != other[0]
    return one[1] != other[1]


def _fragment(event: StreamEvent, text: str | None, **said: Any) -> Fragment:
    return Fragment(text or "", event.item_id or "", index=event.output_index, **said)


def _usage(usage: TokenUsage) -> Usage:
    given, made = usage.input_tokens_details, usage.output_tokens_details
    return Usage(
        input=counted(usage.input_tokens),
        output=counted(usage.output_tokens),
        cached=counted(given.cached_tokens if given else 0),
        cache_write=counted(given.cache_write_tokens if given else 0),
        reasoning=counted(made.reasoning_tokens if made else 0),
    )
