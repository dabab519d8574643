"""An answer: the turn of one request, in the dialect of the client that asked for it."""

import time
from collections.abc import Sequence

import msgspec

from toolwire.core.collect import Turn
from toolwire.core.request import Request
from toolwire.memory.turn_memory import TurnMemory
from toolwire.protocols import DialectModule, Encoder
from toolwire.turns.source import TurnSource


class Pace(msgspec.Struct, frozen=True):
    """Seconds until headers leave without an event, and of silence before a sign of life (0: none)."""

    commit_after: float = 10.0
    keepalive: float = 15.0
    opens_at_once: bool = False
    """The headers wait for nothing. Until something is shown the backend may be asked again all the same."""


class Answer:
    """One turn in the client's dialect, as a stream or in one piece."""

    pace: Pace | None = None
    """The pace of its stream, if it is not that of the sink."""

    def __init__(self, dialect: DialectModule, request: Request, seed: str, memory: TurnMemory) -> None:
        self._dialect = dialect
        self._memory = memory
        self.request = request
        self.id = dialect.new_id(seed)
        self.created = int(time.time())
        self._encoder: Encoder | None = None

    def encoder(self, run: TurnSource) -> Encoder:
        """The encoder of the stream: always the same one, with the figures of the attempt that is being made."""
        if self._encoder is None:
            self._encoder = self._dialect.StreamEncoder(self.request, self.id, self.created, run.assembly.stats)
        return self._encoder

    def whole(self, turn: Turn, run: TurnSource) -> bytes:
        """The turn in one piece."""
        return self._dialect.encode_turn(turn, self.request, self.id, self.created)

    def check(self) -> None:
        """Raise if the turn has become larger than may be held."""

    async def settle(self, pieces: Sequence[bytes]) -> Sequence[bytes]:
        """The turn is over and its last bytes have not left: keep what must be kept; returns what is to leave."""
        await self._memory.flush()
        return pieces

    async def cancel(self) -> None:
        """The client left before the turn was over: keep what must be kept."""
