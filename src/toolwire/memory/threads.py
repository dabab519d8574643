"""Threads that wait for results, as the processes of one machine know each other's.

A thread lives in the process that began it, its keeper. What another process needs to go on with it is kept by the
calls that it waits for, with the lease of the thread as it was then. Whoever goes on with the turn, or wants to be sure
that nobody else does, moves the lease on by one step: only one of them can.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any

import msgspec

from toolwire.core.request import Entry, Message, ResultEntry
from toolwire.memory.call_keys import CallKey
from toolwire.memory.membership import Membership
from toolwire.memory.store import Lease, Member, Store, StoreFailed
from toolwire.memory.write_behind import STORE_TIMEOUT, CachedTable, Wanted, WriteBehind

KEPT_BYTES = 32 * 1024 * 1024
"""Most bytes of threads that are at hand, of all owners together."""
LOOKED_FOR = 64
"""How many of the last calls of a history are looked for; no model makes more at a time."""


class WaitingThread(msgspec.Struct, frozen=True):
    """A thread that waits for the results of its calls in some process."""

    backend: str
    process: Member
    lease: Lease
    turn: msgspec.Raw
    """The turn that waits, as its backend has written it down."""


class KeptThreads:
    """Which threads wait where, and who may go on with them. Without a store, or alone, a process shares none."""

    def __init__(self, store: Store | None, behind: WriteBehind) -> None:
        self._store = store
        self._behind = behind
        self._table: CachedTable[CallKey, WaitingThread] = CachedTable("thread", WaitingThread, KEPT_BYTES, behind)
        self._kept: set[asyncio.Task[None]] = set()
        self._dropped: set[asyncio.Task[None]] = set()
        self._membership: Membership | None = None
        self.lent = 0
        """How many threads of this process serve the clients of others."""

    def share(self, membership: Membership) -> None:
        """Others on this machine can ask this process, and it can ask them."""
        self._membership = membership

    @property
    def process(self) -> Member | None:
        """This process as others know it, if they do."""
        return self._membership.member if self._membership is not None and self._store is not None else None

    @property
    def are_shared(self) -> bool:
        return self.process is not None

    # What is known of threads

    def wanted(self, calls: Sequence[CallKey], entries: Sequence[Entry]) -> list[Wanted]:
        """What is to be looked for before a history with these calls is planned, the last of them first."""
        if not self.are_shared:
            return []
        ids = _last_answered(entries)
        return [(self._table, key) for key in calls[:LOOKED_FOR] if key[1] in ids]

    def elsewhere(self, calls: Sequence[CallKey]) -> list[WaitingThread]:
        """The threads of other processes of this machine that wait for these calls, the last of them first."""
        own = self.process
        if own is None:
            return []
        found = {thread.lease: thread for key in calls[:LOOKED_FOR] if (thread := self._table.get(key)) is not None}
        return [
            thread
            for thread in found.values()
            if thread.process.host == own.host and thread.process.id != own.id and thread.process.socket
        ]

    async def keep(self, calls: Sequence[CallKey], backend: str, lease: Lease, turn: bytes) -> None:
        """Write down that a thread of this process waits. It is written when this returns, or cannot be.

        One call would do if clients brought results in order and side by side. The first and the last are enough.
        """
        process = self.process
        if process is None:
            return
        for key in {calls[0], calls[-1]}:
            self._table.put(key, WaitingThread(backend, process, lease, msgspec.Raw(turn)))
        await self._behind.flush()

    def forget(self, calls: Sequence[CallKey]) -> None:
        """A thread does not wait for these calls any longer."""
        for key in calls:
            self._table.forget(key)

    def promise(self, keeping: Coroutine[Any, Any, None]) -> None:
        """Run something that turns wait for before their last bytes leave."""
        _run(keeping, self._kept)

    async def settled(self) -> None:
        """Wait until what was promised is done, but not for long."""
        if self._kept:
            await asyncio.wait(tuple(self._kept), timeout=STORE_TIMEOUT)

    # Who may go on with them

    async def take(self) -> Lease | None:
        """The lease of a thread that nobody knows yet; None if none can be had now."""
        process = self.process
        if self._store is None or process is None:
            return None
        try:
            return await self._store.take_lease(f"thread {token_hex(16)}", process.id)
        except StoreFailed:
            return None

    async def waits(self, lease: Lease) -> bool:
        """Whether a thread may still wait where it was said to: its process is alive, nobody has gone on with it."""
        assert self._store is not None
        try:
            return await self._store.holder(lease.name) == lease
        except StoreFailed:
            return False

    async def begin(self, lease: Lease) -> Lease | None:
        """Take the next step of a thread; None if somebody else has, or the thread is lost. Raises `StoreFailed`."""
        assert self._store is not None
        return await self._store.advance(lease)

    def drop(self, lease: Lease) -> None:
        """The thread is over."""
        _run(self._drop(lease), self._dropped)

    async def _drop(self, lease: Lease) -> None:
        assert self._store is not None
        with suppress(StoreFailed):
            await self._store.drop_lease(lease)

    async def close(self) -> None:
        """Wait for what is still being written."""
        if tasks := (*self._kept, *self._dropped):
            await asyncio.wait(tasks, timeout=STORE_TIMEOUT)


def _last_answered(entries: Sequence[Entry]) -> set[str]:
    """The ids of the calls whose results stand at the end, but for what the user adds."""
    ids = set[str]()
    for entry in reversed(entries):
        if isinstance(entry, ResultEntry):
            ids.add(entry.call_id)
        elif ids or not isinstance(entry, Message) or entry.role != "user":
            break
    return ids


def _run(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
