"""A finished turn as one value, collected from its events."""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallKind,
    CallStarted,
    Event,
    MessageDelta,
    MessageEnded,
    Note,
    Origin,
    RawFrame,
    Reason,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningKind,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.text import count_bytes


class Text(msgspec.Struct, frozen=True):
    """One part of a message: `item` is the backend's name for the message, if it has one."""

    text: str
    item: str = ""
    part: int = 0


class Refusal(msgspec.Struct, frozen=True):
    """One part of a message in which the model declines."""

    text: str
    item: str = ""
    part: int = 0


class Reasoning(msgspec.Struct, frozen=True):
    """One reasoning item: its visible parts, summarised or raw, and its signature."""

    summary: tuple[str, ...] = ()
    content: tuple[str, ...] = ()
    id: str = ""
    signature: str = ""
    origin: Origin = ""
    redacted: bool = False
    item: str = ""
    """Item key used by deltas until the item's end supplies the id."""

    @property
    def parts(self) -> tuple[str, ...]:
        """All visible parts, the summary first."""
        return self.summary + self.content


class Call(msgspec.Struct, frozen=True):
    """One tool call with all of its arguments."""

    id: str
    name: str
    arguments: str
    """All arguments as JSON text, or the input of a custom call; never parsed."""
    kind: CallKind = "function"
    complete: bool = True
    """Whether the arguments are whole. An incomplete call must not be run."""
    namespace: str = ""
    """The group that the tool was declared in, if any."""
    item: str = ""
    """The server's id of the item that holds the call, where client and backend speak the same dialect."""
    signature: str = ""
    """Opaque data that the server needs back with the call."""


Item: TypeAlias = Text | Refusal | Reasoning | Call | MessageEnded | RawFrame
"""The contents of a turn; the last two only where client and backend speak the same dialect."""


class Turn(msgspec.Struct, frozen=True):
    """Everything a turn delivered, items in the model's order."""

    id: str = ""
    model: str = ""
    items: tuple[Item, ...] = ()
    usage: Usage | None = None
    notes: tuple[Note, ...] = ()
    reason: Reason = "stop"
    failure: Failure | None = None

    @property
    def text(self) -> str:
        """The text of all messages."""
        return "".join(item.text for item in self.items if isinstance(item, Text))

    @property
    def refusal(self) -> str:
        """The text of all refusals."""
        return "".join(item.text for item in self.items if isinstance(item, Refusal))

    @property
    def reasoning(self) -> str:
        """All visible reasoning, one paragraph per part."""
        parts = [part for item in self.items if isinstance(item, Reasoning) for part in item.parts]
        return "\n\n".join(parts)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls in the model's order."""
        return tuple(item for item in self.items if isinstance(item, Call))


class CallAssembler:
    """Assembles calls from their events. One call is open at a time: calls do not interleave."""

    def __init__(self) -> None:
        self.open: CallStarted | None = None
        """The call that has started and has not ended."""
        self._fragments: list[str] = []

    def feed(self, event: Event) -> Call | None:
        """Read an event, and return the call that it ends."""
        if isinstance(event, CallArgs):
            self._fragments.append(event.text)
        elif isinstance(event, CallStarted):
            self.open, self._fragments = event, []
        elif isinstance(event, CallEnded) and self.open is not None:
            return self.end(complete=event.complete)
        return None

    def end(self, *, complete: bool) -> Call | None:
        """Return the open call as it stands, if there is one."""
        call, self.open = self.open, None
        if call is None:
            return None
        arguments, self._fragments = "".join(self._fragments), []
        return Call(call.id, call.name, arguments, call.kind, complete, call.namespace, call.item, call.signature)


def collect_calls(events: Iterable[Event]) -> list[Call]:
    """The calls that end among these events."""
    calls = CallAssembler()
    return [call for event in events if (call := calls.feed(event)) is not None]


ITEM_OVERHEAD = 256
"""Bytes of an item in addition to its text."""


