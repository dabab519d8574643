"""Reads calls from text, and reasoning where a notation has channels; used as a policy and as a stage."""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import ClassVar

from toolwire.core.collect import collect_calls
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
from toolwire.core.lane import Check, passes_always
from toolwire.core.policies import Events, Kinds
from toolwire.notations.block import Block
from toolwire.notations.emit import CallEmitter, EmitMode
from toolwire.notations.scanner import Scanner
from toolwire.notations.source import MAX_UNIT_CHARS, Malformed, Source
from toolwire.notations.table import Opener
from toolwire.notations.twins import Twins
from toolwire.notations.values import Schemas

MAX_FALSE_BLOCKS = 64
"""Maximum blocks of one turn that turn out not to be calls; the rest of the turn is then text."""

MAX_HELD_SPACE = 256
"""Maximum white space after a block that is held back until something follows."""

_ENDS = (TurnEnded, TurnFailed)
_OTHER_OUTPUT = (ReasoningDelta, ReasoningEnded, RefusalDelta)


class ReadTextCalls:
    """A policy that reads calls from the answer's text. If `names` is given, only those tools can be called.

    White space between two blocks, and after the last, is dropped. A call that also arrives structured is delivered
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
        self._markers, self._ends, self._breaks = _sort_markers(tuple([(each.open, each.ends) for each in notations]))
        self._scanner = Scanner(self._markers)
        self._schemas = schemas
        self._names = None if names is None else frozenset(names)
        self._twins = Twins()
        self._pass_arguments = self._twins.feed_arguments
        self._emitter = CallEmitter(mode, seed, self._twins)
        self._in_gap = False  # only white space was read since a block
        self._layout = ""  # that white space
        self._block: Block | None = None
        self._ended_by: tuple[str, ...] = ()  # markers that may end it
        self._marker = ""
        self._raw: list[str] = []  # the open block after its marker, while it may become text again
        self._skip = 0  # offset in it where the text that was not yet emitted begins
        self._size = 0
        self._reasoning: Source | None = None  # the text is reasoning, up to one of the markers
        self._reasoning_sent = False  # some of it was emitted
        self._inside = False  # an end marker that follows is dropped; elsewhere it is text
        self._attempts_left = MAX_FALSE_BLOCKS

    @property
    def is_busy(self) -> bool:
        """Whether a possible call is held back."""
        return self._block is not None or bool(self._twins.held)

    @property
    def _is_open(self) -> bool:
        """Whether text is held back, or is being read as a block or as reasoning."""
        return self._block is not None or self._reasoning is not None or self._in_gap or self._scanner.holds

    @property
    def held(self) -> Collection[str]:
        """Ids of structured calls that are held back because they may be twins of textual ones."""
        return self._twins.held

    def settle(self, call: str) -> Events:
        """Decide about a held call whose arguments are complete, although it has not ended."""
        return self._twins.settle(call)

    def find_check(self, event: Event) -> Check:
        """What must hold for the text of further deltas like this one, so that they pass too."""
        return self._passes if isinstance(event, TextDelta) else passes_always

    def _passes(self, text: str) -> bool:
        is_plain = self._block is None and self._reasoning is None and not self._in_gap
        return is_plain and self._scanner.passes(text)

    def feed(self, event: Event) -> Events:
        if isinstance(event, TextDelta):
            if self._passes(event.text):  # as nearly all of a turn
                return (event,)
            out: list[Event] = []
            for each in split_batch(event):
                read = self._read(each.text)
                # Text that passes unchanged stays the same event, with its frame.
                is_same = len(read) == 1 and isinstance(read[0], TextDelta) and read[0].text == each.text
                out += (each,) if is_same else read
            return out
        if isinstance(event, CallArgs):
            return self._pass_arguments(event)
        if isinstance(event, CallStarted | CallEnded):
            passed = self._twins.feed(event)
            return [*self._stop(), *passed] if isinstance(event, CallStarted) and self._is_open else passed
        if isinstance(event, _ENDS):
            return [*self._stop(), *self._twins.release(), event] if self._is_open or self.held else (event,)
        if isinstance(event, Note):
            block = self._block
            if block is None or event.code != "frame_skipped":
                return (event,)
            out = list[Event]()
            out += self._read(*self._give_up(block, "a frame of it was lost", out))
            return [*out, event]
        if isinstance(event, MessageEnded) or (isinstance(event, _OTHER_OUTPUT) and self._emitter.is_emitting):
            return [*self._stop(), event]
        return (event,)

    def recover(self) -> Events:
        """The call of an open block, if only the end of the block is missing."""
        out: list[Event] = []
        block = self._block
        if block is not None and (block.is_complete_row or (block.call.whole and self._close(block, out))):
            out.append(Note("text_call_recovered", block.call.name))
            self._block = None
        return out

    def _read(self, text: str, offset: int = 0) -> list[Event]:
        """Read text with the open reader; each reader returns the offset where the next continues, to avoid copies."""
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
                if marker not in self._ends:
                    opener = next(each for each in self._notations if each.open == marker)
                    self._block = Block(opener, self._schemas, self._names)
                    self._ended_by, self._marker = opener.ends, marker
                    self._raw, self._skip, self._size = [], 0, 0
                    self._inside = False
                    self._emitter.begin()
                elif self._inside:
                    self._inside = False
                    self._scanner = Scanner(self._markers)
                else:
                    self._emit_text(marker, out)
            if offset == len(text) and (self._block is not None or self._reasoning is not None):
                return out

    def _emit_text(self, text: str, out: list[Event]) -> None:
        """Pass text on, together with the white space held back before it."""
        if self._in_gap:
            text = self._layout + text
            if not text.strip() and len(text) <= MAX_HELD_SPACE:
                self._layout = text
                return
            self._forget_layout()
        if text:
            out.append(TextDelta(text))

    def _forget_layout(self) -> None:
        self._in_gap = False
        self._layout = ""

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
            # A head may have decided where the text after its block goes.
            self._block = None
            self._inside = bool(self._ended_by)
            if block.channel is not None:
                self._scanner = Scanner(self._markers)
            if block.channel == "reasoning":
                self._reasoning = Source()
            return block.position
        if not self._emitter.is_emitting and self._size > MAX_UNIT_CHARS:
            return self._give_up(block, "too long", out)
        return "", 0

    def _emit(self, block: Block, out: list[Event]) -> None:
        out += self._emitter.emit(block.call)
        if self._emitter.is_emitting:
            self._raw = []
            self._forget_layout()

    def _close(self, block: Block, out: list[Event]) -> bool:
        """Emit a whole call; returns False if it is not a call. The rest of its block may still become text again."""
        events = self._emitter.close(block.call)
        if events is None:
            return False
        out += events
        self._in_gap, self._layout = True, ""
        self._marker = ""
        text, self._skip = block.position
        self._raw = [text]
        self._size = len(text) - self._skip
        return True

    def _give_up(self, block: Block, reason: str, out: list[Event]) -> tuple[str, int]:
        """Turn a block that is not a call into text again, or into an incomplete call if it was already started."""
        self._block = None
        self._attempts_left -= 1
        if self._emitter.is_emitting:
            out += self._emitter.cut()
            return block.position
        out.append(Note("text_block_kept", reason))
        self._emit_text(self._marker, out)
        return "".join(self._raw), self._skip

    def _read_reasoning(self, reasoning: Source, text: str, offset: int, out: list[Event]) -> tuple[str, int]:
        """Read reasoning up to a marker; returns where to continue."""
        reasoning.feed(text, offset)
        piece, marker = reasoning.read_piece(*self._breaks)
        self._emit_reasoning(piece, out)
        if not marker:
            return "", 0
        self._end_reasoning(out)
        if marker in self._ends:
            self._inside = False
        else:
            reasoning.step_back(marker)
        return reasoning.position

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
        """Close the open block or reasoning and release held text, because no more text follows."""
        out: list[Event] = []
        while (block := self._block) is not None:
            out += self.recover() or self._read(*self._give_up(block, "it has no end", out))
        if self._reasoning is not None:
            self._emit_reasoning(self._reasoning.unread, out)
            self._end_reasoning(out)
        self._emit_text(self._scanner.end(), out)
        self._forget_layout()
        return out


@lru_cache(maxsize=64)
def _sort_markers(
    blocks: tuple[tuple[str, tuple[str, ...]], ...],
) -> tuple[tuple[str, ...], frozenset[str], tuple[str, ...]]:
    """All markers, the end markers among them, and the markers that end reasoning."""
    ends = tuple({end: None for _, closing in blocks for end in closing})
    breaks = tuple(opening for opening, closing in blocks if closing)
    return (*(opening for opening, _ in blocks), *ends), frozenset(ends), (*ends, *breaks)


def extract_calls(text: str, notations: Sequence[Opener], schemas: Schemas | None = None) -> list[tuple[str, str]]:
    """Every call in a finished text, in order, as name and arguments."""
    reader = ReadTextCalls(notations, "", schemas or Schemas(()))
    events = (*reader.feed(TextDelta(text)), *reader.feed(TurnEnded()))
    return [(call.name, call.arguments) for call in collect_calls(events)]
