"""This process among those that use a store: it has an id, a heartbeat, and learns when it was taken for dead.

A store that cannot be used for a while harms nobody: the next heartbeat that succeeds is as good as one in time. Only a
process that could use the store all the while takes others for dead.

Whoever was taken for dead joins anew under another id. Its runs and leases may be somebody else's by then, so those who
have any are told. They cannot write by what they had: the store refuses that in any case.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from secrets import token_hex
from socket import gethostname

from toolwire.memory.clock import steady
from toolwire.memory.store import Lease, Member, Store, StoreFailed

BEATS = 4
"""Heartbeats in the time after which a process without one counts as dead.

A store counts a process whose latest heartbeat is two of them old as one that could not reach it. So of two processes
that cannot reach it for a while, neither takes the other one for dead.
"""


class Membership:
    """The id of this process, from its first heartbeat to its last."""

    def __init__(self, store: Store, lease: float, socket: str = "", clock: Callable[[], float] = steady) -> None:
        self._store = store
        self._clock = clock
        self._pause = lease / BEATS
        self._beat_at = 0.0  # when the latest heartbeat was sent that the store took
        self._socket = socket
        self._host = gethostname()
        self._id = ""  # none while this process is no member
        self._joining = asyncio.Lock()
        self._beating: asyncio.Task[None] | None = None
        self.on_lost: list[Callable[[], None]] = []
        """Called when this process was taken for dead."""

    @property
    def member(self) -> Member | None:
        """This process, while it is a member."""
        return Member(self._id, self._host, self._socket) if self._id else None

    async def start(self) -> None:
        """Join, now or as soon as the store can be used, and beat from then on."""
        with suppress(StoreFailed):
            await self.id()
        self._beating = asyncio.get_running_loop().create_task(self._beat_on())

    async def id(self) -> str:
        """The id under which this process is a member; it joins if it is none."""
        if not self._id:
            async with self._joining:
                if not self._id:
                    id, now = f"m_{token_hex(12)}", self._clock()
                    await self._store.join(Member(id, self._host, self._socket))
                    self._id, self._beat_at = id, now
        return self._id

    async def is_current(self) -> bool:
        """Whether no other process can have taken over what this one has.

        A heartbeat of less than half a lease ago is proof. After a longer pause, in which this process stood still or
        could not reach the store, a new heartbeat is. Raises `StoreFailed`.
        """
        return self._clock() - self._beat_at < self._pause * BEATS / 2 or await self._beat()

    async def holds(self, lease: Lease) -> bool:
        """Whether this process still has a lease that it was granted."""
        return await self.is_current() and lease.member == self._id

    async def leave(self) -> None:
        """What this process still has is free for others at once."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait((self._beating,))
        if self._id:
            with suppress(StoreFailed):
                await self._store.leave(self._id)

    async def _beat_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._pause)
            try:
                await self._beat()
            except StoreFailed:
                pass  # the store says so itself
            except Exception as error:  # noqa: BLE001 - without a heartbeat this process loses all that it has
                loop.call_exception_handler({"message": "a heartbeat failed", "exception": error})

    async def _beat(self) -> bool:
        """Beat, or join anew; False if this process was taken for dead."""
        id, now = self._id, self._clock()
        is_alive = bool(id) and await self._store.beat(id)
        if is_alive:
            self._beat_at = now
        elif id and id == self._id:
            self._id = ""
            for tell in self.on_lost:
                tell()
        await self.id()
        return is_alive