class Collector:
    """A stage that reads a turn's events and returns the turn at the end."""

    def __init__(self) -> None:
        self.size = 0
        """Approximate bytes of the turn so far."""
        self._id = self._model = ""
        self._items: list[Item] = []
        self._usage: Usage | None = None
        self._notes: list[Note] = []
        self._reason: Reason = "stop"
        self._failure: Failure | None = None
        self._pieces: list[str] = []  # of the open text or refusal
        self._message: Text | Refusal | None = None
        self._reasoning_parts: dict[tuple[ReasoningKind, int], list[str]] = {}
        self._reasoning_item = ""  # the backend's name for the open reasoning item
        self._calls = CallAssembler()
        self._turn_frames: list[RawFrame] = []  # frames about the turn as a whole
        self._open_index = 0  # where the open item will be inserted

    def feed(self, event: Event) -> tuple[()]:
        if type(event) is TextDelta or type(event) is RefusalDelta:
            self._add_text(event)
        elif isinstance(event, CallArgs):
            self._calls.feed(event)
            self.size += count_bytes(event.text)
        elif isinstance(event, ReasoningDelta):
            self._add_reasoning(event)
        elif isinstance(event, CallStarted | CallEnded):
            if isinstance(event, CallStarted):
                self._close_item()
                self._open_index = len(self._items)
                self.size += len(event.signature) + ITEM_OVERHEAD
            call = self._calls.feed(event)
            if call is not None:
                self._items.insert(self._open_index, call)
        elif isinstance(event, RawFrame):
            self._add_raw_frame(event)
        else:
            self._record(event)
        return ()

    def end(self) -> tuple[Turn]:
        self._close_item()
        call = self._calls.end(complete=False)
        if call is not None:
            self._items.insert(self._open_index, call)
        items, notes = (*self._turn_frames, *self._items), tuple(self._notes)
        return (Turn(self._id, self._model, items, self._usage, notes, self._reason, self._failure),)

    def _record(self, event: Event) -> None:
        """Record the end of a message or of reasoning, or an event about the turn as a whole."""
        match event:
            case MessageEnded(item):
                if self._message is not None and self._message.item == item:
                    self._close_item()
                self._items.append(event)
            case ReasoningEnded(id, signature):
                if not self._reasoning_parts or (self._reasoning_item and id not in ("", self._reasoning_item)):
                    if not id and not signature:
                        return
                    self._close_item()
                    self._open_index = len(self._items)
                self._close_reasoning(event)
            case TurnStarted(id, model):
                self._id, self._model = id, model
            case Usage():
                self._usage = event
            case Note():
                self._notes.append(event)
                self.size += ITEM_OVERHEAD
            case TurnEnded(reason):
                self._reason = reason
            case TurnFailed(failure):
                self._failure = failure
            case _:
                pass

    def _add_raw_frame(self, event: RawFrame) -> None:
        """Put a frame about the turn before all items, one about the open item before that item, others at the end."""
        self.size += len(event.data) + ITEM_OVERHEAD
        open_item = self._calls.open or self._message
        name = open_item.item if open_item is not None else self._reasoning_item if self._reasoning_parts else None
        if not event.item:
            self._turn_frames.append(event)
        elif event.item != name:
            self._items.append(event)
        else:
            self._items.insert(self._open_index, event)
            self._open_index += 1

    def _add_reasoning(self, event: ReasoningDelta) -> None:
        self._close_message()
        if self._reasoning_parts and event.item not in ("", self._reasoning_item):
            self._close_reasoning(ReasoningEnded())
        if not self._reasoning_parts:
            self._open_index = len(self._items)
        self._reasoning_item = event.item or self._reasoning_item
        self._reasoning_parts.setdefault((event.kind, event.part), []).append(event.text)
        self.size += count_bytes(event.text)

    def _add_text(self, event: MessageDelta) -> None:
        message, kind = self._message, Text if isinstance(event, TextDelta) else Refusal
        if not (
            isinstance(message, kind) and (not event.item or (event.item, event.part) == (message.item, message.part))
        ):
            self._close_item()
            self._open_index = len(self._items)
            self._message = kind("", event.item, event.part)
            self.size += ITEM_OVERHEAD
        self._pieces.append(event.text)
        self.size += count_bytes(event.text)

    def _close_item(self) -> None:
        self._close_message()
        if self._reasoning_parts:
            self._close_reasoning(ReasoningEnded())

    def _close_message(self) -> None:
        message, self._message = self._message, None
        if message is not None:
            self._items.insert(self._open_index, type(message)("".join(self._pieces), message.item, message.part))
            self._pieces = []

    def _close_reasoning(self, end: ReasoningEnded) -> None:
        parts, self._reasoning_parts = self._reasoning_parts, {}
        summary, content = (
            tuple("".join(parts[kind, part]) for kind, part in sorted(parts) if kind == wanted)
            for wanted in ("summary", "content")
        )
        self.size += len(end.signature) + ITEM_OVERHEAD
        item = Reasoning(summary, content, end.id, end.signature, end.origin, end.redacted, self._reasoning_item)
        self._items.insert(self._open_index, item)
        self._reasoning_item = ""


def collect(events: Iterable[Event]) -> Turn:
    """The turn that these events describe."""
    collector = Collector()
    for event in events:
        collector.feed(event)
    return collector.end()[0]


def events_of(turn: Turn) -> Iterator[Event]:
    """The events of this turn, which `collect` turns back into it."""
    yield TurnStarted(turn.id, turn.model)
    for item in turn.items:
        match item:
            case Text(text, name, part):
                yield TextDelta(text, name, part)
            case Refusal(text, name, part):
                yield RefusalDelta(text, name, part)
            case Reasoning(summary, content, id, signature, origin, redacted, name):
                for number, part in enumerate(summary):
                    yield ReasoningDelta(part, "summary", number, name)
                for number, part in enumerate(content):
                    yield ReasoningDelta(part, "content", number, name)
                yield ReasoningEnded(id, signature, origin, redacted)
            case Call(id, name, arguments, kind, complete, namespace, item_name, signature):
                yield CallStarted(id, name, kind, namespace, item_name, signature)
                if arguments:
                    yield CallArgs(id, arguments)
                yield CallEnded(id, complete)
            case MessageEnded() | RawFrame():
                yield item
    if turn.usage is not None:
        yield turn.usage
    yield from turn.notes
    yield TurnEnded(turn.reason) if turn.failure is None else TurnFailed(turn.failure)
