"""A finished turn as one value: the same events, collected."""

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import msgspec

from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallKind,
    CallStarted,
    Event,
    Note,
    Reason,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)


class Text(msgspec.Struct, frozen=True):
    text: str


class Refusal(msgspec.Struct, frozen=True):
    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """One reasoning item: its visible parts and its seal."""

    parts: tuple[str, ...] = ()
    id: str = ""
    seal: str = ""


class Call(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str
    kind: CallKind = "function"
    complete: bool = True


Item: TypeAlias = Text | Refusal | Reasoning | Call


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


class Collector:
    """A stage that swallows a turn's events and ends with the turn."""

    def __init__(self) -> None:
        self._id = self._model = ""
        self._items: list[Item] = []
        self._usage: Usage | None = None
        self._notes: list[Note] = []
        self._reason: Reason = "stop"
        self._failure: Failure | None = None
        self._pieces: list[str] = []  # of the open text, refusal or call
        self._talking: type[Text] | type[Refusal] | None = None
        self._reasoning: dict[int, list[str]] = {}
        self._call: CallStarted | None = None

    def feed(self, event: Event) -> tuple[()]:
        handler = self._HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)
        return ()

    def end(self) -> tuple[Turn]:
        self._close_item()
        self._end_call(CallEnded("", complete=False))
        items, notes = tuple(self._items), tuple(self._notes)
        return (Turn(self._id, self._model, items, self._usage, notes, self._reason, self._failure),)

    def _start(self, event: TurnStarted) -> None:
        self._id, self._model = event.id, event.model

    def _add_text(self, event: TextDelta) -> None:
        self._talk(Text, event.text)

    def _add_refusal(self, event: RefusalDelta) -> None:
        self._talk(Refusal, event.text)

    def _add_reasoning(self, event: ReasoningDelta) -> None:
        self._close_talk()
        self._reasoning.setdefault(event.part, []).append(event.text)

    def _end_reasoning(self, event: ReasoningEnded) -> None:
        self._close_talk()
        self._close_reasoning(event.id, event.seal)

    def _start_call(self, event: CallStarted) -> None:
        self._close_item()
        self._call = event

    def _add_arguments(self, event: CallArgs) -> None:
        self._pieces.append(event.text)

    def _end_call(self, event: CallEnded) -> None:
        call = self._call
        if call is not None:
            self._items.append(Call(call.id, call.name, "".join(self._pieces), call.kind, event.complete))
            self._pieces = []
            self._call = None

    def _add_usage(self, event: Usage) -> None:
        self._usage = event

    def _add_note(self, event: Note) -> None:
        self._notes.append(event)

    def _end_turn(self, event: TurnEnded) -> None:
        self._reason = event.reason

    def _fail_turn(self, event: TurnFailed) -> None:
        self._failure = event.failure

    def _talk(self, kind: type[Text] | type[Refusal], text: str) -> None:
        if self._talking is not kind:
            self._close_item()
            self._talking = kind
        self._pieces.append(text)

    def _close_item(self) -> None:
        self._close_talk()
        if self._reasoning:
            self._close_reasoning("", "")

    def _close_talk(self) -> None:
        if self._talking is not None:
            self._items.append(self._talking("".join(self._pieces)))
            self._pieces = []
            self._talking = None

    def _close_reasoning(self, id: str, seal: str) -> None:
        parts = tuple("".join(self._reasoning[part]) for part in sorted(self._reasoning))
        self._reasoning = {}
        self._items.append(Reasoning(parts, id, seal))

    _HANDLERS: ClassVar[dict[type[Event], Callable[[Any, Any], None]]] = {
        TurnStarted: _start,
        TextDelta: _add_text,
        RefusalDelta: _add_refusal,
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
