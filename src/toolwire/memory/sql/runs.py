"""Background runs and their events.

A run is written with its fence; any process may read it for its owner. A finished run keeps its row with its last
epoch, which distinguishes the writer that ended it from one that lost it.
"""

from abc import abstractmethod
from collections.abc import Sequence

from toolwire.memory.sql.members import find_living_member
from toolwire.memory.sql.operation import Transaction, reading, transaction, writing
from toolwire.memory.sql.responses import Responses
from toolwire.memory.store import (
    NO_BOUND,
    Append,
    Appended,
    ClaimedRun,
    Effects,
    EventChunk,
    Fence,
    Follow,
    Followed,
    KeptItem,
    Record,
    RunLimits,
    WriteGuard,
)

NO_LIMITS = RunLimits()


class Runs(Responses):
    """Background runs and their events."""

    @abstractmethod
    async def queue(
        self,
        owner: str,
        record: Record,
        given: Sequence[KeptItem],
        effects: Effects,
        *,
        plan: bytes,
        member: str,
        guard: WriteGuard | None = None,
        limits: RunLimits = NO_LIMITS,
    ) -> Fence:
        """Save a response whose turn has yet to run, and its run, which belongs to this member.

        Queuing it again returns the same fence, unless the run was taken over. Raises `Overtaken`, or `TooManyRuns`
        if a limit is reached; runs are counted exactly, across all processes.
        """

    @abstractmethod
    async def append(self, appends: Sequence[Append]) -> Appended:
        """Commit new events of several runs together.

        Repeating an append has no effect. After a failure the outcome is unknown, so repeat the append unchanged before
        any later one.
        """

    @abstractmethod
    async def follow(self, wanted: Sequence[Follow], most: int = NO_BOUND) -> list[Followed]:
        """The committed events for each of these followers.

        A run that does not exist is over. The answers have at most `most` bytes together, but each has at least one
        chunk if any exists.
        """

    @writing
    async def start(self, tx: Transaction, fence: Fence) -> bool:
        """Commit that the run starts something that must not be done twice; returns False if the run is lost."""
        return await tx.fetch_one("start_run", id=self.key(fence.id), epoch=fence.epoch) is not None

    @writing
    async def cancel(self, tx: Transaction, owner: str, id: str) -> bool:
        """Request the cancellation of a run; returns False if no such run is unfinished."""
        return await tx.fetch_one("cancel_run", id=self.key(id), owner=owner) is not None

    @reading
    async def list_cancelled(self, tx: Transaction, member: str) -> list[Fence]:
        """The runs of a member whose cancellation was requested."""
        return [Fence(*row) for row in await tx.fetch("cancelled_runs", member=member)]

    async def claim(self, member: str, limit: int) -> list[ClaimedRun]:
        """Take over runs whose process is dead, each with a higher epoch. A member that is not alive gets none.

        A process is dead if it has left, or sent no heartbeat for a lease in which this member sent all of its own.
        """
        # A claimed run stays unconfirmed until it is returned: if the outcome of a claim is unknown because the store
        # failed, the next claim returns its runs. Otherwise they would belong to a process that does not know of them.
        async with self._claiming:
            if not self._unconfirmed and not await self._has_orphans():
                return []
            await self._take_orphans(member, limit)
            claimed = await self._read_claimed(member)
            self._unconfirmed.clear()
            return claimed

    @reading
    async def _has_orphans(self, tx: Transaction) -> bool:
        return await tx.fetch_one("has_orphans") is not None

    @transaction
    async def _take_orphans(self, tx: Transaction, member: str, limit: int) -> None:
        """Take over runs whose member is dead, if this one is alive."""
        if await find_living_member(tx, member) is None:
            return
        await self._bury_dead(tx, member)
        for id, epoch in await tx.fetch("orphans", limit=limit):
            taken = await self._take_orphan(tx, member, id, epoch)
            if taken is not None:
                self._unconfirmed[id] = taken

    async def _take_orphan(self, tx: Transaction, member: str, id: str, epoch: int) -> int | None:
        row = await tx.fetch_one("take_orphan", member=member, id=id, epoch=epoch)
        return row[0] if row is not None else None

    @reading
    async def _read_claimed(self, tx: Transaction, member: str) -> list[ClaimedRun]:
        """The claimed runs, with everything that was committed before the claim."""
        claimed: list[ClaimedRun] = []
        for row in await tx.fetch("claimed_runs", member=member, ids=list(self._unconfirmed)):
            owner, epoch, plan, is_started, is_cancelled, next_event, *columns = row
            record = Record(*columns)
            if self._unconfirmed[record.id] == epoch:
                fence, marks = Fence(record.id, epoch), (bool(is_started), bool(is_cancelled))
                claimed.append(ClaimedRun(owner, fence, record, plan, next_event, *marks))
        return claimed

    @reading
    async def load_events(self, tx: Transaction, owner: str, id: str, number: int) -> EventChunk | None:
        """The chunk with the event of this number, or the last chunk; None if there are no events."""
        row = await tx.fetch_one("event", id=self.key(id), owner=owner, number=number)
        return EventChunk(*row) if row is not None else None
