"""Reading a text by the notations of a profile, in any chunking."""

import json
import re
from collections.abc import Sequence

import msgspec

from tests.support.chunks import in_any_chunking
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    Note,
    ReasoningDelta,
    ReasoningEnded,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from toolwire.core.order import TurnOrder
from toolwire.core.request import Tool
from toolwire.core.stage import Pipeline
from toolwire.notations.emit import EmitMode
from toolwire.notations.read import ReadTextCalls
from toolwire.notations.reasoning import ReadReasoning
from toolwire.notations.registry import CALLS, HERMES, REASONING
from toolwire.notations.values import Schemas


class Reading(msgspec.Struct, frozen=True):
    """What a text was read as: strings are text, `{"thought"}` reasoning, tuples calls with whether they are complete."""

    pieces: tuple[object, ...]
    notes: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return "".join(piece for piece in self.pieces if isinstance(piece, str))

    @property
    def thoughts(self) -> list[str]:
        return [thought for piece in self.pieces if isinstance(piece, frozenset) for thought in piece]

    @property
    def calls(self) -> list[tuple[str, str]]:
        return [piece[:2] for piece in self.pieces if isinstance(piece, tuple) and piece[2]]

    @property
    def codes(self) -> list[str]:
        return [code for code, _ in self.notes]


def schema(**properties: str | list[str]) -> msgspec.Raw:
    typed = {name: {"type": type} for name, type in properties.items()}
    return msgspec.Raw(json.dumps({"type": "object", "properties": typed}).encode())


TOOLS = (Tool("find", parameters=schema(q="string", n="integer", tags="array")), Tool("now"))


def stages(names, *, mode: EmitMode = "live", tools=TOOLS, declared=None) -> Pipeline:
    """The stages that a profile with these notations asks for."""
    openers = [opener for name in names for opener in (HERMES.reads if name == "hermes" else CALLS.get(name, ()))]
    declared = tuple(tool.name for tool in tools) if declared is None else declared
    line = [ReadReasoning(REASONING[name]) for name in names if name in REASONING]
    if openers:
        line.append(ReadTextCalls(openers, "S", Schemas(tools), declared, mode=mode))
    return Pipeline(*line)


def reading(text: str, *names: str, mode: EmitMode = "live", **options) -> Reading:
    """The same in any chunking, with a lawful order of events."""

    def run(pieces: list[str]) -> Reading:
        line = stages(names, mode=mode, **options)
        events = [out for piece in pieces for out in line.feed(TextDelta(piece))]
        return told([*events, *line.feed(TurnEnded())])

    return in_any_chunking(text, run)


def told(events: list[Event]) -> Reading:
    """Events as pieces: what is one text, thought or call is one piece."""
    order = TurnOrder()
    found: list[object] = []
    name, arguments = "", ""
    thinking = False
    for event in (TurnStarted(), *events):
        order.check((event,))
        match event:
            case TextDelta(text):
                found.append(f"{found.pop()}{text}" if found and isinstance(found[-1], str) else text)
            case ReasoningDelta(text):
                before = "".join(found.pop()) if thinking else ""  # type: ignore[arg-type]
                found.append(frozenset((before + text,)))
            case CallStarted(_, name):
                arguments = ""
            case CallArgs(_, text):
                arguments += text
            case CallEnded(_, complete):
                found.append((name, arguments, complete))
            case _:
                pass
        thinking = isinstance(event, ReasoningDelta) or (thinking and isinstance(event, Note))
        assert not (isinstance(event, ReasoningEnded) and not found)
    order.end()
    return Reading(tuple(found), tuple((event.code, event.subject) for event in events if isinstance(event, Note)))


def unguarded(text: str, markers: Sequence[str]) -> str:
    """The text that was guarded: without one backslash behind the first letter of each of these markers."""
    for marker in markers:
        text = re.sub(rf"({re.escape(marker[0])})\\(\\*{re.escape(marker[1:])})", r"\1\2", text)
    return text
