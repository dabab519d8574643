"""The answer to a request of the Responses API: a response that is stored before its last event is sent."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

from toolwire.core.collect import Turn
from toolwire.core.errors import ReplyTooLarge
from toolwire.core.events import Note
from toolwire.core.notes import TurnStats
from toolwire.core.request import Request
from toolwire.dialects import responses
from toolwire.dialects.responses import StreamEncoder, compaction
from toolwire.gateway.answer import Answer, Pace
from toolwire.gateway.exchange import Exchange
from toolwire.gateway.keys import Caller as Asker
from toolwire.gateway.responses.history import ResponseHistory, ResumedRequest, StoredTurn
from toolwire.gateway.start_run import find_rules, start_run
from toolwire.memory.store import StoreFailed
from toolwire.turns.attempt import TurnGuard
from toolwire.turns.source import TurnSource

RESERVATION_STEP = 64 * 1024
"""Bytes by which the reservation of a turn grows."""
EXTENDED_PACE = Pace(keepalive=2.0, opens_at_once=True)
"""The pace of a stream with extended events: a `ping` after 2 seconds of silence, from the start."""


class ResponsesAnswer(Answer):
    """One response, and what it continues."""

    def __init__(
        self,
        exchange: Exchange,
        history: ResponseHistory,
        resumed: ResumedRequest,
        request: Request,
        *,
        socket: bool = False,
        whole: Callable[[bytes], bytes] | None = None,
        created: int | None = None,
    ) -> None:
        """Begin an answer to `request`, which the model gets.

        `whole` converts a response that is sent in one piece; `created` is the creation time of a retried run.
        """
        super().__init__(responses, request, exchange.seed, exchange.shared.memory)
        if created is not None:
            self.created = created
        extended = find_rules(exchange).responses_events == "extended"
        self.pace = EXTENDED_PACE if extended else None
        self._history = history
        self._resumed = resumed
        self._reservation = exchange.reservation
        self._metrics = exchange.shared.process.metrics
        self._max_reply = exchange.shared.bounds.reply
        self._whole = whole
        self._reserved = 0  # bytes
        self._own = StreamEncoder(
            self.request, self.id, self.created, TurnStats(), time.time, extended=extended, socket=socket
        )
        self._is_begun = False  # whether the client may have seen something
        self.response = self._own.response
        if resumed.parsed.body.background:
            self.response.status = "queued"

    def get_encoder(self, run: TurnSource | None) -> StreamEncoder:
        self._is_begun = True
        if run is not None:
            self._own.stats = run.assembly.stats
        return self._own

    def encode_whole(self, turn: Turn, run: TurnSource) -> bytes:
        self.get_encoder(run).take_turn(turn)
        body = bytes(self.response.encode())
        return self._whole(body) if self._whole is not None else body

    def check(self) -> None:
        held = self._own.held
        if held - self._reserved < RESERVATION_STEP:
            return
        if held > self._max_reply:
            raise ReplyTooLarge(self._max_reply)
        self._reservation.grow(held - self._reserved)
        self._reserved = held

    async def settle(self, pieces: Sequence[bytes]) -> Sequence[bytes]:
        if await self._store():
            return pieces
        last = self._own.mark_unstored(pieces)
        return last if self.request.stream else [bytes(self.response.encode())]

    async def settle_memory(self) -> None:
        """Wait, within a timeout, until everything else that later turns need is stored."""
        await self._memory.flush()

    def make_turn(self) -> StoredTurn:
        """The finished turn of a background run."""
        return self._history.make_turn(self._resumed, self.response, self._own.output, self._own.stats.figures)

    def mark_unstored(self, last: Sequence[bytes], error: StoreFailed) -> list[bytes]:
        """The last events of a turn that this error kept from being stored."""
        self._own.stats.add_note(Note("not_stored", error.reason))
        return self._own.mark_unstored(last)

    async def cancel(self) -> None:
        if self._is_begun and self.response.status == "in_progress":
            self._own.cancel()
            await self._store()

    async def _store(self) -> bool:
        """Store the turn; returns whether that succeeded. The answer is sent either way."""
        await self._memory.flush()
        try:
            uses_store = self._resumed.store or self._resumed.conversation
            with self._metrics.time_store("save") if uses_store else nullcontext():
                await self._history.store(self._resumed, self.response, self._own.output, self._own.stats.figures)
        except StoreFailed as error:
            self._own.stats.add_note(Note("not_stored", error.reason))
            return False
        return True


async def begin_turn(
    exchange: Exchange,
    history: ResponseHistory,
    resumed: ResumedRequest,
    caller: Asker,
    guard: TurnGuard | None,
    *,
    socket: bool = False,
    whole: Callable[[bytes], bytes] | None = None,
    created: int | None = None,
) -> tuple[TurnSource, ResponsesAnswer]:
    """Begin the run of a request, and the answer to it.

    If a compaction is requested and the backend cannot compact, the run asks for a summary and turns it into one.
    """
    request = resumed.request
    await exchange.shared.memory.load(caller.owner, request.entries)
    await exchange.pause()
    policies: list[Callable[[], compaction.ReplaceWithCompaction]] = []
    if compaction.is_requested(request):
        route, _ = exchange.shared.engine.router.find(request.model, caller.grant)
        if not route.facts.compacts:
            request = compaction.make_summary_request(request)
            policies.append(partial(compaction.ReplaceWithCompaction, f"cmp_{exchange.seed}"))
    run = start_run(exchange, request, caller, *policies, guard=guard)
    answer = ResponsesAnswer(exchange, history, resumed, request, socket=socket, whole=whole, created=created)
    return run, answer
