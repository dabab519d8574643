"""The answer to one request: its turn, in the dialect of the client."""

import time
from collections.abc import Sequence

import msgspec

from toolwire.core.collect import Turn
from toolwire.core.request import Request
from toolwire.memory.turn_memory import TurnMemory
from toolwire.protocols import DialectModule, Encoder
from toolwire.turns.source import TurnSource


class Pace(msgspec.Struct, frozen=True):
    """Maximum seconds before the headers are sent, and of silence before a keepalive is sent (0: none)."""

    commit_after: float = 10.0
    keepalive: float = 15.0
    opens_at_once: bool = False
    """Send the headers at once. Retries remain possible until the first event is shown."""


class Answer:
    """One turn in the client's dialect, as a stream or in one piece."""

    pace: Pace | None = None
    """The pace of its stream; None for that of the sink."""

    def __init__(self, dialect: DialectModule, request: Request, seed: str, memory: TurnMemory) -> None:
        self._dialect = dialect
        self._memory = memory
        self.request = request
        self.id = dialect.new_id(seed)
        self.created = int(time.time())
        self._encoder: Encoder | None = None

    def get_encoder(self, run: TurnSource) -> Encoder:
        """The encoder of the stream: always the same one, with the statistics of the current attempt."""
        if self._encoder is None:
            self._encoder = self._dialect.StreamEncoder(self.request, self.id, self.created, run.assembly.stats)
        return self._encoder

    def encode_whole(self, turn: Turn, run: TurnSource) -> bytes:
        """The turn in one piece."""
        return self._dialect.encode_turn(turn, self.request, self.id, self.created)

    def check(self) -> None:
        """Raise if the turn exceeds the size limit of the answer."""

    async def settle(self, pieces: Sequence[bytes]) -> Sequence[bytes]:
        """Store the turn before its last bytes are sent; returns these bytes."""
        await self._memory.flush()
        return pieces

    async def cancel(self) -> None:
        """Store a turn whose client disconnected."""
