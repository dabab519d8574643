"""What the decoders of all backends have in common: the table of calls, the notes that open a turn, its one end."""

from collections.abc import Sequence

import msgspec

from toolwire.core.backend import ContextWindow
from toolwire.core.errors import Failure
from toolwire.core.events import Event, Note, TurnFailed
from toolwire.core.identity import CallTable
from toolwire.core.sequence import OneCallAtATime
from toolwire.core.sse import Frame
from toolwire.core.surrogates import SurrogateHalves

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading a server's JSON may raise: it is none, or goes too deep."""


class TurnDecoder:
    """The base of a stage from frames to turn events, for one turn."""

    flowing: Sequence[bytes] = ()
    """The beginnings of the fields whose text may be read in runs of frames."""

    def __init__(self, seed: str, names: Sequence[str] = (), *, tells_items: bool = False) -> None:
        self._table = CallTable(seed, names, tells_items=tells_items)
        self._row = OneCallAtATime()
        self._halves = SurrogateHalves()
        self._opening: list[Event] = []
        self._started = False
        self._unreadable = 0
        self.ended = False
        self.finishing = 0  # frames since every choice has its finish reason, without heartbeats
        self.context_window = ContextWindow()

    def begin(self, notes: Sequence[Event]) -> None:
        """Notes about the request, to be told with the turn."""
        self._opening.extend(notes)

    def reasoning(self) -> str:
        """The reasoning so far, as the fields in which the server wants it back, if its protocol has any."""
        return ""

    def _made_whole(self, data: bytes) -> bytes:
        """The data with the letters whole that the backend cut in half; halves that stay alone are replaced."""
        lost = self._halves.lost
        mended = self._halves.mended(data)
        self._opening += [Note("letter_replaced")] * (self._halves.lost - lost)
        return data if mended is None else mended

    def _skip_frame(self, frame: Frame) -> None:
        """A frame cannot be read: whatever it said is lost, and a call may have a gap there."""
        self._unreadable += 1
        self._opening.append(Note("frame_skipped"))
        if not frame.data.lstrip().startswith(b":") and frame.event != b"ping":  # `data: : keepalive` says nothing
            self._table.gap()

    def _fail(self, failure: Failure) -> list[Event]:
        self.ended = True
        return [TurnFailed(failure)]

    def _cut(self) -> list[Event]:
        """The stream is over and the turn is not."""
        message = "The backend's stream ended before the turn did."
        if self._unreadable and not self._started:
            message = "The backend's reply is not an event stream."
        return self._fail(Failure(502, "stream_cut", message, retryable=True))


def counted(tokens: float | None) -> int:
    """A number of tokens, whatever a server wrote for it."""
    return max(0, int(tokens or 0))
