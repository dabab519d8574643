"""Calls that a model writes as text: one text, read in every way there is, with one result."""

from collections.abc import Iterable

import msgspec

from tests.support.chunks import in_any_chunking
from toolwire.core.events import CallArgs, CallEnded, CallStarted, Note, TextDelta, TurnEnded
from toolwire.notations.emit import EmitMode
from toolwire.notations.read import ReadTextCalls
from toolwire.notations.tool_call import TOOL_CALL
from toolwire.notations.use_tool import USE_TOOL
from toolwire.notations.values import Schemas

SEED = "seed"


class Reading(msgspec.Struct, frozen=True):
    """What the textual reader made of a text: pieces in order, text as it is, a call as name and arguments."""

    pieces: tuple[str | tuple[str, str], ...]
    cut: tuple[tuple[str, str], ...]
    """Calls that ended incomplete, with what of their arguments went out."""
    notes: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(piece for piece in self.pieces if isinstance(piece, str))

    @property
    def calls(self) -> list[tuple[str, str]]:
        return [piece for piece in self.pieces if isinstance(piece, tuple)]


def live(words: str, names: Iterable[str] | None = None, schemas: Schemas | None = None) -> Reading:
    """Read in any chunking, calls told while they are read."""
    return in_any_chunking(words, lambda pieces: _read(pieces, reader("live", names, schemas)))


def whole(words: str, names: Iterable[str] | None = None, schemas: Schemas | None = None) -> Reading:
    """Read in any chunking, calls told when they are closed."""
    return in_any_chunking(words, lambda pieces: _read(pieces, reader("whole", names, schemas)))


def read_all(words: str, names: Iterable[str] | None = None, schemas: Schemas | None = None) -> Reading:
    """Both ways find the same."""
    first = live(words, names, schemas)
    assert first == whole(words, names, schemas)
    return first


def reader(mode: EmitMode, names: Iterable[str] | None = None, schemas: Schemas | None = None) -> ReadTextCalls:
    return ReadTextCalls((USE_TOOL, TOOL_CALL), SEED, schemas or Schemas(()), names, mode=mode)


def _read(pieces: Iterable[str], policy: ReadTextCalls) -> Reading:
    events = [out for piece in pieces for out in policy.feed(TextDelta(piece))]
    events += policy.feed(TurnEnded())
    assert events[-1] == TurnEnded()
    assert not any(isinstance(event, TurnEnded) for event in events[:-1])
    found: list[str | tuple[str, str]] = []
    cut: list[tuple[str, str]] = []
    name, arguments = "", ""
    for event in events:
        match event:
            case TextDelta(words):
                before = found.pop() if found and isinstance(found[-1], str) else ""
                found.append(f"{before}{words}")
            case CallStarted(_, name):
                arguments = ""
            case CallArgs(_, words):
                words.encode()  # a piece of text, not half of a character
                arguments += words
            case CallEnded(_, complete):
                (found if complete else cut).append((name, arguments))
            case _:
                pass
    notes = tuple(event.code for event in events if isinstance(event, Note))
    return Reading(tuple(found), tuple(cut), notes)
