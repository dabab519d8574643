"""What one request may do at a time, in this process and in all others that use the store.

Requests of one process wait for each other in the order in which they came; the first of them asks the store, and asks
again as long as another process has the lease. Nobody waits forever.
"""

import asyncio
from contextlib import suppress
from hashlib import blake2b

from toolwire.memory.membership import Membership
from toolwire.memory.store import Lease, Store, StoreFailed

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two questions to the store while another process has a lease."""


class LeaseTaken(Exception):
    """Somebody else had the lease for as long as could be waited."""


class HeldLease:
    """A lease that a request has, until it gives it back."""

    def __init__(self, leases: "Leases", lease: Lease) -> None:
        self._leases = leases
        self.lease = lease
        self._is_held = True

    async def release(self) -> None:
        """Let the next one have it."""
        if self._is_held:
            self._is_held = False
            await self._leases.give_back(self.lease)


class _Queue:
    """The requests of this process that want one lease."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0


class Leases:
    """All leases of this process that requests wait for."""

    def __init__(self, store: Store, membership: Membership) -> None:
        self._store = store
        self._membership = membership
        self._queues: dict[str, _Queue] = {}
        self._left: dict[str, Lease] = {}  # could not be given back, which is tried again

    async def take(self, name: str, patience: float) -> HeldLease:
        """Wait for the lease of this name. Raises `LeaseTaken`, or `StoreFailed`."""
        queue = self._queues.setdefault(name, _Queue())
        queue.count += 1
        try:
            async with asyncio.timeout(patience):
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
        return HeldLease(self, lease)

    async def _ask(self, name: str) -> Lease:
        pause = FIRST_PAUSE
        while True:
            asking = asyncio.ensure_future(self._store.take_lease(name, await self._membership.id()))
            try:
                lease = await asyncio.shield(asking)
            except asyncio.CancelledError:
                asking.add_done_callback(self._give_back_later)
                raise
            if lease is not None:
                return lease
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _give_back_later(self, asking: "asyncio.Future[Lease | None]") -> None:
        """Nobody waits for this lease any more."""
        lease = None if asking.cancelled() or asking.exception() is not None else asking.result()
        if lease is not None:
            self._left[lease.name] = lease

    async def give_back(self, lease: Lease) -> None:
        queue = self._queues[lease.name]
        self._left[lease.name] = lease  # until it is known to be given back, whatever holds that up
        try:
            with suppress(StoreFailed):
                await self._store.drop_lease(lease)
                self._left.pop(lease.name, None)
        finally:
            queue.lock.release()
            self._leave(lease.name, queue)

    async def give_back_rest(self) -> None:
        """Try again with those that could not be given back, unless somebody here has taken them again."""
        for name, lease in tuple(self._left.items()):
            if name not in self._queues:
                await self._store.drop_lease(lease)
                self._left.pop(name, None)

    def _leave(self, name: str, queue: _Queue) -> None:
        queue.count -= 1
        if not queue.count:
            self._queues.pop(name, None)


def lease_name(kind: str, owner: str, id: str) -> str:
    """A name of bounded length, which nobody can take who does not own the thing."""
    named = f"{owner}\n{id}".encode("utf-8", "surrogatepass")
    return f"{kind}:{blake2b(named, digest_size=16).hexdigest()}"
