"""The textual reader as a policy: text in, text and calls out.

A call goes out live, while it is read; whole, when its block is closed; or at the end of the turn. The last is for
tools that also went to the backend in structure: the same call may come both ways, and then the structured one wins,
one for one.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal, Protocol, TypeAlias

from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    MessageEnded,
    Note,
    TextDelta,
    TurnEnded,
    TurnFailed,
)
from toolwire.core.identity import minted_prefix
from toolwire.core.policies import Events, Kinds
from toolwire.core.text import is_json, same_json
from toolwire.notations.block import LIMIT, Block, Malformed
from toolwire.notations.scanner import Scanner
from toolwire.notations.table import Notation
from toolwire.notations.values import Schemas

Telling: TypeAlias = Literal["live", "whole", "end"]

PATIENCE = 64
"""How many blocks of one turn may turn out to be no calls before the rest of it is taken for text."""


class Made(Protocol):
    """A structured call the backend made."""

    @property
    def name(self) -> str: ...

    @property
    def text(self) -> str: ...


class ReadTextCalls:
    """A policy that reads calls from the answer's text. Names, if given, are the only ones that count.

    `structured` gives the calls that came in structure, where the same ones may come as text. `drop_tail`: text after a
    call is not wanted.
    """

    handles: ClassVar[Kinds] = (TextDelta, MessageEnded, CallStarted, TurnEnded, TurnFailed)

    def __init__(
        self,
        notations: Sequence[Notation],
        seed: str,
        schemas: Schemas,
        names: Iterable[str] | None = None,
        structured: Callable[[], Iterable[Made]] = tuple,
        *,
        telling: Telling = "end",
        strict: bool = False,
        drop_tail: bool = False,
    ) -> None:
        self._notations = notations
        self._scanner = Scanner(notations)
        self._seed = seed
        self._schemas = schemas
        self._names = None if names is None else frozenset(names)
        self._structured = structured
        self._telling: Telling = telling
        self._strict = strict
        self._drop_tail = drop_tail
        self._dropped = False
        self._block: Block | None = None
        self._marker = ""
        self._raw: list[str] = []  # the open block after its marker, as long as it may become text again
        self._arguments: list[str] = []
        self._size = 0
        self._id = ""  # of the call being told live
        self._count = 0
        self._patience = PATIENCE
        self._waiting: list[tuple[str, str]] = []  # calls held to the end: name and arguments

    def feed(self, event: Event) -> Events:
        if isinstance(event, TextDelta):
            if self._block is None and not self._waiting and self._scanner.passes(event.text):
                return (event,)
            out = self._read(event.text)
            # What comes out as it went in is the same event, with all it knows about itself.
            same = len(out) == 1 and isinstance(out[0], TextDelta) and out[0].text == event.text
            return (event,) if same else out
        if self._block is None and not self._waiting and not self._scanner.holds:
            return (event,)
        if isinstance(event, CallStarted | MessageEnded):
            return [*self._stop(), event]
        return [*self._stop(), *self._release(), event]

    def end(self) -> Events:
        return ()

    def _read(self, text: str) -> list[Event]:
        out: list[Event] = []
        while True:
            if self._block is None:
                if not self._patience:
                    return [*out, TextDelta(text)] if text else out
                before, marker, text = self._scanner.feed(text)
                if before:
                    out += self._say(before)
                if not marker:
                    return out
                self._open(marker)
            elif not text:
                return out
            text = self._read_block(text, out)

    def _say(self, text: str) -> Events:
        if not (self._drop_tail and self._waiting):
            return (TextDelta(text),)
        dropped, self._dropped = self._dropped, True
        return () if dropped else (Note("tail_withheld"),)

    def _open(self, marker: str) -> None:
        self._block = Block(_opened_by(marker, self._notations), self._schemas, self._names)
        self._marker = marker
        self._raw = []
        self._arguments = []
        self._size = 0
        self._id = ""

    def _read_block(self, text: str, out: list[Event]) -> str:
        """Feed the open block; returns the text to go on with."""
        block = self._block
        assert block is not None
        self._raw.append(text)
        self._size += len(text)
        try:
            block.feed(text)
        except Malformed as fault:
            self._tell(block, out)
            return self._give_up(block, str(fault), out)
        self._tell(block, out)
        if block.closed:
            return self._close(block, out)
        if not self._id and self._size > LIMIT:
            return self._give_up(block, "too long", out)
        return ""

    def _tell(self, block: Block, out: list[Event]) -> None:
        """Take what the block has read, and pass it on if nothing has to be held."""
        if not block.name:
            return
        taken = block.taken()
        self._arguments.append(taken)
        if self._telling != "live":
            return
        if not self._id:
            self._id = self._mint()
            self._raw = []
            out.append(CallStarted(self._id, block.name))
        if taken:
            out.append(CallArgs(self._id, taken))

    def _close(self, block: Block, out: list[Event]) -> str:
        arguments = "".join(self._arguments)
        if not is_json(arguments):
            return self._give_up(block, "arguments are not JSON", out)
        self._block = None
        if block.repaired:
            out.append(Note("text_call_repaired", block.name))
        if self._id:
            out.append(CallEnded(self._id))
        elif self._telling == "whole":
            out += self._whole_call(block.name, arguments)
        else:
            self._waiting.append((block.name, arguments))
        return block.unread()

    def _give_up(self, block: Block, reason: str, out: list[Event]) -> str:
        """The block is no call: it becomes text again, or, if the call was begun, an incomplete call."""
        self._block = None
        self._patience -= 1
        if self._id:
            out.append(CallEnded(self._id, complete=False))
            return block.unread()
        if self._strict:
            message = f"A block of the model's text could not be read as a call: {reason}."
            out.append(TurnFailed(Failure(502, "tool_block_invalid", message)))
            return ""
        out += (Note("text_block_kept", reason), TextDelta(self._marker))
        return "".join(self._raw)

    def _stop(self) -> list[Event]:
        """Nothing more can follow: settle an open block and let go what was held back."""
        out: list[Event] = []
        while self._block is not None:
            block = self._block
            if block.whole:
                out.append(Note("text_call_recovered", block.name))
                self._close(block, out)
            else:
                out += self._read(self._give_up(block, "it has no end", out))
        held = self._scanner.end()
        return [*out, TextDelta(held)] if held else out

    def _release(self) -> list[Event]:
        if not self._waiting:
            return []
        out: list[Event] = []
        made = list(self._structured())
        for name, arguments in self._waiting:
            if take_twin(made, name, arguments):
                out.append(Note("text_call_twin", name))
            else:
                out += self._whole_call(name, arguments)
        self._waiting = []
        return out

    def _whole_call(self, name: str, arguments: str) -> Events:
        id = self._mint()
        return CallStarted(id, name), CallArgs(id, arguments), CallEnded(id)

    def _mint(self) -> str:
        self._count += 1
        return f"{minted_prefix(self._seed)}t{self._count:02d}"


def take_twin(made: list[Made], name: str, arguments: str) -> bool:
    """Whether one of the structured calls says the same; it is taken out, so that each is the twin of one text only."""
    for place, each in enumerate(made):
        if each.name == name and same_json(each.text or "{}", arguments):
            del made[place]
            return True
    return False


def _opened_by(marker: str, notations: Sequence[Notation]) -> Notation:
    return next(notation for notation in notations if notation.open == marker)


def extract_calls(text: str, notations: Sequence[Notation], schemas: Schemas | None = None) -> list[tuple[str, str]]:
    """Every call in a finished text, in order, as name and arguments."""
    reader = ReadTextCalls(notations, "", schemas or Schemas(()))
    names: list[str] = []
    calls: list[tuple[str, str]] = []
    for event in (*reader.feed(TextDelta(text)), *reader.feed(TurnEnded())):
        if isinstance(event, CallStarted):
            names.append(event.name)
        elif isinstance(event, CallArgs):
            calls.append((names[-1], event.text))
    return calls
