"""A finished turn as one value: the same events, collected."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeAlias

import msgspec

from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallKind,
    CallStarted,
    Dialect,
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
    TurnFailed,
    TurnStarted,
    Usage,
)


class Text(msgspec.Struct, frozen=True):
    """One part of a message: `item` is the backend's name for the message, if it has one."""

    text: str
    item: str = ""
    part: int = 0


class Refusal(msgspec.Struct, frozen=True):
    text: str
    item: str = ""
    part: int = 0


class Reasoning(msgspec.Struct, frozen=True):
    """One reasoning item: its visible parts, summarised or raw, and its seal."""

    summary: tuple[str, ...] = ()
    content: tuple[str, ...] = ()
    id: str = ""
    seal: str = ""
    issuer: Dialect = ""
    redacted: bool = False
    item: str = ""
    """What its parts were told under, before its end gave the id."""

    @property
    def parts(self) -> tuple[str, ...]:
        return self.summary + self.content


class Call(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str
    kind: CallKind = "function"
    complete: bool = True
    namespace: str = ""
    item: str = ""
    seal: str = ""


Item: TypeAlias = Text | Refusal | Reasoning | Call | MessageEnded | Told
"""What a turn is made of; the last two only where client and backend speak the same dialect."""


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
        return "".join(item.text for item in self.items if isinstance(item, Text))

    @property
    def refusal(self) -> str:
        return "".join(item.text for item in self.items if isinstance(item, Refusal))

    @property
    def reasoning(self) -> str:
        parts = [part for item in self.items if isinstance(item, Reasoning) for part in item.parts]
        return "\n\n".join(parts)

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(item for item in self.items if isinstance(item, Call))


ITEM = 256
"""Bytes that an item takes beside its text."""


class Collector:
    """A stage that swallows a turn's events and ends with the turn."""

    def __init__(self) -> None:
        self.size = 0
        """About how many bytes the turn takes so far."""
        self._id = self._model = ""
        self._items: list[Item] = []
        self._usage: Usage | None = None
        self._notes: list[Note] = []
        self._reason: Reason = "stop"
        self._failure: Failure | None = None
        self._pieces: list[str] = []  # of the open text, refusal or call
        self._talking: Text | Refusal | None = None
        self._thoughts: dict[tuple[ReasoningKind, int], list[str]] = {}
        self._thinking = ""  # the backend's name for the open reasoning item
        self._call: CallStarted | None = None
        self._facts: list[Told] = []  # about the turn
        self._begun = 0  # where the open item will stand

    def feed(self, event: Event) -> tuple[()]:
        handler = self._HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)
        return ()

    def end(self) -> tuple[Turn]:
        self._close_item()
        self._end_call(CallEnded("", complete=False))
        items, notes = (*self._facts, *self._items), tuple(self._notes)
        return (Turn(self._id, self._model, items, self._usage, notes, self._reason, self._failure),)

    def _start(self, event: TurnStarted) -> None:
        self._id, self._model = event.id, event.model

    def _add_text(self, event: TextDelta) -> None:
        self._talk(event, Text)

    def _add_refusal(self, event: RefusalDelta) -> None:
        self._talk(event, Refusal)

    def _end_message(self, event: MessageEnded) -> None:
        if self._talking is not None and self._talking.item == event.item:
            self._close_item()
        self._items.append(event)

    def _add_told(self, event: Told) -> None:
        """A frame about the turn stands before all items, one about what is open before that, any other behind."""
        self.size += len(event.data) + ITEM
        name = self._open_name()
        if not event.item:
            self._facts.append(event)
        elif event.item != name:
            self._items.append(event)
        else:
            self._items.insert(self._begun, event)
            self._begun += 1

    def _open_name(self) -> str | None:
        """The backend's name for the item that is open."""
        if self._call is not None:
            return self._call.item
        if self._talking is not None:
            return self._talking.item
        return self._thinking if self._thoughts else None

    def _add_reasoning(self, event: ReasoningDelta) -> None:
        self._close_talk()
        if self._thoughts and event.item not in ("", self._thinking):
            self._close_reasoning(ReasoningEnded())
        if not self._thoughts:
            self._begun = len(self._items)
        self._thinking = event.item or self._thinking
        self._thoughts.setdefault((event.kind, event.part), []).append(event.text)
        self.size += len(event.text)

    def _end_reasoning(self, event: ReasoningEnded) -> None:
        if not self._thoughts or (self._thinking and event.id not in ("", self._thinking)):
            if not event.id and not event.seal:
                return
            self._close_item()
            self._begun = len(self._items)
        self._close_reasoning(event)

    def _start_call(self, event: CallStarted) -> None:
        self._close_item()
        self._begun = len(self._items)
        self._call = event
        self.size += len(event.seal) + ITEM

    def _add_arguments(self, event: CallArgs) -> None:
        self._pieces.append(event.text)
        self.size += len(event.text)

    def _end_call(self, event: CallEnded) -> None:
        call = self._call
        if call is not None:
            arguments = "".join(self._pieces)
            facts = (call.kind, event.complete, call.namespace, call.item, call.seal)
            self._items.insert(self._begun, Call(call.id, call.name, arguments, *facts))
            self._pieces = []
            self._call = None

    def _add_usage(self, event: Usage) -> None:
        self._usage = event

    def _add_note(self, event: Note) -> None:
        self._notes.append(event)
        self.size += ITEM

    def _end_turn(self, event: TurnEnded) -> None:
        self._reason = event.reason

    def _fail_turn(self, event: TurnFailed) -> None:
        self._failure = event.failure

    def _talk(self, event: TextDelta | RefusalDelta, kind: type[Text] | type[Refusal]) -> None:
        talking = self._talking
        if not (
            isinstance(talking, kind) and (not event.item or (event.item, event.part) == (talking.item, talking.part))
        ):
            self._close_item()
            self._begun = len(self._items)
            self._talking = kind("", event.item, event.part)
            self.size += ITEM
        self._pieces.append(event.text)
        self.size += len(event.text)

    def _close_item(self) -> None:
        self._close_talk()
        if self._thoughts:
            self._close_reasoning(ReasoningEnded())

    def _close_talk(self) -> None:
        talking, self._talking = self._talking, None
        if talking is not None:
            self._items.insert(self._begun, type(talking)("".join(self._pieces), talking.item, talking.part))
            self._pieces = []

    def _close_reasoning(self, end: ReasoningEnded) -> None:
        thoughts, self._thoughts = self._thoughts, {}
        summary, content = (
            tuple("".join(thoughts[kind, part]) for kind, part in sorted(thoughts) if kind == wanted)
            for wanted in ("summary", "content")
        )
        self.size += len(end.seal) + ITEM
        item = Reasoning(summary, content, end.id, end.seal, end.issuer, end.redacted, self._thinking)
        self._items.insert(self._begun, item)
        self._thinking = ""

    _HANDLERS: ClassVar[dict[type[Event], Callable[[Any, Any], None]]] = {
        TurnStarted: _start,
        TextDelta: _add_text,
        RefusalDelta: _add_refusal,
        MessageEnded: _end_message,
        Told: _add_told,
        ReasoningDelta: _add_reasoning,
        ReasoningEnded: _end_reasoning,
        CallStarted: _start_call,
        CallArgs: _add_arguments,
        CallEnded: _end_call,
        Usage: _add_usage,
        Note: _add_note,
        TurnEnded: _end_turn,
        TurnFailed: _fail_turn,
    }


