"""The upstream of a `codex` backend: a dialogue becomes a thread at a worker, and threads that wait are kept."""

from collections.abc import Callable, Hashable, Mapping, Sequence

from toolwire.backends.codex import Profile
from toolwire.core.backend import Ask, Dialogue, Opening, PendingTurn
from toolwire.core.jsonrpc import JSON_LINES
from toolwire.upstream.codex.pool import Pool
from toolwire.upstream.codex.thread import Thread
from toolwire.upstream.codex.worker import Worker, WorkerSpec
from toolwire.upstream.reply import broken

MOST_WAITING = 1000
"""Threads that may wait for results at a time; the one that has waited longest goes first."""


class CodexUpstream:
    """The workers of one backend and the threads that wait at them."""

    origin = None  # where a worker connects to is its own affair
    url = ""

    def __init__(
        self,
        spec: WorkerSpec,
        workers: int,
        profile: Profile,
        models: frozenset[str],
        say: Callable[[str], None],
    ) -> None:
        self._pool = Pool(spec, workers, profile, models, self._dismiss, say)
        self._profile = profile
        self._waiting: dict[Hashable, list[Thread]] = {}  # by the keys of calls; the same may be asked twice
        self._parked: dict[Thread, None] = {}  # the oldest first

    def start(self) -> None:
        self._pool.fill()

    async def stop(self) -> None:
        await self._pool.stop()

    async def open(self, opening: Opening, key: str) -> "CodexReply":
        assert isinstance(opening, Dialogue)
        waiting = opening.resume
        if waiting is None:
            worker = await self._pool.acquire(opening.model)
            return CodexReply(self, Thread(worker, self._pool, self._profile, self._expire), opening)
        threads = self._waiting.get(waiting.calls[0], [])
        thread = next((each for each in threads if each.waiting is waiting), None)
        if thread is None:
            raise broken("thread_gone", "The thread of these calls is gone.")
        self._forget(thread)
        thread.stop_timer()  # it does not expire while it waits for a slot
        try:
            await self._pool.acquire(opening.model, thread.worker)
        except BaseException:
            thread.leave()
            raise
        if not thread.is_running:
            self._pool.release(thread.worker)
            raise broken("thread_gone", "The thread of these calls has ended.")
        thread.resume()
        return CodexReply(self, thread, opening)

    def waiting(self, calls: Sequence[Hashable]) -> list[PendingTurn]:
        """The threads that wait for the result of one of these calls, the latest first."""
        found = {thread: None for call in calls for thread in reversed(self._waiting.get(call, ()))}
        return [thread.waiting for thread in found if thread.waiting is not None]

    def park(self, thread: Thread, waiting: PendingTurn) -> None:
        """Keep a thread until its results come, but not for ever."""
        while len(self._parked) >= MOST_WAITING:
            self._expire(next(iter(self._parked)))
        self._parked[thread] = None
        for call in waiting.calls:
            self._waiting.setdefault(call, []).append(thread)
        thread.wait(waiting)

    def _expire(self, thread: Thread) -> None:
        self._forget(thread)
        thread.leave()

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


class CodexReply:
    """The lines of a thread that answer one request."""

    def __init__(self, upstream: CodexUpstream, thread: Thread, dialogue: Dialogue) -> None:
        self._upstream = upstream
        self._thread = thread
        self._dialogue = dialogue
        self._closed = False
        self.status = 200
        self._flush()

    @property
    def headers(self) -> Mapping[str, str]:
        return {"content-type": JSON_LINES, **self._thread.worker.limit_headers}

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
        waiting = self._dialogue.waiting
        if waiting is not None and self._thread.worker.is_ready:
            self._upstream.park(self._thread, waiting)
        else:
            self._thread.leave()

    def _flush(self) -> None:
        outbox = self._dialogue.outbox
        for each in outbox:
            if isinstance(each, Ask):
                self._thread.ask(each)
            else:
                self._thread.worker.write(each)
        outbox.clear()
