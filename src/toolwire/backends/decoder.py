"""The base of all decoders: the table of calls, the notes at the start of a turn, and its end."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from toolwire.core.backend import ContextWindow
from toolwire.core.calls import CallTable, is_fragment
from toolwire.core.errors import MAX_CALLS, Failure, TooManyCalls
from toolwire.core.events import CallArgs, Delta, Event, Note, TurnFailed, Usage
from toolwire.core.lane import Check, passes_always
from toolwire.core.sequence import OneCallAtATime
from toolwire.core.sse import Frame
from toolwire.core.text import SurrogateHalves

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of decoding JSON that is invalid or nested too deeply."""

Read = TypeVar("Read")


class TurnDecoder(ABC):
    """The base of a stage from frames to turn events, for one turn.

    `keeps_frames`: the client speaks the backend's dialect too. `snapshots`: a delta of arguments repeats all earlier
    ones.
    """

    delta_fields: Sequence[bytes] = ()
    """The opening bytes of the fields whose text may be read in batches of frames."""
    snapshot_fields: Sequence[bytes] = ()
    """The `delta_fields` that hold increments even with `snapshots`, and may still be read in batches."""
    has_items = False
    """Whether its calls are items with ids of their own, which clients of the same dialect see."""

    def __init__(
        self, seed: str, names: Sequence[str] = (), *, snapshots: bool = False, keeps_frames: bool = False
    ) -> None:
        if snapshots:
            self.delta_fields = self.snapshot_fields
        self._snapshots = snapshots
        self._keeps_frames = keeps_frames
        self._table = CallTable(seed, names, with_items=keeps_frames and self.has_items)
        self._sequencer = OneCallAtATime()
        self._surrogates = SurrogateHalves()
        self.opening: list[Event] = []
        """The notes to be delivered at the start of the turn."""
        self._started = False
        self._unreadable = 0
        self._failure: Failure | None = None  # from a finish reason; a later error event is more exact
        self.ended: bool = False
        """Whether the backend's stream has ended the turn."""
        self.finishing: int = 0
        """Frames since the last choice got its finish reason, not counting heartbeats; 0 before that."""
        self.given_reason: str = ""
        """The finish reason in the words of the reply."""
        self.context_window: ContextWindow = ContextWindow()
        """The size and state of the model's context window, as far as the reply reported them."""

    @abstractmethod
    def feed(self, frame: Frame) -> Sequence[Event]:
        """The events of one frame."""

    @abstractmethod
    def end(self) -> Sequence[Event]:
        """The events caused by the end of the stream."""

    @abstractmethod
    def feed_plain(self, body: bytes) -> Sequence[Event]:
        """The events of a reply that is not streamed."""

    def find_check(self, delta: Delta) -> Check | None:
        """What must hold for the text of further frames like that of this delta, so that each leads to one such delta.

        None if they must be read.
        """
        return None

    def _check_text(self, delta: Delta) -> Check | None:
        """The check of decoders in general."""
        if self.ended or self.opening or self.finishing or self._snapshots or self._surrogates.half:
            return None
        if not isinstance(delta, CallArgs):
            return passes_always
        return is_fragment if self._table.extends(delta.id) else None

    @property
    def held(self) -> int:
        """A number that grows whenever content has to wait for delivery."""
        return self._sequencer.held

    def encode_reasoning(self) -> str:
        """The reasoning so far as JSON, in the fields that a chat server needs returned; empty for other servers."""
        return ""

    def _put_in_sequence(self, events: Iterable[Event]) -> list[Event]:
        feed = self._sequencer.feed
        return [out for each in events for out in feed(each)]

    def _take_opening(self) -> list[Event]:
        opening, self.opening = self.opening, []
        return opening

    def _read_plain(self, body: bytes, decode: Callable[[bytes], Read]) -> tuple[bytes, Read | None]:
        """A body and its decoded value, after a repair if necessary; the value is None if it cannot be read."""
        try:
            return body, decode(body)
        except UNREADABLE:
            return self._read_mended(body, decode)

    def _read_mended(self, data: bytes, decode: Callable[[bytes], Read]) -> tuple[bytes, Read | None]:
        """The data with split characters joined, and its decoded value; None if it cannot be read.

        Lone surrogates are replaced.
        """
        lost = self._surrogates.lost
        data = self._surrogates.repair(data) or data
        self.opening += [Note("letter_replaced")] * (self._surrogates.lost - lost)
        try:
            return data, decode(data)
        except UNREADABLE:
            return data, None

    def _skip_frame(self, frame: Frame) -> None:
        """Note an unreadable frame, which may have held arguments of an open call."""
        self._unreadable += 1
        self.opening.append(Note("frame_skipped"))
        if not frame.data.lstrip().startswith(b":") and frame.event != b"ping":  # `data: : keepalive` is harmless
            self._table.record_gap()

    def fail(self, failure: Failure) -> list[Event]:
        """End the turn with a failure."""
        self.ended = True
        return [TurnFailed(failure)]

    def _fail_cut(self) -> list[Event]:
        """Fail the turn for the reason that the server gave, or because its stream ended too early."""
        if self._failure is not None:
            return self.fail(self._failure)
        message = "The backend's stream ended before the turn did."
        if self._unreadable and not self._started:
            message = "The backend's reply is not an event stream."
        return self.fail(Failure(502, "stream_cut", message, retryable=True))


def check_count(items: Sequence[Read]) -> Sequence[Read]:
    """Return the items. Raises `TooManyCalls` if there are more than `MAX_CALLS`."""
    if len(items) > MAX_CALLS:
        raise TooManyCalls
    return items


class TokenDetails(msgspec.Struct, gc=False):
    """The details of token counts in OpenAI's APIs."""

    cached_tokens: float | None = None
    cache_write_tokens: float | None = None
    reasoning_tokens: float | None = None


_NO_DETAILS = TokenDetails()


def usage_of(
    input: float | None, output: float | None, input_details: TokenDetails | None, output_details: TokenDetails | None
) -> Usage:
    """The token counts of OpenAI's APIs as an event."""
    read, written = input_details or _NO_DETAILS, output_details or _NO_DETAILS
    counts = (input, output, read.cached_tokens, read.cache_write_tokens, written.reasoning_tokens)
    return Usage(*map(as_count, counts))


def as_count(tokens: float | None) -> int:
    """A server's token count as a non-negative integer."""
    return max(0, int(tokens or 0))
