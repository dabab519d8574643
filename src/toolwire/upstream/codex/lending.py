"""The keeper's side of turns that are handed over: threads of this process that serve the clients of others."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Protocol

from toolwire.backends.codex import read_turn
from toolwire.core.backend import PendingTurn
from toolwire.core.errors import BackendFault
from toolwire.memory.store import Lease, StoreFailed
from toolwire.memory.threads import KeptThreads
from toolwire.upstream.codex import handover
from toolwire.upstream.codex.handover import Handler, Neighbours
from toolwire.upstream.codex.thread import Thread


class Threads(Protocol):
    """The threads of one backend in this process."""

    def claim(self, lease: Lease) -> Thread | None:
        """The thread that waits under this lease, which waits no longer."""
        ...

    async def begin(self, thread: Thread) -> bool:
        """Whether its turn may go on here. Raises `StoreFailed`."""
        ...

    async def go_on(self, thread: Thread, model: str) -> None:
        """Give it a slot. Raises `Broken`."""
        ...

    async def park_and_publish(self, thread: Thread, waiting: PendingTurn) -> None: ...

    def leave(self, thread: Thread) -> None: ...


class _LentThread:
    """A thread while it serves a client of another process."""

    def __init__(self, thread: Thread) -> None:
        self.thread = thread
        self.is_stopping = False
        self.is_parked = False
        self.over = asyncio.Event()
        """It is parked."""


class Lending:
    """Answers other processes that have requests for threads of this one."""

    def __init__(self, backend: str, threads: Threads, kept: KeptThreads, is_open: Callable[[], bool]) -> None:
        self._backend = backend
        self._threads = threads
        self._kept = kept
        self._is_open = is_open
        self._lent: dict[Lease, _LentThread] = {}  # by the lease that their turn was begun with
        self._returned = asyncio.Event()

    def answer(self, neighbours: Neighbours) -> None:
        """Answer what they ask from now on."""
        answers: dict[handover.Verb, Handler] = {
            "turn": self._turn,
            "say": self._say,
            "stop": self._stop,
            "park": self._park,
        }
        for verb, handler in answers.items():
            neighbours.handle(handover.question(verb, self._backend), handler)

    async def close(self, drain: float) -> None:
        """Let the turns that run end, for so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(drain):
                while self._lent:
                    self._returned.clear()
                    await self._returned.wait()

    async def _turn(self, payload: bytes) -> AsyncGenerator[bytes]:
        asked = handover.read_turn_asked(payload)
        thread = self._threads.claim(asked.lease) if self._is_open() else None
        if thread is None:
            yield handover.message(handover.GONE)
            return
        lent = self._lent[asked.lease] = _LentThread(thread)
        self._kept.lent += 1
        try:
            if not await self._may_begin(thread):
                yield handover.message(handover.GONE)
                return
            yield handover.mine(thread.headers)
            await self._threads.go_on(thread, asked.model)
            handover.deliver(asked.messages, thread)
            while not lent.is_stopping:
                if lines := await thread.arrived():
                    yield handover.message(handover.LINES, lines)
            yield handover.message(handover.STOPPED)
            await lent.over.wait()
        except BackendFault as fault:
            yield handover.broken_off(fault.failure)
        finally:
            del self._lent[asked.lease]
            self._kept.lent -= 1
            self._returned.set()
            if not lent.is_parked:
                self._threads.leave(thread)

    async def _may_begin(self, thread: Thread) -> bool:
        try:
            return await self._threads.begin(thread)
        except StoreFailed:
            return False

    async def _say(self, payload: bytes) -> AsyncGenerator[bytes]:
        said = handover.read_say(payload)
        handover.deliver(said.messages, self._found(said.turn).thread)
        return
        yield b""

    async def _stop(self, payload: bytes) -> AsyncGenerator[bytes]:
        lent = self._found(handover.read_stop(payload).turn)
        lent.is_stopping = True
        lent.thread.inbox.stop()
        return
        yield b""

    async def _park(self, payload: bytes) -> AsyncGenerator[bytes]:
        asked = handover.read_park(payload)
        lent, waiting = self._found(asked.turn), read_turn(asked.waiting)
        if waiting is not None and lent.is_stopping and lent.thread.worker.is_ready:
            lent.is_parked = True
            lent.thread.inbox.put_back(asked.unread)
            await self._threads.park_and_publish(lent.thread, waiting)
        lent.over.set()
        return
        yield b""

    def _found(self, turn: Lease) -> _LentThread:
        lent = self._lent.get(turn)
        if lent is None:
            raise LookupError("no such turn is handed over")
        return lent
