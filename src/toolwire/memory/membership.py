"""This process as a member of the store: its id, its heartbeat, and what happens if it was presumed dead.

An outage of the store does no harm: the next heartbeat that succeeds counts as one in time. Only a process that could
reach the store all the time may presume others dead.

A process that was presumed dead joins again under a new id. Other processes may have its runs and leases by then, so
`on_lost` is called. Its old fences and leases are useless: the store refuses to write with them.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from secrets import token_hex
from socket import gethostname

from toolwire.memory.clock import read_steady_clock
from toolwire.memory.sql.store import Store
from toolwire.memory.store import Lease, Member, StoreFailed

BEATS_PER_LEASE = 4
"""Heartbeats during a lease.

A process whose latest heartbeat is more than half a lease old counts as one that could not reach the store. So if two
processes cannot reach it for a while, neither presumes the other dead.
"""


class Membership:
    """Joins the store, and sends heartbeats until it leaves."""

    def __init__(self, store: Store, lease: float, clock: Callable[[], float] = read_steady_clock) -> None:
        self._store = store
        self._clock = clock
        self._pause = lease / BEATS_PER_LEASE
        self._beat_at = 0.0  # when the latest successful heartbeat was sent
        self._host = gethostname()
        self._id = ""  # empty while this process is not a member
        self._joining = asyncio.Lock()
        self._beating: asyncio.Task[None] | None = None
        self.on_lost: list[Callable[[], None]] = []
        """Called when this process was presumed dead."""

    async def start(self) -> None:
        """Join, now or as soon as the store can be reached, and send heartbeats from then on."""
        with suppress(StoreFailed):
            await self.id()
        self._beating = asyncio.get_running_loop().create_task(self._keep_beating())

    async def id(self) -> str:
        """The id of this member. A process that is not a member joins first."""
        if not self._id:
            async with self._joining:
                if not self._id:
                    id, now = f"m_{token_hex(12)}", self._clock()
                    await self._store.join(Member(id, self._host))
                    self._id, self._beat_at = id, now
        return self._id

    async def is_current(self) -> bool:
        """Whether this process certainly still has its runs and leases.

        A heartbeat less than half a lease ago is proof. After a longer pause, because this process was stopped or could
        not reach the store, a new heartbeat is sent. Raises `StoreFailed`.
        """
        return self._clock() - self._beat_at < self._pause * BEATS_PER_LEASE / 2 or await self._beat()

    async def has_lease(self, lease: Lease) -> bool:
        """Whether this process still has a lease. Raises `StoreFailed`."""
        return await self.is_current() and lease.member == self._id

    async def leave(self) -> None:
        """Leave the store; other processes may claim the runs and leases of this one at once."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait((self._beating,))
        if self._id:
            with suppress(StoreFailed):
                await self._store.leave(self._id)

    async def _keep_beating(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._pause)
            try:
                await self._beat()
            except StoreFailed:
                pass  # the store has reported it
            except Exception as error:  # noqa: BLE001 - without heartbeats this process loses its runs
                loop.call_exception_handler({"message": "a heartbeat failed", "exception": error})

    async def _beat(self) -> bool:
        """Send a heartbeat; returns False, having joined again, if this process was presumed dead."""
        id, now = self._id, self._clock()
        is_alive = bool(id) and await self._store.beat(id)
        if is_alive:
            self._beat_at = now
        elif id and id == self._id:
            self._id = ""
            for callback in self.on_lost:
                callback()
        await self.id()
        return is_alive