def collect(events: list[Event]) -> Turn:
    """The turn that these events make."""
    collector = Collector()
    for event in events:
        collector.feed(event)
    return collector.end()[0]


def events_of(turn: Turn) -> Iterator[Event]:
    """The events that make this turn: what `collect` undoes."""
    yield TurnStarted(turn.id, turn.model)
    for item in turn.items:
        yield from _events_of_item(item)
    if turn.usage is not None:
        yield turn.usage
    yield from turn.notes
    yield TurnEnded(turn.reason) if turn.failure is None else TurnFailed(turn.failure)


def _events_of_item(item: Item) -> Iterator[Event]:
    match item:
        case Text(text, name, part):
            yield TextDelta(text, name, part)
        case Refusal(text, name, part):
            yield RefusalDelta(text, name, part)
        case Reasoning(summary, content, id, seal, issuer, redacted, name):
            for number, part in enumerate(summary):
                yield ReasoningDelta(part, "summary", number, name)
            for number, part in enumerate(content):
                yield ReasoningDelta(part, "content", number, name)
            yield ReasoningEnded(id, seal, issuer, redacted)
        case Call(id, name, arguments, kind, complete, namespace, place, seal):
            yield CallStarted(id, name, kind, namespace, place, seal)
            if arguments:
                yield CallArgs(id, arguments)
            yield CallEnded(id, complete)
        case MessageEnded() | Told():
            yield item
