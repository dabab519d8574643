"""The textual reader, a policy or a stage: text in; text, calls and, where a notation has channels, reasoning out."""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import ClassVar

from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    MessageEnded,
    Note,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
)
from toolwire.core.flow import one_by_one
from toolwire.core.policies import Events, Kinds
from toolwire.notations.block import Block
from toolwire.notations.scanner import Scanner
from toolwire.notations.source import LIMIT, Malformed, Until
from toolwire.notations.table import Opener
from toolwire.notations.tell import Teller, Telling
from toolwire.notations.twins import Twins
from toolwire.notations.values import Schemas

PATIENCE = 64
"""How many blocks of one turn may turn out to be no calls before the rest of it is taken for text."""

LAYOUT = 256
"""Most white space behind a block that waits for what follows it."""

_ENDS = (TurnEnded, TurnFailed)
_TALKS = (ReasoningDelta, ReasoningEnded, RefusalDelta)


class ReadTextCalls:
    """A policy that reads calls from the answer's text. Names, if given, are the only ones that count.

    White space between two blocks, and behind the last, is layout and goes nowhere. A call that also comes in
    structure is delivered once.
    """

    handles: ClassVar[Kinds] = (TextDelta, MessageEnded, CallStarted, CallArgs, CallEnded, Note, TurnEnded, TurnFailed)

    def __init__(
        self,
        notations: Sequence[Opener],
        seed: str,
        schemas: Schemas,
        names: Iterable[str] | None = None,
        *,
        telling: Telling = "whole",
    ) -> None:
        self._notations = notations
        self._markers, self._ends, self._breaks = _markers(tuple([(each.open, each.ends) for each in notations]))
        self._scanner = Scanner(self._markers)
        self._schemas = schemas
        self._names = None if names is None else frozenset(names)
        self._twins = Twins()
        self._teller = Teller(telling, seed, self._twins)
        self._behind = False  # nothing but white space came since a block
        self._layout = ""  # that white space
        self._block: Block | None = None
        self._ended_by: tuple[str, ...] = ()  # what may end it
        self._marker = ""
        self._raw: list[str] = []  # the open block after its marker, as long as it may become text again
        self._skip = 0  # what of that was a call
        self._size = 0
        self._thought: Until | None = None  # the text is reasoning, up to one of the markers
        self._thinking = False  # some of it was told
        self._inside = False  # an end marker may come, which is no text
        self._patience = PATIENCE

    @property
    def is_busy(self) -> bool:
        """Something that may be a call is on its way and was not let go."""
        return self._block is not None or bool(self._twins.held)

    @property
    def _is_open(self) -> bool:
        """Whether anything was held back, or may still become something else."""
        return self._block is not None or self._thought is not None or self._behind or self._scanner.holds

    @property
    def held(self) -> Collection[str]:
        """Structured calls that may turn out to say what a text has said."""
        return self._twins.held

    def settle(self, call: str) -> Events:
        """A held call is whole as it stands, although nobody has ended it."""
        return self._twins.settle(call)

    def feed(self, event: Event) -> Events:
        if isinstance(event, TextDelta):
            # Nearly all of a turn passes here.
            if self._block is None and self._thought is None and not self._behind and self._scanner.passes(event.text):
                return (event,)
            return [out for each in one_by_one(event) for out in self._read_text(each)]
        if isinstance(event, CallArgs):
            twins = self._twins
            if event.id != twins.flowing:
                return twins.grow(event)
            twins.pieces.append(event.text)
            return (event,)
        if isinstance(event, CallEnded):
            return self._twins.end(event)
        if isinstance(event, CallStarted):
            started = self._twins.start(event)
            return [*self._stop(), *started] if self._is_open else started
        if isinstance(event, _ENDS):
            return [*self._stop(), *self._twins.release(), event] if self._is_open or self._twins.held else (event,)
        if isinstance(event, Note):
            return [*self._lose_block(), event] if event.code == "frame_skipped" else (event,)
        if isinstance(event, MessageEnded) or (isinstance(event, _TALKS) and self._teller.is_telling):
            return [*self._stop(), event]
        return (event,)

    def end(self) -> Events:
        return ()

    def recover(self) -> Events:
        """The call of a block that lacks nothing but its end, if there is one."""
        out: list[Event] = []
        block = self._block
        if block is not None and (block.is_row or (block.call.whole and self._close(block, out))):
            out.append(Note("text_call_recovered", block.call.name))
            self._block = None
        return out

    def _read_text(self, event: TextDelta) -> Events:
        out = self._read(event.text)
        # What comes out as it went in is the same event, with all it knows about itself.
        same = len(out) == 1 and isinstance(out[0], TextDelta) and out[0].text == event.text
        return (event,) if same else out

    def _read(self, text: str, place: int = 0) -> list[Event]:
        """Text goes through what is open, one after the other; each says where the next begins, so nothing is cut."""
        out: list[Event] = []
        while True:
            if self._thought is not None:
                text, place = self._think(self._thought, text, place, out)
            elif self._block is not None:
                text, place = self._read_block(self._block, text, place, out)
            elif not self._patience:
                self._say(text[place:], out)
                return out
            else:
                before, marker, text, place = self._scanner.feed(text, place)
                self._say(before, out)
                if not marker:
                    return out
                self._meet(marker, out)
            if place == len(text) and (self._block is not None or self._thought is not None):
                return out

    def _say(self, text: str, out: list[Event]) -> None:
        """Text goes on, together with the white space in front of it."""
        if self._behind:
            text = self._layout + text
            if not text.strip() and len(text) <= LAYOUT:
                self._layout = text
                return
            self._forget_layout()
        if text:
            out.append(TextDelta(text))

    def _forget_layout(self) -> None:
        self._behind = False
        self._layout = ""

    def _meet(self, marker: str, out: list[Event]) -> None:
        """A marker stands in the text: it opens a block, or ends what stood before it, or is text itself."""
        if marker not in self._ends:
            self._open(marker)
        elif self._inside:
            self._inside = False
            self._scanner = Scanner(self._markers)
        else:
            self._say(marker, out)

    def _open(self, marker: str) -> None:
        opener = next(each for each in self._notations if each.open == marker)
        self._block = Block(opener, self._schemas, self._names)
        self._ended_by = opener.ends
        self._marker = marker
        self._raw = []
        self._skip = 0
        self._size = 0
        self._inside = False
        self._teller.begin()

    def _read_block(self, block: Block, text: str, place: int, out: list[Event]) -> tuple[str, int]:
        """Feed the open block; returns where to go on."""
        if self._raw:
            self._raw.append(text[place:])
        else:
            self._raw, self._skip = [text], place
        self._size += len(text) - place
        while True:
            try:
                block.feed(text, place)
            except Malformed as fault:
                self._tell(block, out)
                return self._give_up(block, str(fault), out)
            self._tell(block, out)
            if not block.made:
                break
            if not self._close(block, out):
                return self._give_up(block, "arguments are not JSON", out)
            if block.closed:
                break
            text, place = "", 0
        if block.closed:
            return self._leave(block)
        if not self._teller.is_telling and self._size > LIMIT:
            return self._give_up(block, "too long", out)
        return "", 0

    def _tell(self, block: Block, out: list[Event]) -> None:
        out += self._teller.tell(block.call)
        if self._teller.is_telling:
            self._raw = []
            self._forget_layout()

    def _close(self, block: Block, out: list[Event]) -> bool:
        """A call is whole and goes out; what comes behind it may still become text. False: it is no call."""
        told = self._teller.close(block.call)
        if told is None:
            return False
        out += told
        self._behind, self._layout = True, ""
        self._marker = ""
        text, self._skip = block.place()
        self._raw = [text]
        self._size = len(text) - self._skip
        return True

    def _leave(self, block: Block) -> tuple[str, int]:
        """The block is over: the text behind it goes where its head said, or on as it did."""
        self._block = None
        self._inside = bool(self._ended_by)
        if block.channel is not None:
            self._scanner = Scanner(self._markers)
        if block.channel == "reasoning":
            self._thought = Until(*self._breaks)
        return block.place()

    def _give_up(self, block: Block, reason: str, out: list[Event]) -> tuple[str, int]:
        """The block is no call: it becomes text again, or, if the call was begun, an incomplete call."""
        self._block = None
        self._patience -= 1
        if self._teller.is_telling:
            out += self._teller.cut()
            return block.place()
        out.append(Note("text_block_kept", reason))
        self._say(self._marker, out)
        return "".join(self._raw), self._skip

    def _lose_block(self) -> list[Event]:
        """A frame was lost, perhaps inside the open block: whatever follows, its call cannot be trusted."""
        out: list[Event] = []
        if self._block is not None:
            rest = self._give_up(self._block, "a frame of it was lost", out)
            out += self._read(*rest)
        return out

    def _think(self, thought: Until, text: str, place: int, out: list[Event]) -> tuple[str, int]:
        """Reasoning up to a marker; returns where to go on."""
        piece, marker, text, place = thought.feed(text, place)
        if piece:
            out.append(ReasoningDelta(piece, "content"))
            self._thinking = True
        if not marker:
            return text, place
        self._end_thought(out)
        if marker not in self._ends:
            return text, place - len(marker)
        self._inside = False
        return text, place

    def _end_thought(self, out: list[Event]) -> None:
        self._thought = None
        if self._thinking:
            self._thinking = False
            out.append(ReasoningEnded())

    def _stop(self) -> list[Event]:
        """Nothing more can follow: settle what is open and let go what was held back."""
        out: list[Event] = []
        while (block := self._block) is not None:
            out += self.recover() or self._read(*self._give_up(block, "it has no end", out))
        if self._thought is not None:
            held = self._thought.end()
            if held:
                out.append(ReasoningDelta(held, "content"))
                self._thinking = True
            self._end_thought(out)
        self._say(self._scanner.end(), out)
        self._forget_layout()
        return out


@lru_cache(maxsize=64)
def _markers(
    blocks: tuple[tuple[str, tuple[str, ...]], ...],
) -> tuple[tuple[str, ...], frozenset[str], tuple[str, ...]]:
    """All markers to look for, those that end something, and those that end reasoning. A block has a start and ends."""
    ends = tuple({end: None for _, closing in blocks for end in closing})
    breaks = tuple(opening for opening, closing in blocks if closing)
    return (*(opening for opening, _ in blocks), *ends), frozenset(ends), (*ends, *breaks)


def extract_calls(text: str, notations: Sequence[Opener], schemas: Schemas | None = None) -> list[tuple[str, str]]:
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
