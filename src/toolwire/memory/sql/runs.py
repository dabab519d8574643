"""Background runs: who has them, and who takes them over.

A run stays in its table after it is over, with its last epoch: so a writer that ended it can be told from one that lost
it.
"""

from toolwire.memory.sql.operation import Transaction, reading, transaction, writing
from toolwire.memory.sql.responses import RECORD, ResponseOperations
from toolwire.memory.store import ClaimedRun, EventChunk, Fence, Record

_START = """
UPDATE toolwire.runs SET is_started = true WHERE id = :id AND epoch = :epoch AND is_over = false RETURNING epoch
"""
_CANCEL = """
UPDATE toolwire.runs SET is_cancelled = true WHERE id = :id AND owner = :owner AND is_over = false RETURNING epoch
"""
_CANCELLED = """
SELECT id, epoch FROM toolwire.runs WHERE member = :member AND is_cancelled = true AND is_over = false ORDER BY id
"""
_HAS_ORPHANS = """
SELECT 1 FROM toolwire.runs r WHERE r.is_over = false
    AND NOT EXISTS (SELECT 1 FROM toolwire.members m WHERE m.id = r.member AND {alive}) LIMIT 1
"""
"""Whether there are runs whose process is dead, or may be."""
_ORPHANS = """
SELECT r.id, r.epoch FROM toolwire.runs r WHERE r.is_over = false
    AND NOT EXISTS (SELECT 1 FROM toolwire.members m WHERE m.id = r.member) ORDER BY r.id LIMIT :limit
"""
_TAKE = """
UPDATE toolwire.runs SET member = :member, epoch = epoch + 1
WHERE id = :id AND epoch = :epoch AND is_over = false RETURNING epoch
"""
"""By its epoch: a run that another process has taken meanwhile has another one."""
_CLAIMED = f"""
SELECT r.owner, r.epoch, r.plan, r.is_started, r.is_cancelled, coalesce((
        SELECT j.first + j.count FROM {{journal}} j WHERE j.{{response}} = r.id ORDER BY j.first DESC LIMIT 1
    ), 0), {RECORD}
FROM toolwire.runs r JOIN toolwire.holders h ON h.id = r.id
WHERE r.member = :member AND r.id = ANY (:ids::text[]) AND r.is_over = false ORDER BY r.id
"""
_EVENTS = """
SELECT j.first, j.count, j.frames FROM {journal} j JOIN toolwire.holders h ON h.id = j.{response}
WHERE j.{response} = :id AND h.owner = :owner AND j.first <= :number ORDER BY j.first DESC LIMIT 1
"""


class RunOperations(ResponseOperations):
    """Background runs and their events, but for writing and following these."""

    @writing
    async def start(self, tx: Transaction, fence: Fence) -> bool:
        return await tx.fetch_one(_START, id=self.key(fence.id), epoch=fence.epoch) is not None

    @writing
    async def cancel(self, tx: Transaction, owner: str, id: str) -> bool:
        return await tx.fetch_one(_CANCEL, id=self.key(id), owner=owner) is not None

    @reading
    async def cancelled(self, tx: Transaction, member: str) -> list[Fence]:
        return [Fence(*row) for row in await tx.fetch(_CANCELLED, member=member)]

    async def claim(self, member: str, limit: int) -> list[ClaimedRun]:
        # What is claimed stays unconfirmed until it is returned: if the outcome of a claim is unknown because the store
        # failed, the next one returns its runs. Otherwise they would belong to a process that does not know of them.
        async with self._claiming:
            if not self._unconfirmed and not await self._has_orphans():
                return []
            await self._take_orphans(member, limit)
            claimed = await self._read_claimed(member)
            self._unconfirmed.clear()
            return claimed

    @reading
    async def _has_orphans(self, tx: Transaction) -> bool:
        return await tx.fetch_one(_HAS_ORPHANS) is not None

    @transaction
    async def _take_orphans(self, tx: Transaction, member: str, limit: int) -> None:
        """Take over runs whose member is dead, if this one is alive."""
        if await self._living_member(tx, member) is None:
            return
        await self._bury_dead(tx, member)
        for id, epoch in await tx.fetch(_ORPHANS, limit=limit):
            taken = await self._take_orphan(tx, member, id, epoch)
            if taken is not None:
                self._unconfirmed[id] = taken

    async def _take_orphan(self, tx: Transaction, member: str, id: str, epoch: int) -> int | None:
        row = await tx.fetch_one(_TAKE, member=member, id=id, epoch=epoch)
        return row[0] if row is not None else None

    @reading
    async def _read_claimed(self, tx: Transaction, member: str) -> list[ClaimedRun]:
        """What was claimed, with all that was committed before the claim."""
        claimed: list[ClaimedRun] = []
        for row in await tx.fetch(_CLAIMED, member=member, ids=list(self._unconfirmed)):
            owner, epoch, plan, is_started, is_cancelled, next_event, *columns = row
            record = Record(*columns)
            if self._unconfirmed[record.id] == epoch:
                fence, marks = Fence(record.id, epoch), (bool(is_started), bool(is_cancelled))
                claimed.append(ClaimedRun(owner, fence, record, plan, next_event, *marks))
        return claimed

    @reading
    async def events(self, tx: Transaction, owner: str, id: str, number: int) -> EventChunk | None:
        row = await tx.fetch_one(_EVENTS, id=self.key(id), owner=owner, number=number)
        return EventChunk(*row) if row is not None else None
