"""The answer to a request of the Responses API: it is kept before its last event leaves."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import msgspec

from toolwire.core.collect import Turn, events_of
from toolwire.core.errors import ReplyTooLarge
from toolwire.core.events import Note
from toolwire.core.notes import TurnStats
from toolwire.core.request import Request
from toolwire.dialects import responses
from toolwire.dialects.responses import StreamEncoder
from toolwire.gateway.answer import Answer
from toolwire.gateway.exchange import Exchange
from toolwire.gateway.responses.history import KeptTurn, ResponseHistory, ResumedRequest
from toolwire.memory.store import StoreFailed
from toolwire.turns.source import TurnSource

CLAIMED_AT_ONCE = 64 * 1024
"""Bytes of a turn by which its claim grows."""


class ResponsesAnswer(Answer):
    """One response, and what it continues."""

    def __init__(
        self,
        exchange: Exchange,
        history: ResponseHistory,
        resumed: ResumedRequest,
        request: Request,
        *,
        extended: bool = False,
        socket: bool = False,
        whole: Callable[[bytes], bytes] | None = None,
        created: int | None = None,
    ) -> None:
        """`request` is what is asked of the model; `whole` changes a response that is sent in one piece; `created` is
        when it was, if that was earlier."""
        super().__init__(responses, request, exchange.seed, exchange.shared.memory)
        if created is not None:
            self.created = created
        self._history = history
        self._resumed = resumed
        self._claim = exchange.claim
        self._metrics = exchange.shared.metrics
        self._max = exchange.shared.max_reply
        self._whole = whole
        self._claimed = 0  # bytes of the turn
        self._own = StreamEncoder(
            self.request, self.id, self.created, TurnStats(), time.time, extended=extended, socket=socket
        )
        self._is_begun = False  # something of it may have been seen
        self.response = self._own.response

    @property
    def output(self) -> list[msgspec.Raw]:
        """The items so far."""
        return self._own.output

    def encoder(self, run: TurnSource | None) -> StreamEncoder:
        self._is_begun = True
        if run is not None:
            self._own.stats = run.assembly.stats
        return self._own

    def whole(self, turn: Turn, run: TurnSource) -> bytes:
        encoder = self.encoder(run)
        for event in events_of(turn):
            encoder.feed(event)
        body = bytes(self.response.encoded())
        return self._whole(body) if self._whole is not None else body

    def check(self) -> None:
        held = self._own.held
        if held - self._claimed < CLAIMED_AT_ONCE:
            return
        if held > self._max:
            raise ReplyTooLarge(self._max)
        self._claim.grow(held - self._claimed)
        self._claimed = held

    async def settle(self, pieces: Sequence[bytes]) -> Sequence[bytes]:
        if await self._is_kept():
            return pieces
        last = self._own.unstored(pieces)
        return last if self.request.stream else [bytes(self.response.encoded())]

    async def settle_memory(self) -> None:
        """Wait until what later turns need of this one is kept, beside the turn itself."""
        await self._memory.flush()

    def turn(self) -> KeptTurn:
        """The turn of a background run that is over, as it is kept."""
        return self._history.turn(self._resumed, self.response, self._own.output, self._own.stats.figures)

    def unstored(self, last: Sequence[bytes], error: StoreFailed) -> list[bytes]:
        """The last events of a turn that could not be kept for this reason."""
        self._own.stats.note(Note("not_stored", error.reason))
        return self._own.unstored(last)

    async def cancel(self) -> None:
        if self._is_begun and self.response.status == "in_progress":
            self._own.cancel()
            await self._is_kept()

    async def _is_kept(self) -> bool:
        """Keep the turn. The answer is worth more than its copy: it goes out also if it cannot be kept."""
        await self._memory.flush()
        try:
            uses_store = self._resumed.store or self._resumed.conversation
            with self._metrics.using_store("save") if uses_store else nullcontext():
                await self._history.keep(self._resumed, self.response, self._own.output, self._own.stats.figures)
        except StoreFailed as error:
            self._own.stats.note(Note("not_stored", error.reason))
            return False
        return True
