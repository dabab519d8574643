"""Locks for requests, across all processes that use the store.

Requests of one process wait in order of arrival. The first of them polls the store while another process has the lease.
Every wait has a timeout.
"""

import asyncio
from contextlib import suppress
from hashlib import blake2b

from toolwire.memory.membership import Membership
from toolwire.memory.sql.store import Store
from toolwire.memory.store import Lease, StoreFailed

FIRST_PAUSE, MAX_PAUSE = 0.02, 0.5
"""Seconds between two polls while another process has a lease."""


class LeaseTaken(Exception):
    """Another request had the lease until the timeout."""


class _Queue:
    """The requests of this process that wait for one lease, or have it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0


class Leases:
    """The leases that requests of this process have or wait for."""

    def __init__(self, store: Store, membership: Membership) -> None:
        self._store = store
        self.membership = membership
        self._queues: dict[str, _Queue] = {}
        self._left: dict[str, Lease] = {}  # not dropped yet; `drop_rest` tries again

    async def take(self, name: str, wait: float) -> Lease:
        """Wait for the lease of this name, at most `wait` seconds. Raises `LeaseTaken` or `StoreFailed`."""
        queue = self._queues.setdefault(name, _Queue())
        queue.count += 1
        try:
            async with asyncio.timeout(wait):
                await queue.lock.acquire()
                try:
                    lease = await self._ask(name)
                except BaseException:
                    queue.lock.release()
                    raise
        except BaseException as error:
            self._leave(name, queue)
            if isinstance(error, TimeoutError):
                raise LeaseTaken(name) from None
            raise
        self._left.pop(name, None)
        return lease

    async def _ask(self, name: str) -> Lease:
        pause = FIRST_PAUSE
        while True:
            asking = asyncio.ensure_future(self._store.take_lease(name, await self.membership.id()))
            try:
                lease = await asyncio.shield(asking)
            except asyncio.CancelledError:
                asking.add_done_callback(self._drop_later)
                raise
            if lease is not None:
                return lease
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)

    def _drop_later(self, asking: "asyncio.Future[Lease | None]") -> None:
        """Note a lease that was granted after its request was cancelled."""
        lease = None if asking.cancelled() or asking.exception() is not None else asking.result()
        if lease is not None:
            self._left[lease.name] = lease

    async def drop(self, lease: Lease) -> None:
        """Release a lease that `take` returned, so that the next request gets it. Call this once."""
        queue = self._queues[lease.name]
        self._left[lease.name] = lease  # until it is known to be dropped
        try:
            with suppress(StoreFailed):
                await self._store.drop_lease(lease)
                self._left.pop(lease.name, None)
        finally:
            queue.lock.release()
            self._leave(lease.name, queue)

    async def drop_rest(self) -> None:
        """Drop the leases that could not be dropped before, except those that requests of this process use again."""
        for name, lease in tuple(self._left.items()):
            if name not in self._queues:
                await self._store.drop_lease(lease)
                self._left.pop(name, None)

    def _leave(self, name: str, queue: _Queue) -> None:
        queue.count -= 1
        if not queue.count:
            self._queues.pop(name, None)


def lease_name(kind: str, owner: str, id: str) -> str:
    """A name of bounded length that no other owner can guess."""
    named = f"{owner}\n{id}".encode("utf-8", "surrogatepass")
    return f"{kind}:{blake2b(named, digest_size=16).hexdigest()}"
