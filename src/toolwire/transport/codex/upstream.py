"""The upstream of a `codex` backend: a dialogue becomes a thread at a worker, and threads that wait are kept."""

from collections.abc import Callable, Mapping, Sequence

from toolwire.core.backend import Ask, Dialogue, Opening, Waiting
from toolwire.core.jsonrpc import JSON_LINES, Id
from toolwire.transport.codex.pool import Bounds, Pool
from toolwire.transport.codex.thread import Thread
from toolwire.transport.codex.worker import Recipe, Worker
from toolwire.transport.reply import broken

MOST_WAITING = 1000
"""Threads that may wait for results at a time; the one that has waited longest goes first."""


class CodexUpstream:
    """The workers of one backend and the threads that wait at them."""

    def __init__(
        self,
        recipe: Recipe,
        bounds: Bounds,
        models: frozenset[str],
        keep: float,
        silence: float,
        limit_headers: Callable[[bytes], Mapping[str, str]],
        say: Callable[[str], None],
    ) -> None:
        self.pool = Pool(recipe, bounds, models, self._dismiss, say)
        self.declined: Callable[[str, Id], bytes] = recipe.declined
        self._keep = keep
        self._silence = silence
        self._waiting: dict[tuple[str, str], list[Thread]] = {}  # servers that count their calls repeat their ids
        self._parked: dict[Thread, str] = {}  # and their owners, the oldest first
        self.limit_headers = limit_headers

    async def open(self, opening: Opening, key: str) -> "CodexReply":
        assert isinstance(opening, Dialogue)
        waiting = opening.goes_on
        if waiting is None:
            worker = await self.pool.place(opening.model)
            return CodexReply(self, Thread(worker, self.declined, self.pool, self._silence), opening)
        threads = self._waiting.get((opening.owner, waiting.calls[0]), [])
        thread = next((each for each in threads if each.waiting is waiting), None)
        if thread is None:
            raise broken("thread_gone", "The thread of these calls is gone.")
        self._forget(thread)
        thread.hold()
        try:
            await self.pool.place(opening.model, thread.worker)
        except BaseException:
            thread.leave()
            raise
        if not thread.runs:
            self.pool.release(thread.worker)
            raise broken("thread_gone", "The thread of these calls has ended.")
        thread.go_on()
        return CodexReply(self, thread, opening)

    def waiting(self, owner: str, calls: Sequence[str]) -> list[Waiting]:
        """The threads of this owner's that wait for one of these results, the latest first."""
        found = {thread: None for call in calls for thread in reversed(self._waiting.get((owner, call), ()))}
        return [thread.waiting for thread in found if thread.waiting is not None]

    def park(self, thread: Thread, owner: str, waiting: Waiting) -> None:
        """Keep a thread until its results come, but not for ever."""
        while len(self._parked) >= MOST_WAITING:
            self._expire(next(iter(self._parked)))
        self._parked[thread] = owner
        for call in waiting.calls:
            self._waiting.setdefault((owner, call), []).append(thread)
        thread.wait(waiting, self._keep, self._expire)

    def _expire(self, thread: Thread) -> None:
        self._forget(thread)
        thread.leave()

    def _forget(self, thread: Thread) -> None:
        owner = self._parked.pop(thread, None)
        if owner is None or thread.waiting is None:
            return
        for call in thread.waiting.calls:
            threads = self._waiting[owner, call]
            threads.remove(thread)
            if not threads:
                del self._waiting[owner, call]

    def _dismiss(self, worker: Worker) -> None:
        """A worker is to go: its conversations will be told again from the start."""
        for thread in tuple(self._parked):
            if thread.worker is worker:
                self._expire(thread)


class CodexReply:
    """What a thread says to one request."""

    def __init__(self, upstream: CodexUpstream, thread: Thread, dialogue: Dialogue) -> None:
        self._upstream = upstream
        self._thread = thread
        self._dialogue = dialogue
        self._closed = False
        self.status = 200
        self._flush()

    @property
    def headers(self) -> Mapping[str, str]:
        limits = self._thread.worker.last_limits
        return {"content-type": JSON_LINES, **(self._upstream.limit_headers(limits) if limits else {})}

    def read_nowait(self) -> bytes:
        self._flush()
        return self._thread.take()

    async def read(self) -> bytes:
        self._flush()
        return await self._thread.arrived()

    def is_whole(self) -> bool:
        return self._dialogue.is_over or not self._thread.runs

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._flush()
        waiting = self._dialogue.waiting
        if waiting is not None and self._thread.worker.is_ready:
            self._upstream.park(self._thread, self._dialogue.owner, waiting)
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
