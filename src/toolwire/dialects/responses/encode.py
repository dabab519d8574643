r"""Encodes turn events as Responses events, a finished turn as one response, a failure as an error object.

    event: response.output_text.delta
    data: {"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_…","output_index":0,…,"delta":"Hi"}

Items and parts have their complete lifecycle even if the backend leaves events out. If the backend speaks Responses
too, a delta that no policy touched is written unchanged, and the unknown fields of all other frames are kept.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar, cast

import msgspec

from toolwire.core import sse
from toolwire.core.collect import Turn, events_of
from toolwire.core.errors import Failure, InternalError
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Delta,
    Event,
    MessageEnded,
    RawFrame,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.notes import TurnStats
from toolwire.core.raw import Fields, fields_of, to_json
from toolwire.core.request import Request
from toolwire.core.shapes import CALL_TYPES
from toolwire.core.signatures import PackedSignature, pack
from toolwire.dialects.openai import encode_error_object
from toolwire.dialects.responses import wire
from toolwire.dialects.responses.items import (
    CALL_FORMS,
    ITEM_ADDED,
    ITEM_DONE,
    REASONING,
    REFUSAL,
    TEXT,
    CallItem,
    MessageItem,
    OtherItem,
    OutputItem,
    PartedItem,
    PendingEvents,
    ReasoningItem,
)
from toolwire.dialects.responses.response import INCOMPLETE, ResponseObject
from toolwire.dialects.responses.writer import GrowingItem, SilentWriter, Writer

KNOWN_ITEMS = frozenset(("message", "reasoning", *CALL_TYPES))
"""Types of items that turn events represent."""

PASSED_INSIDE = frozenset(("response.output_text.annotation.added",))
"""Events inside such items that no turn event represents."""

ITEM_BYTES = 1024
"""Estimated bytes of an item without its text."""

EVENT_KEEPALIVE_AFTER = 60.0
"""Seconds of silence after which a keepalive is an event, because Codex ignores comments."""

Parted = TypeVar("Parted", bound=PartedItem)


class StreamEncoder:
    """Encodes turn events as the bytes of one stream of Responses events.

    `extended` adds the events `response.required_action` and `ping`, and the status `incomplete` while calls wait for
    outputs. On a `socket` each event is one message: no event names, no comments, no `[DONE]`.
    """

    content_type = sse.CONTENT_TYPE

    def __init__(
        self,
        request: Request,
        id: str,
        created: int,
        stats: TurnStats,
        clock: Callable[[], float] | None = None,
        *,
        extended: bool = False,
        socket: bool = False,
    ) -> None:
        self.response = ResponseObject(request, id, created)
        self.stats = stats
        self._clock = clock or (lambda: created)
        self.extended = extended
        self._socket = socket
        self._writer = Writer(socket=socket)
        self._seed = id.partition("_")[2]
        self._started = False
        self._items: list[OutputItem] = []
        self._ids: set[str] = set()
        self._open: GrowingItem | None = None
        self._others: dict[str, OtherItem] = {}
        self._closed: set[str] = set()  # the backend's ids of closed items
        self._frames: dict[tuple[str, str], bytes] = {}  # the backend's frames by type and item
        self._text_item: str | None = None  # the backend's id of the open message
        self._reasoning_item: str | None = None  # the same for reasoning
        self._reasoning_kind = ""
        self._part = 0
        # The end of the turn, the sequence number of its first closing event, and the count of closing events.
        self._closing: tuple[TurnEnded | None, int, int] | None = None

    def feed(self, event: Event) -> Sequence[bytes]:
        # Nearly all events of a stream are deltas of the open part, so they bypass the match.
        if self._grows(event):
            return self._writer.write_delta(cast("Delta", event))
        return self._feed_other(event)

    def _grows(self, event: Event) -> bool:
        """Whether this is a delta of the open part."""
        kind = type(event)
        if kind is CallArgs:
            return True
        if kind is TextDelta:
            delta = cast("TextDelta", event)
            return delta.item == self._text_item and delta.part == self._part
        if kind is ReasoningDelta:
            reasoning = cast("ReasoningDelta", event)
            return (
                reasoning.item == self._reasoning_item
                and reasoning.part == self._part
                and reasoning.kind == self._reasoning_kind
            )
        return False

    def sample(self, event: Delta) -> tuple[bytes, int] | None:
        """What `feed` writes for a delta like the last one, but with `SAMPLE_NUMBER`, and the number it would have."""
        return self._writer.sample(event) if self._grows(event) else None

    def _feed_other(self, event: Event) -> Sequence[bytes]:
        match event:
            case TurnStarted():
                return self.begin()
            case TextDelta() | RefusalDelta() | ReasoningDelta():
                return self._add_delta(event)
            case MessageEnded(item):
                return self._end_message(item)
            case ReasoningEnded():
                return self._end_reasoning(event)
            case CallStarted():
                out = self._close()
                name = event.item if event.item != event.id else ""
                item = CallItem(event, self._choose_id(name, CALL_FORMS[event.kind].prefix), len(self._items))
                self._add(item, out)
                self._prepare(item)
                return out
            case CallEnded(complete=complete):
                return self._close("completed" if complete else "incomplete")
            case RawFrame():
                return self._take_raw_frame(event)
            case Usage():
                self.response.usage = event
            case TurnEnded():
                return self._end_turn(event)
            case TurnFailed(failure):
                out = self.begin()
                self._abandon()
                out.append(self._write_error(failure))
                self.response.fail(failure, self.output)
                return [*out, *self._conclude(None)]
            case _:
                pass
        return ()

    def take_turn(self, turn: Turn) -> None:
        """Take a whole turn into the response, without events."""
        self._writer = SilentWriter()
        for event in events_of(turn):
            self.feed(event)

    def keepalive(self, silent: float) -> Sequence[bytes]:
        """A comment or an event that keeps the connection open after this many seconds of silence."""
        if self.extended:
            opening = self.begin()
            return [*opening, self._writer.write("ping", {})] if silent else opening
        if self._socket or silent >= EVENT_KEEPALIVE_AFTER:
            return self.begin() or self._writer.write_response(self.response, "response.in_progress")
        return (sse.write_comment(b"keepalive"),)

    def break_off(self) -> Sequence[bytes]:
        """The end of a stream whose encoding failed. It has no items, since their state may be inconsistent."""
        self._items, self._open, self._others = [], None, {}
        failure = InternalError().failure
        self.response.fail(failure, [])
        self.response.leave_unstored()  # it may still be stored, but the answer does not wait for that
        return [self._write_error(failure), *self._conclude(None)]

    def mark_unstored(self, pieces: Sequence[bytes]) -> list[bytes]:
        """Replace the closing events at the end of `pieces` with those of a response that could not be stored."""
        assert self._closing is not None
        event, number, count = self._closing
        self.response.leave_unstored()
        self._writer.number = number
        return [*pieces[: len(pieces) - count], *self._conclude(event)]

    def continue_from(self, number: int) -> None:
        """Set the next sequence number, because another encoder wrote the earlier events."""
        self._writer.number = number

    # The turn

    def begin(self) -> list[bytes]:
        """The opening events; none if they were written before."""
        if self._started:
            return []
        self._started = True
        if self.response.status != "queued":
            return self._writer.write_response(self.response, "response.created", "response.in_progress")
        out = self._writer.write_response(self.response, "response.created", "response.queued")
        self.response.status = "in_progress"
        return [*out, *self._writer.write_response(self.response, "response.in_progress")]

    def _end_turn(self, event: TurnEnded) -> Sequence[bytes]:
        # Only the last item can have been cut off.
        is_cut = event.reason in INCOMPLETE and isinstance(self._open, MessageItem) and self._items[-1] is self._open
        out = [*self.begin(), *self._close("incomplete" if is_cut else "completed")]
        out += self._writer.write_all(self._end_others())
        return [*out, *self._conclude(event)]

    def _conclude(self, event: TurnEnded | None) -> list[bytes]:
        """The closing events of the turn. Without `event` it has failed."""
        number, response = self._writer.number, self.response
        type = "response.failed"
        out: list[bytes] = []
        if event is not None:
            # The result of a search cannot be submitted as an output.
            calls = [item for item in self._items if isinstance(item, CallItem) and item.call.kind != "search"]
            waiting = [call.as_tool_call() for call in calls if call.status == "completed"]
            response.end(event.reason, self.output, waiting, int(self._clock()))
            type = f"response.{response.status}"
            if self.extended and response.required_action is not None:
                response.status = "incomplete"
                fields = {"response": response.encode(), "required_action": response.required_action}
                out.append(self._writer.write("response.required_action", fields))
        if self._socket:
            response.notes = self.stats.comment()
            out += self._writer.write_response(response, type)
        else:
            out += (*self._writer.write_response(response, type), sse.write_comment(self.stats.comment()), sse.DONE)
        self._closing = event, number, len(out)
        return out

    def _write_error(self, failure: Failure) -> bytes:
        error = encode_error_object(failure)
        return self._writer.write("error", {**error, "error": error})

    def cancel(self) -> None:
        """Cancel the response, with the output so far."""
        self._abandon()
        self.response.cancel(self.output)

    def _abandon(self) -> None:
        """End open items without writing events, because Codex runs every call that is closed."""
        for _ in chain(self._end_open("incomplete"), self._end_others()):
            pass

    @property
    def held(self) -> int:
        """Approximate bytes of the turn that are in memory."""
        return self._writer.held

    @property
    def items(self) -> Sequence[OutputItem]:
        """All items so far; open ones have the status `in_progress`."""
        return self._items

    @property
    def output(self) -> list[msgspec.Raw]:
        """The finished items, in order."""
        return [item.encoded for item in self._items if item.status != "in_progress"]

    # The backend's frames

    def _take_raw_frame(self, event: RawFrame) -> Sequence[bytes]:
        """Keep a frame for its unknown fields, or pass it on if no turn event represents it."""
        self._writer.held += len(event.data)
        if event.type not in (ITEM_ADDED, ITEM_DONE):
            if event.item in self._others:
                return self._pass_on(event, self._others[event.item])
            if event.type in PASSED_INSIDE:
                return self._pass_on(event, self._open) if self._open and self._open.name == event.item else ()
            if event.item:
                self._frames[event.type, event.item] = event.data
            else:
                self.response.adopt(event.data)
            return ()
        item = fields_of(event.data)["item"]
        self._frames[event.type, event.item] = event.data
        if wire.decode_item_type(item).type in KNOWN_ITEMS:
            return ()
        out: list[bytes] = []
        other = self._others.get(event.item)
        if other is None:
            id = self._choose_id(event.item, "item")
            other = self._others[event.item] = OtherItem(event.item, id, len(self._items), fields_of(item))
            self._add(other, out)
        if event.type == ITEM_DONE and not other.is_closed:
            other.fields = fields_of(item)
            out += self._writer.write_all(other.close(self._take_original, "completed"))
        return out

    def _pass_on(self, event: RawFrame, item: OutputItem) -> Sequence[bytes]:
        if item.status != "in_progress":
            return ()
        position = {"output_index": item.index, "item_id": item.id}
        fields = fields_of(event.data)
        if isinstance(item, MessageItem) and "content_index" in fields:
            position["content_index"] = item.parts
        return (self._writer.write(event.type, {**fields, **position}),)

    def _take_original(self, type: str, item: str) -> Fields:
        frame = self._frames.get((type, item)) if type == ITEM_DONE else self._frames.pop((type, item), None)
        return fields_of(frame) if frame else {}

    # Items

    def _add_delta(self, event: TextDelta | RefusalDelta | ReasoningDelta) -> Sequence[bytes]:
        out: list[bytes] = []
        item, name = self._open, event.item
        if isinstance(event, ReasoningDelta):
            kind, type = REASONING[event.kind], ReasoningItem
        else:
            kind, type = TEXT if isinstance(event, TextDelta) else REFUSAL, MessageItem
        if not isinstance(item, type) or name not in ("", item.name):
            item = self._open_item(type, name, out)
        # Text that names no item names no part either.
        if item.kind is not kind or (item.part != event.part and (name or type is ReasoningItem)):
            out += self._writer.write_all(item.close_part(self._take_original))
            out += self._writer.write_all(item.begin_part(kind, event.part, self._take_original))
            self._prepare(item)
        return [*out, *self._writer.write_delta(event)]

    def _open_item(self, type: type[Parted], name: str, out: list[bytes]) -> Parted:
        out += self._close()
        item = type(name, self._choose_id(name, type.prefix), len(self._items))
        self._add(item, out)
        return item

    def _end_message(self, name: str) -> Sequence[bytes]:
        if isinstance(self._open, MessageItem) and self._open.name == name:
            return self._close()
        if name in self._closed or (self._open is not None and self._open.name == name):
            return ()  # it was closed when another item opened, or that item has its name
        item = self._take_original(ITEM_DONE, name).get("item", b"{}")
        if fields_of(item).get("content") != msgspec.Raw(b"[]"):
            return ()
        out: list[bytes] = []
        self._open_item(MessageItem, name, out)  # an empty message is still an item
        return [*out, *self._close()]

    def _end_reasoning(self, event: ReasoningEnded) -> Sequence[bytes]:
        out: list[bytes] = []
        item = self._open
        if not isinstance(item, ReasoningItem) or (item.name and event.id not in ("", item.name)):
            if not event.id and not event.signature:
                return ()
            item = self._open_item(ReasoningItem, event.id, out)
        item.signature = event.signature
        if event.signature and event.origin not in ("", "responses"):  # a signature of another origin is packed
            item.signature = pack(PackedSignature(event.origin, event.id, item.texts, event.signature, event.redacted))
        return [*out, *self._close()]

    def _add(self, item: OutputItem, out: list[bytes]) -> None:
        out += self.begin()
        self._writer.held += ITEM_BYTES
        self._items.append(item)
        if isinstance(item, GrowingItem):
            self._open = item
        out += self._writer.write_all(item.open(self._take_original))

    def _choose_id(self, item: str, prefix: str) -> str:
        """The item's id: the backend's if it has the right prefix and is unique, else a new one."""
        named = item if not item.startswith("@") else ""
        fits = named.startswith(prefix + "_") or (prefix in ("rs", "item") and named)
        id = item if fits and item not in self._ids else f"{prefix}_{self._seed}{len(self._items) + 1:02d}"
        self._ids.add(id)
        return id

    def _close(self, status: str = "completed") -> list[bytes]:
        return self._writer.write_all(self._end_open(status))

    def _end_open(self, status: str) -> PendingEvents:
        """End the open item."""
        item, self._open = self._open, None
        self._text_item = self._reasoning_item = None
        if item is not None:
            yield from item.close(self._take_original, status)
            self._closed.add(item.name)
            self._frames.pop((ITEM_DONE, item.name), None)

    def _end_others(self) -> PendingEvents:
        """Close items of other kinds that the backend never closed; their status is `failed`."""
        for item in self._others.values():
            if not item.is_closed:
                yield from item.close(self._take_original, "failed")

    def _prepare(self, item: GrowingItem) -> None:
        """Prepare the writer for a new part, and let `feed` recognise its deltas."""
        self._writer.prepare(item)
        self._text_item = self._reasoning_item = None
        if isinstance(item, PartedItem) and item.kind is not None:
            self._part = item.part
            if item.kind is TEXT:
                self._text_item = item.name
            elif isinstance(item, ReasoningItem):
                self._reasoning_item, self._reasoning_kind = item.name, item.kind.list


def encode_turn(turn: Turn, request: Request, id: str, created: int) -> bytes:
    """Encode a finished turn as one response, equal to the one in the last event of its stream."""
    encoder = StreamEncoder(request, id, created, TurnStats())
    encoder.take_turn(turn)
    return bytes(encoder.response.encode())


def encode_error(failure: Failure) -> bytes:
    """Encode a failure as an error object."""
    return to_json({"error": encode_error_object(failure)})
