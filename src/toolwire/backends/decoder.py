"""The base of all backends' decoders: the table of calls, the notes that open a turn, its one end."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from toolwire.core.backend import ContextWindow
from toolwire.core.calls import CallTable
from toolwire.core.errors import Failure
from toolwire.core.events import Event, Note, TurnFailed
from toolwire.core.sequence import OneCallAtATime
from toolwire.core.sse import Frame
from toolwire.core.surrogates import SurrogateHalves

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a server's JSON may raise: it is invalid, or nested too deep."""


class TurnDecoder(ABC):
    """The base of a stage from frames to turn events, for one turn."""

    delta_fields: Sequence[bytes] = ()
    """The opening bytes of the fields whose text may be read in batches of frames."""

    def __init__(self, seed: str, names: Sequence[str] = (), *, with_items: bool = False) -> None:
        self._table = CallTable(seed, names, with_items=with_items)
        self._sequencer = OneCallAtATime()
        self._surrogates = SurrogateHalves()
        self._opening: list[Event] = []
        self._started = False
        self._unreadable = 0
        self.ended = False
        self.finishing = 0  # frames since every choice has its finish reason, without heartbeats
        self.context_window = ContextWindow()

    @abstractmethod
    def feed(self, frame: Frame) -> Sequence[Event]:
        """The events of one frame."""
        ...

    @abstractmethod
    def end(self) -> Sequence[Event]:
        """The events caused by the end of the stream."""
        ...

    @abstractmethod
    def feed_plain(self, body: bytes) -> Sequence[Event]:
        """The events of a reply that is not streamed."""
        ...

    def begin(self, notes: Sequence[Event]) -> None:
        """Take notes about the request, which are delivered at the start of the turn."""
        self._opening.extend(notes)

    def reasoning(self) -> str:
        """The reasoning so far, as the fields in which the server needs it back, if its protocol has such fields."""
        return ""

    def _with_whole_chars(self, data: bytes) -> bytes:
        """The data with characters joined that the backend cut in half; lone halves are replaced."""
        lost = self._surrogates.lost
        mended = self._surrogates.mended(data)
        self._opening += [Note("letter_replaced")] * (self._surrogates.lost - lost)
        return data if mended is None else mended

    def _skip_frame(self, frame: Frame) -> None:
        """Note that a frame cannot be read; an open call may have a gap there."""
        self._unreadable += 1
        self._opening.append(Note("frame_skipped"))
        if not frame.data.lstrip().startswith(b":") and frame.event != b"ping":  # `data: : keepalive` is harmless
            self._table.gap()

    def _fail(self, failure: Failure) -> list[Event]:
        self.ended = True
        return [TurnFailed(failure)]

    def _cut(self) -> list[Event]:
        """Fail the turn because its stream ended too early."""
        message = "The backend's stream ended before the turn did."
        if self._unreadable and not self._started:
            message = "The backend's reply is not an event stream."
        return self._fail(Failure(502, "stream_cut", message, retryable=True))


def counted(tokens: float | None) -> int:
    """A number of tokens as a non-negative integer, whatever the server sent."""
    return max(0, int(tokens or 0))
