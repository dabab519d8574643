"""The upstream of a `codex` backend: a dialogue becomes a thread at a worker, and threads that wait are kept.

Other processes of the machine may know of a thread that waits, if they are there. Then there is a lease for it, and
whoever goes on with the thread takes its next step first.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Protocol, cast

import msgspec

from toolwire.backends.codex import Profile, write_turn
from toolwire.core.backend import Ask, Dialogue, Opening, PendingTurn
from toolwire.core.errors import THREAD_GONE
from toolwire.core.jsonrpc import JSON_LINES
from toolwire.memory.call_keys import CallKey
from toolwire.memory.store import Lease, StoreFailed
from toolwire.memory.threads import KeptThreads
from toolwire.upstream.codex.handover import Neighbours
from toolwire.upstream.codex.lending import Lending
from toolwire.upstream.codex.pool import Pool
from toolwire.upstream.codex.remote import RemoteThread, RemoteTurn, gone_elsewhere, remote_turn
from toolwire.upstream.codex.thread import Thread
from toolwire.upstream.codex.worker import Worker, WorkerSpec
from toolwire.upstream.reply import broken, safe_headers

MOST_WAITING = 1000
"""Threads that may wait for results at a time; the one that has waited longest goes first."""


class Sharing(msgspec.Struct, frozen=True):
    """What it takes to go on with the threads of other processes, and to let them go on with ours."""

    threads: KeptThreads
    neighbours: Neighbours
    is_open: Callable[[], bool]
    """Whether this process goes on serving: one that is about to end begins no turns of others."""
    drain: float
    """Seconds that those which it has begun have to end when it does."""


class CodexUpstream:
    """The workers of one backend and the threads that wait at them."""

    origin = None  # where a worker connects to is its own affair
    url = ""

    def __init__(
        self,
        name: str,
        spec: WorkerSpec,
        workers: int,
        profile: Profile,
        models: frozenset[str],
        say: Callable[[str], None],
        sharing: Sharing | None = None,
    ) -> None:
        self._name = name
        self._pool = Pool(spec, workers, profile, models, self._dismiss, say)
        self._profile = profile
        self._waiting: dict[Hashable, list[Thread]] = {}  # by the keys of calls; the same may be asked twice
        self._parked: dict[Thread, None] = {}  # the oldest first
        self._leased: dict[str, Thread] = {}  # those that other processes know of, by the name of their lease
        self._sharing = sharing
        self._lending: Lending | None = None
        if sharing is not None:
            self._lending = Lending(name, self, sharing.threads, sharing.is_open)
            self._lending.answer(sharing.neighbours)

    def start(self) -> None:
        self._pool.fill()

    async def stop(self) -> None:
        if self._lending is not None and self._sharing is not None:
            await self._lending.close(self._sharing.drain)
        await self._pool.stop()

    def headers(self, opening: Opening, key: str) -> Mapping[str, str]:
        return {}

    async def open(self, opening: Opening, key: str) -> "CodexReply":
        assert isinstance(opening, Dialogue)
        waiting = opening.resume
        if waiting is None:
            worker = await self._pool.acquire(opening.model)
            return self._reply(Thread(worker, self._pool, self._profile, self._expire), opening)
        if isinstance(waiting, RemoteTurn):
            return await self._open_elsewhere(waiting, opening)
        threads = self._waiting.get(waiting.calls[0], [])
        thread = next((each for each in threads if each.waiting is waiting), None)
        if thread is None:
            raise broken(THREAD_GONE, "The thread of these calls is gone.")
        self._claim(thread)
        try:
            await self._begin_here(thread)
            await self.go_on(thread, opening.model)
        except BaseException:
            self.leave(thread)
            raise
        return self._reply(thread, opening)

    def _reply(self, thread: Thread, dialogue: Dialogue) -> "CodexReply":
        return CodexReply(thread, dialogue, partial(self._release, thread))

    async def _open_elsewhere(self, turn: RemoteTurn, dialogue: Dialogue) -> "CodexReply":
        """Hand the turn over to the process that has its thread."""
        assert self._sharing is not None
        threads = self._sharing.threads
        try:
            if not await threads.waits(turn.waiting.lease):
                raise gone_elsewhere()
            thread = RemoteThread(turn.waiting, threads, self._sharing.neighbours, self._profile, dialogue)
            await thread.open()
        finally:
            threads.forget(_keys(turn))  # begun, or gone: it does not wait any longer
        return CodexReply(thread, dialogue, thread.release)

    def waiting(self, calls: Sequence[CallKey]) -> list[PendingTurn]:
        """The threads that wait for the result of one of these calls, the latest first; then those elsewhere."""
        found = {thread: None for call in calls for thread in reversed(self._waiting.get(call, ()))}
        local = [thread.waiting for thread in found if thread.waiting is not None]
        if self._sharing is None:
            return local
        known = self._sharing.threads.elsewhere(calls)
        turns = [remote_turn(thread) for thread in known if thread.backend == self._name]
        return [*local, *(turn for turn in turns if turn is not None)]

    # Threads that go on

    def claim(self, lease: Lease) -> Thread | None:
        """The thread that waits under this lease, which waits no longer."""
        thread = self._leased.get(lease.name)
        if thread is None or thread.lease != lease or thread not in self._parked:
            return None
        self._claim(thread)
        return thread

    def _claim(self, thread: Thread) -> None:
        self._forget(thread)
        if thread.lease is not None and thread.waiting is not None and self._sharing is not None:
            self._sharing.threads.forget(_keys(thread.waiting))
        thread.stop_timer()  # it does not expire while it waits for a slot

    async def begin(self, thread: Thread) -> bool:
        """Whether its turn may go on here. Raises `StoreFailed`."""
        if thread.lease is None or self._sharing is None:
            return True
        thread.lease = await self._sharing.threads.begin(thread.lease)
        return thread.lease is not None

    async def _begin_here(self, thread: Thread) -> None:
        """The same for a request of our own, which no other process has: it may begin while the store fails."""
        try:
            may_begin = await self.begin(thread)
        except StoreFailed:
            self._end_lease(thread)
            return
        if not may_begin:
            raise broken(THREAD_GONE, "Another process has gone on with these calls.")

    async def go_on(self, thread: Thread, model: str) -> None:
        """Give a thread that has waited a slot. Raises `Broken`."""
        await self._pool.acquire(model, thread.worker)
        if not thread.is_running:
            self._pool.release(thread.worker)
            raise broken(THREAD_GONE, "The thread of these calls has ended.")
        thread.resume()

    # Threads that wait

    def _release(self, thread: Thread, waiting: PendingTurn | None) -> None:
        """The turn is over for the client. Its thread waits for the results of its calls, or is left."""
        if waiting is None or not thread.worker.is_ready:
            self.leave(thread)
            return
        self._park(thread, waiting)
        if self._sharing is not None and self._sharing.threads.are_shared:
            self._sharing.threads.promise(self._publish(thread, waiting))

    async def park_and_publish(self, thread: Thread, waiting: PendingTurn) -> None:
        """Keep a thread until its results come, and let other processes know."""
        self._park(thread, waiting)
        await self._publish(thread, waiting)

    def _park(self, thread: Thread, waiting: PendingTurn) -> None:
        """Keep a thread until its results come, but not for ever."""
        while len(self._parked) >= MOST_WAITING:
            self._expire(next(iter(self._parked)))
        self._parked[thread] = None
        for call in waiting.calls:
            self._waiting.setdefault(call, []).append(thread)
        thread.wait(waiting)

    async def _publish(self, thread: Thread, waiting: PendingTurn) -> None:
        """Let the other processes of this machine know of a thread that waits."""
        written = write_turn(waiting)
        if written is None or self._sharing is None:
            return
        threads = self._sharing.threads
        lease = thread.lease or await threads.take()
        if lease is None:
            return
        if thread not in self._parked or thread.waiting is not waiting:
            if thread.lease is None:
                threads.drop(lease)  # it has gone on meanwhile, or is gone
            return
        thread.lease = lease
        self._leased[lease.name] = thread
        await threads.keep(_keys(waiting), self._name, lease, written)

    def leave(self, thread: Thread) -> None:
        """Nobody goes on with a thread."""
        self._end_lease(thread)
        thread.leave()

    def _end_lease(self, thread: Thread) -> None:
        lease, thread.lease = thread.lease, None
        if lease is not None and self._sharing is not None:
            self._leased.pop(lease.name, None)
            self._sharing.threads.drop(lease)

    def _expire(self, thread: Thread) -> None:
        self._forget(thread)
        self.leave(thread)

    def _forget(self, thread: Thread) -> None:
        if thread not in self._parked or thread.waiting is None:
            return
        del self._parked[thread]
        for call in thread.waiting.calls:
            threads = self._waiting[call]
            threads.remove(thread)
            if not threads:
                del self._waiting[call]

    def _dismiss(self, worker: Worker) -> None:
        """A worker is to go: whoever continues a conversation of its threads gets a new thread."""
        for thread in tuple(self._parked):
            if thread.worker is worker:
                self._expire(thread)


def _keys(turn: PendingTurn) -> "tuple[CallKey, ...]":
    return cast("tuple[CallKey, ...]", turn.calls)


class ServedThread(Protocol):
    """A thread of this process or of another."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def is_running(self) -> bool: ...

    def take(self) -> bytes: ...

    async def arrived(self) -> bytes: ...

    def ask(self, ask: Ask) -> None: ...

    def write(self, line: bytes) -> None: ...


class CodexReply:
    """The lines of a thread that answer one request. `release` gets the turn that waits in the end, if one does."""

    def __init__(self, thread: ServedThread, dialogue: Dialogue, release: Callable[[PendingTurn | None], None]) -> None:
        self._thread = thread
        self._dialogue = dialogue
        self._release = release
        self._closed = False
        self.status = 200
        self._flush()

    @property
    def headers(self) -> Mapping[str, str]:
        return {"content-type": JSON_LINES, **safe_headers(self._thread.headers)}

    def read_nowait(self) -> bytes:
        self._flush()
        return self._thread.take()

    async def read(self) -> bytes:
        self._flush()
        return await self._thread.arrived()

    def is_whole(self) -> bool:
        return self._dialogue.is_over or not self._thread.is_running

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._flush()
        self._release(self._dialogue.waiting)

    def _flush(self) -> None:
        outbox = self._dialogue.outbox
        for each in outbox:
            if isinstance(each, Ask):
                self._thread.ask(each)
            else:
                self._thread.write(each)
        outbox.clear()
