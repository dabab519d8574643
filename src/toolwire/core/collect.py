"""A finished turn as one value: the same events, collected."""

from typing import TypeAlias

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
        self._turn = Turn()
        self._items: list[Item] = []
        self._notes: list[Note] = []
        self._pieces: list[str] = []  # of the open text, refusal or call
        self._talking: type[Text] | type[Refusal] | None = None
        self._reasoning: dict[int, list[str]] = {}
        self._call: CallStarted | None = None

    def feed(self, event: Event) -> tuple[()]:
        match event:
            case TextDelta(text):
                self._talk(Text, text)
            case RefusalDelta(text):
                self._talk(Refusal, text)
            case ReasoningDelta():
                self._close_talk()
                self._reasoning.setdefault(event.part, []).append(event.text)
            case ReasoningEnded(id, seal):
                self._close_talk()
                self._close_reasoning(id, seal)
            case CallStarted():
                self._close_item()
                self._call = event
            case CallArgs(_, text):
                self._pieces.append(text)
            case CallEnded(_, complete):
                self._close_call(complete)
            case Usage():
                self._turn = msgspec.structs.replace(self._turn, usage=event)
            case Note():
                self._notes.append(event)
            case TurnStarted(id, model):
                self._turn = msgspec.structs.replace(self._turn, id=id, model=model)
            case TurnEnded(reason):
                self._turn = msgspec.structs.replace(self._turn, reason=reason)
            case TurnFailed(failure):
                self._turn = msgspec.structs.replace(self._turn, failure=failure)
            case _:
                pass
        return ()

    def end(self) -> tuple[Turn]:
        self._close_item()
        self._close_call(complete=False)
        return (msgspec.structs.replace(self._turn, items=tuple(self._items), notes=tuple(self._notes)),)

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
        parts = tuple("".join(pieces) for _, pieces in sorted(self._reasoning.items()))
        self._reasoning = {}
        self._items.append(Reasoning(parts, id, seal))

    def _close_call(self, complete: bool) -> None:
        call = self._call
        if call is not None:
            self._items.append(Call(call.id, call.name, "".join(self._pieces), call.kind, complete))
            self._pieces = []
            self._call = None


def collect(events: list[Event]) -> Turn:
    """The turn that these events make."""
    collector = Collector()
    for event in events:
        collector.feed(event)
    return collector.end()[0]
