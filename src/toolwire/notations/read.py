"""Reads calls from text, and reasoning where a notation has channels; used as a policy and as a stage."""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import ClassVar

from toolwire.core.collect import whole_calls
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
    split_batch,
)
from toolwire.core.policies import Events, Kinds
from toolwire.notations.block import Block
from toolwire.notations.emit import CallEmitter, EmitMode
from toolwire.notations.scanner import Scanner
from toolwire.notations.source import LIMIT, Malformed, Source
from toolwire.notations.table import Opener
from toolwire.notations.twins import Twins
from toolwire.notations.values import Schemas

MAX_FALSE_BLOCKS = 64
"""How many blocks of one turn may turn out not to be calls before the rest of it is taken for text."""

LAYOUT = 256
"""Most white space after a block that is held back until something follows."""

_ENDS = (TurnEnded, TurnFailed)
_OTHER_OUTPUT = (ReasoningDelta, ReasoningEnded, RefusalDelta)


class ReadTextCalls:
    """A policy that reads calls from the answer's text. If `names` is given, only those tools can be called.

    White space between two blocks, and after the last, is dropped. A call that also comes in structure is delivered
    once.
    """

    handles: ClassVar[Kinds] = (TextDelta, MessageEnded, CallStarted, CallArgs, CallEnded, Note, TurnEnded, TurnFailed)

    def __init__(
        self,
        notations: Sequence[Opener],
        seed: str,
        schemas: Schemas,
        names: Iterable[str] | None = None,
        *,
        mode: EmitMode = "whole",
    ) -> None:
        self._notations = notations
        self._markers, self._ends, self._breaks = _markers(tuple([(each.open, each.ends) for each in notations]))
        self._scanner = Scanner(self._markers)
        self._schemas = schemas
        self._names = None if names is None else frozenset(names)
        self._twins = Twins()
        self._emitter = CallEmitter(mode, seed, self._twins)
        self._in_gap = False  # nothing but white space came since a block
        self._layout = ""  # that white space
        self._block: Block | None = None
        self._ended_by: tuple[str, ...] = ()  # what may end it
        self._marker = ""
        self._raw: list[str] = []  # the open block after its marker, while it may become text again
        self._skip = 0  # how much of that was a call
        self._size = 0
        self._reasoning: Source | None = None  # the text is reasoning, up to one of the markers
        self._reasoning_sent = False  # some of it was emitted
        self._inside = False  # an end marker may come, which is no text
        self._attempts_left = MAX_FALSE_BLOCKS

    @property
    def is_busy(self) -> bool:
        """Whether something that may be a call is held back."""
        return self._block is not None or bool(self._twins.held)

    @property
    def _is_open(self) -> bool:
        """Whether anything was held back, or may still become something else."""
        return self._block is not None or self._reasoning is not None or self._in_gap or self._scanner.holds

    @property
    def held(self) -> Collection[str]:
        """Ids of structured calls that are held back because they may be twins of textual ones."""
        return self._twins.held

    def settle(self, call: str) -> Events:
        """Decide about a held call whose arguments are complete, although it has not ended."""
        return self._twins.settle(call)

    def feed(self, event: Event) -> Events:
        if isinstance(event, TextDelta):
            # Nearly all of a turn passes here.
            is_plain = self._block is None and self._reasoning is None and not self._in_gap
            if is_plain and self._scanner.passes(event.text):
                return (event,)
            return [out for each in split_batch(event) for out in self._read_text(each)]
        twins = self._twins
        if isinstance(event, CallArgs):
            if not twins.is_idle:
                return twins.grow(event)
            twins.unread.append((event.id, event.text))
            return (event,)
        if isinstance(event, CallEnded):
            if not twins.is_idle:
                return twins.end(event)
            twins.unread.append(event)
            return (event,)
        if isinstance(event, CallStarted):
            started: Events = (event,)
            if twins.is_idle:
                twins.unread.append(event)
            else:
                started = twins.start(event)
            return [*self._stop(), *started] if self._is_open else started
        if isinstance(event, _ENDS):
            return [*self._stop(), *self._twins.release(), event] if self._is_open or self.held else (event,)
        if isinstance(event, Note):
            return [*self._lose_block(), event] if event.code == "frame_skipped" else (event,)
        if isinstance(event, MessageEnded) or (isinstance(event, _OTHER_OUTPUT) and self._emitter.is_emitting):
            return [*self._stop(), event]
        return (event,)

    def recover(self) -> Events:
        """The call of an open block that lacks nothing but its end, if there is one."""
        out: list[Event] = []
        block = self._block
        if block is not None and (block.is_row or (block.call.whole and self._close(block, out))):
            out.append(Note("text_call_recovered", block.call.name))
            self._block = None
        return out

    def _read_text(self, event: TextDelta) -> Events:
        out = self._read(event.text)
        # Text that passes unchanged stays the same event, with its frame.
        same = len(out) == 1 and isinstance(out[0], TextDelta) and out[0].text == event.text
        return (event,) if same else out

    def _read(self, text: str, offset: int = 0) -> list[Event]:
        """Read text with whatever is open; each reader returns where the next continues, so nothing is copied."""
        out: list[Event] = []
        while True:
            if self._reasoning is not None:
                text, offset = self._read_reasoning(self._reasoning, text, offset, out)
            elif self._block is not None:
                text, offset = self._read_block(self._block, text, offset, out)
            elif not self._attempts_left:
                self._emit_text(text[offset:], out)
                return out
            else:
                before, marker, text, offset = self._scanner.feed(text, offset)
                self._emit_text(before, out)
                if not marker:
                    return out
                self._handle_marker(marker, out)
            if offset == len(text) and (self._block is not None or self._reasoning is not None):
                return out

    def _emit_text(self, text: str, out: list[Event]) -> None:
        """Pass text on, together with the white space held back before it."""
        if self._in_gap:
            text = self._layout + text
            if not text.strip() and len(text) <= LAYOUT:
                self._layout = text
                return
            self._forget_layout()
        if text:
            out.append(TextDelta(text))

    def _forget_layout(self) -> None:
        self._in_gap = False
        self._layout = ""

    def _handle_marker(self, marker: str, out: list[Event]) -> None:
        """Handle a marker in the text: it opens a block, ends what was before it, or is text itself."""
        if marker not in self._ends:
            self._open(marker)
        elif self._inside:
            self._inside = False
            self._scanner = Scanner(self._markers)
        else:
            self._emit_text(marker, out)

    def _open(self, marker: str) -> None:
        opener = next(each for each in self._notations if each.open == marker)
        self._block = Block(opener, self._schemas, self._names)
        self._ended_by = opener.ends
        self._marker = marker
        self._raw = []
        self._skip = 0
        self._size = 0
        self._inside = False
        self._emitter.begin()

    def _read_block(self, block: Block, text: str, offset: int, out: list[Event]) -> tuple[str, int]:
        """Feed the open block; returns where to continue."""
        if self._raw:
            self._raw.append(text[offset:])
        else:
            self._raw, self._skip = [text], offset
        self._size += len(text) - offset
        while True:
            try:
                block.feed(text, offset)
            except Malformed as fault:
                self._emit(block, out)
                return self._give_up(block, str(fault), out)
            self._emit(block, out)
            if not block.made:
                break
            if not self._close(block, out):
                return self._give_up(block, "arguments are not JSON", out)
            if block.closed:
                break
            text, offset = "", 0
        if block.closed:
            return self._leave(block)
        if not self._emitter.is_emitting and self._size > LIMIT:
            return self._give_up(block, "too long", out)
        return "", 0

    def _emit(self, block: Block, out: list[Event]) -> None:
        out += self._emitter.emit(block.call)
        if self._emitter.is_emitting:
            self._raw = []
            self._forget_layout()

    def _close(self, block: Block, out: list[Event]) -> bool:
        """Emit a call that is whole; returns False if it is not a call. What follows it may still become text."""
        events = self._emitter.close(block.call)
        if events is None:
            return False
        out += events
        self._in_gap, self._layout = True, ""
        self._marker = ""
        text, self._skip = block.position()
        self._raw = [text]
        self._size = len(text) - self._skip
        return True

    def _leave(self, block: Block) -> tuple[str, int]:
        """Leave a block that is over; its head may have decided where the text after it goes."""
        self._block = None
        self._inside = bool(self._ended_by)
        if block.channel is not None:
            self._scanner = Scanner(self._markers)
        if block.channel == "reasoning":
            self._reasoning = Source()
        return block.position()

    def _give_up(self, block: Block, reason: str, out: list[Event]) -> tuple[str, int]:
        """Turn a block that is not a call into text again, or into an incomplete call if it was already started."""
        self._block = None
        self._attempts_left -= 1
        if self._emitter.is_emitting:
            out += self._emitter.cut()
            return block.position()
        out.append(Note("text_block_kept", reason))
        self._emit_text(self._marker, out)
        return "".join(self._raw), self._skip

    def _lose_block(self) -> list[Event]:
        """Give the open block up because a frame was lost, perhaps inside it."""
        out: list[Event] = []
        if self._block is not None:
            rest = self._give_up(self._block, "a frame of it was lost", out)
            out += self._read(*rest)
        return out

    def _read_reasoning(self, reasoning: Source, text: str, offset: int, out: list[Event]) -> tuple[str, int]:
        """Read reasoning up to a marker; returns where to continue."""
        reasoning.feed(text, offset)
        piece, marker = reasoning.piece(*self._breaks)
        self._emit_reasoning(piece, out)
        if not marker:
            return "", 0
        self._end_reasoning(out)
        if marker in self._ends:
            self._inside = False
        else:
            reasoning.back(marker)
        return reasoning.position()

    def _emit_reasoning(self, text: str, out: list[Event]) -> None:
        if text:
            out.append(ReasoningDelta(text, "content"))
            self._reasoning_sent = True

    def _end_reasoning(self, out: list[Event]) -> None:
        self._reasoning = None
        if self._reasoning_sent:
            self._reasoning_sent = False
            out.append(ReasoningEnded())

    def _stop(self) -> list[Event]:
        """Close what is open and release what was held back, because no more text follows."""
        out: list[Event] = []
        while (block := self._block) is not None:
            out += self.recover() or self._read(*self._give_up(block, "it has no end", out))
        if self._reasoning is not None:
            self._emit_reasoning(self._reasoning.unread(), out)
            self._end_reasoning(out)
        self._emit_text(self._scanner.end(), out)
        self._forget_layout()
        return out


@lru_cache(maxsize=64)
def _markers(
    blocks: tuple[tuple[str, tuple[str, ...]], ...],
) -> tuple[tuple[str, ...], frozenset[str], tuple[str, ...]]:
    """All markers to look for, those that end something, and those that end reasoning."""
    ends = tuple({end: None for _, closing in blocks for end in closing})
    breaks = tuple(opening for opening, closing in blocks if closing)
    return (*(opening for opening, _ in blocks), *ends), frozenset(ends), (*ends, *breaks)


def extract_calls(text: str, notations: Sequence[Opener], schemas: Schemas | None = None) -> list[tuple[str, str]]:
    """Every call in a finished text, in order, as name and arguments."""
    reader = ReadTextCalls(notations, "", schemas or Schemas(()))
    events = (*reader.feed(TextDelta(text)), *reader.feed(TurnEnded()))
    return [(call.name, call.arguments) for call in whole_calls(events)]
