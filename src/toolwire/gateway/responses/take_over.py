"""Runs whose process is gone: asked for again if nothing would be done or shown twice, ended with the truth otherwise.

Every run begins with the same few events. If no other is committed but signs of life, and nothing was started that must
not be done twice, a new turn replaces the one that no client has seen.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import msgspec
from starlette.types import Message, Receive

from toolwire.core.errors import Failure
from toolwire.dialects import responses
from toolwire.gateway.body import stepped
from toolwire.gateway.exchange import Exchange, Shared
from toolwire.gateway.flight import Claim
from toolwire.gateway.keys import CALLER, Acting
from toolwire.gateway.responses.background import OPENING, Background, BackgroundRun, LogSink
from toolwire.gateway.responses.event_log import RunLog
from toolwire.gateway.responses.plan import Plan, decode_plan
from toolwire.gateway.responses.unfinished import CANCELLED, OWNER_LOST, ended, progress_of
from toolwire.memory.membership import Membership
from toolwire.memory.store import ClaimedRun, Effects, Fence, Overtaken, StoreFailed

AT_ONCE = 16
"""Most runs that are claimed at a time."""
MOST_CLAIMS = 5
"""How often a run is begun: one that ends the process of whoever begins it would go round forever."""

Ask = Callable[[Exchange, ClaimedRun, Plan, LogSink], Awaitable[None]]
"""Produces the turn of a claimed run, and has it delivered."""


class TakeOver:
    """Looks for runs that nobody has, and sees to them."""

    def __init__(self, shared: Shared, membership: Membership, background: Background, ask: Ask) -> None:
        self._shared = shared
        self._store = shared.store
        self._membership = membership
        self._background = background
        self._ask = ask
        # Claimed runs that were not seen to yet, or have to end in a certain way; a store that fails may hold that up.
        self._pending: dict[Fence, tuple[ClaimedRun, Failure | None]] = {}

    async def look_unless_draining(self) -> None:
        """The same, but for a process that is about to end: it leaves new work to others."""
        if self._shared.process.condition == "draining":
            await self._see_to_pending()
        else:
            await self.look()

    async def look(self) -> None:
        """Take over what has no living process."""
        await self._see_to_pending()
        while True:
            found = await self._store.claim(await self._membership.id(), AT_ONCE)
            if not found:
                break
            for claimed in found:
                self._pending[claimed.fence] = claimed, None
            await self._see_to_pending()

    def forget(self) -> None:
        """This process was taken for dead: what it has claimed is free to take."""
        self._pending.clear()

    def postpone(self, claimed: ClaimedRun, log: RunLog) -> None:
        """Begin a run again later: what it needs cannot be had now."""
        log.lose()
        self._pending[claimed.fence] = claimed, None

    async def _see_to_pending(self) -> None:
        for fence, (claimed, known) in tuple(self._pending.items()):
            if fence not in self._pending:
                continue  # somebody else has seen to it meanwhile
            try:
                await self._see_to(claimed, known or await self._failure(claimed))
            except StoreFailed:
                raise
            except Exception as error:  # noqa: BLE001 - a run that cannot be taken over must not hold up the others
                self._shared.log.crashed(claimed.record.id, error)
            self._pending.pop(fence, None)

    async def _failure(self, claimed: ClaimedRun) -> Failure | None:
        """How a run ends that cannot be asked for again; None if it can be."""
        if claimed.is_cancelled:
            return CANCELLED
        if claimed.is_started or _plan(claimed).needs_key or claimed.fence.epoch > MOST_CLAIMS:
            return OWNER_LOST
        if claimed.next_event <= OPENING:
            return None if claimed.next_event in (0, OPENING) else OWNER_LOST
        progress = await progress_of(self._store, claimed.owner, claimed.record.id)
        return None if progress.items.is_empty else OWNER_LOST  # all that was shown are signs of life

    async def _see_to(self, claimed: ClaimedRun, failure: Failure | None) -> None:
        if await self._background.keep_claimed(claimed):
            return
        if failure is None:
            self._shared.metrics.took_over("asked_again")
            self._begin(claimed)
        else:
            await self._end(claimed, failure)

    def _begin(self, claimed: ClaimedRun) -> None:
        plan, claim = decode_plan(claimed.plan), Claim(self._shared.flight)
        log = RunLog(claimed.owner, claimed.fence, claimed.next_event)
        sink = LogSink(self._background, log, claim, self._shared.max_reply)
        sink.end_early = partial(self._end_early, claimed)
        scope = {**plan.scope, CALLER: Acting(plan.key_name, "", claimed.owner)}
        exchange = Exchange(self._shared, "responses", scope, sink, claimed.record.id.partition("_")[2], claim)
        exchange.facts |= {"background": True, "taken_over": True}

        async def operation(exchange: Exchange, receive: Receive) -> None:
            exchange.enter()
            await self._ask(exchange, claimed, plan, sink)

        self._background.start(BackgroundRun(claimed.record.id, sink), exchange.serve(operation, never))

    async def _end_early(self, claimed: ClaimedRun, failure: Failure) -> None:
        """End a run that could not be asked for; if not now, then with the next look."""
        self._pending[claimed.fence] = claimed, failure
        with suppress(StoreFailed):
            await self._end(claimed, failure)
            self._pending.pop(claimed.fence, None)

    async def _end(self, claimed: ClaimedRun, failure: Failure) -> None:
        """End a run with this failure, behind what is committed of it. Another process may have done so meanwhile."""
        progress = await progress_of(self._store, claimed.owner, claimed.record.id)
        record, made, last = ended(claimed.record, progress, failure)
        answers = _plan(claimed).answers
        link = (answers, "") if answers else None  # they may be submitted again
        with suppress(Overtaken):
            await self._store.save(claimed.owner, record, None, made, Effects(link), guard=claimed.fence, last=last)
            self._shared.metrics.took_over(_OUTCOMES.get(failure.code, "failed"))


_OUTCOMES = {CANCELLED.code: "cancelled", OWNER_LOST.code: "owner_lost"}
_UNREADABLE = Plan(msgspec.Raw(b"{}"), needs_key=True)
"""Stands for a plan that another version has written in another way."""


def _plan(claimed: ClaimedRun) -> Plan:
    try:
        return decode_plan(claimed.plan)
    except msgspec.DecodeError:
        return _UNREADABLE


async def read_plan(exchange: Exchange, plan: Plan) -> responses.ParsedRequest:
    """The request of a plan."""
    body = bytes(plan.body)
    exchange.take_body(body)
    return await stepped(responses.reading_request(body, exchange.shared.bounds), len(body))


async def never() -> Message:
    """No client is there that could leave."""
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}
