"""Workers and their slots: who may start a turn where, who waits, and which worker comes and goes.

A worker is replaced when it has had enough threads, when it ends, or when a model is asked for that it does not know.
One that fails to start is tried again, after longer and longer pauses.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from toolwire.backends.codex import Profile
from toolwire.backoff import retry_after
from toolwire.core.errors import BackendFault, Failure
from toolwire.upstream.codex.worker import Worker, WorkerSpec
from toolwire.upstream.reply import Broken

SHORTEST_PAUSE = 0.25
LONGEST_PAUSE = 30.0
MOST_MODELS = 64
"""Models that workers learn by name, beside those of the settings. Any client can name one, so there is a bound; others
are served as Codex sees fit."""


class _Waiter:
    """A request that waits for a slot: at a certain worker, or at any that knows its model."""

    def __init__(self, model: str, worker: Worker | None) -> None:
        self.model = model
        self.worker = worker
        self.granted: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()


class Pool:
    """The workers of one backend."""

    def __init__(
        self,
        spec: WorkerSpec,
        size: int,
        profile: Profile,
        models: frozenset[str],
        dismissed: Callable[[Worker], None],
        say: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._size = size  # how many workers there should be
        self._profile = profile
        self._models = models
        self._most_models = len(models) + MOST_MODELS
        self._dismissed = dismissed
        """Called with a worker that is to go: whatever waits at it need not."""
        self._say = say
        self._workers: list[Worker] = []
        self._starting = 0
        self._queue: deque[_Waiter] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._starts: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._failure: Failure | None = None  # why there is no worker
        self._pause: asyncio.TimerHandle | None = None
        self._closed = False

    async def stop(self) -> None:
        self._closed = True
        if self._pause is not None:
            self._pause.cancel()
        for waiter in self._queue:
            _refuse(waiter, Failure(503, "shutting_down", "The gateway is shutting down."))
        for task in self._starts:
            task.cancel()
        for worker in tuple(self._workers):
            self._do(worker.stop())
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def acquire(self, model: str, worker: Worker | None = None) -> Worker:
        """A slot for a turn, at this worker or at any. Raises `Broken` when there is none in time."""
        if worker is None and model not in self._models and len(self._models) < self._most_models:
            self._learn(model)
        waiter = _Waiter(model, worker)
        self._queue.append(waiter)
        self._serve()
        if waiter.granted.done():
            return waiter.granted.result()
        if self._failure is not None or len(self._queue) > self._profile.queue:
            self._queue.remove(waiter)
            if self._failure is not None:
                raise Broken(self._failure)
            raise _no_slot(f"More than {self._profile.queue} requests wait for Codex already.")
        self.fill()
        try:
            async with asyncio.timeout(self._profile.patience):
                return await waiter.granted
        except BaseException as error:
            if waiter in self._queue:
                self._queue.remove(waiter)
            elif not waiter.granted.cancelled() and waiter.granted.exception() is None:
                self.release(waiter.granted.result())  # it came too late
            if isinstance(error, TimeoutError):
                message = f"Codex had no place for this turn within {self._profile.patience:g} seconds."
                raise _no_slot(message) from None
            raise

    def release(self, worker: Worker) -> None:
        """A turn is over, or waits for its client."""
        worker.turns -= 1
        self.look_after(worker)
        self._serve()

    # Who gets a slot

    def _grant(self, waiter: _Waiter) -> bool:
        worker = waiter.worker or self._free_worker(waiter.model)
        if worker is None or worker.turns >= self._profile.turns:
            return False
        if not worker.is_ready:
            _refuse(waiter, Failure(502, "backend_broke_off", "The worker has ended.", retryable=True))
            return True
        worker.turns += 1
        waiter.granted.set_result(worker)
        return True

    def _free_worker(self, model: str) -> Worker | None:
        free = [
            worker
            for worker in self._workers
            if worker.is_ready
            and not worker.is_retiring
            and (model in worker.models or model not in self._models)
            and worker.turns < self._profile.turns
        ]
        return min(free, key=lambda worker: worker.turns, default=None)

    def _serve(self) -> None:
        waiting, self._queue = self._queue, deque()
        for waiter in waiting:
            if not waiter.granted.done() and not self._grant(waiter):
                self._queue.append(waiter)

    # Which workers there are

    def _learn(self, model: str) -> None:
        """Workers know the models they were started with, so new ones replace them."""
        self._models |= {model}
        for worker in tuple(self._workers):
            self._retire(worker)
        self.fill()

    def look_after(self, worker: Worker) -> None:
        """A turn or a thread of the worker has ended: it may be replaced, or dismissed."""
        if worker.started >= self._profile.threads and not worker.is_retiring:
            self._retire(worker)
            self.fill()
        if worker.is_retiring and worker.turns <= 0 and not worker.threads:
            self._dismiss(worker)

    def _retire(self, worker: Worker) -> None:
        worker.is_retiring = True
        self.look_after(worker)
        retiring = [each for each in self._workers if each.is_retiring]
        for old in retiring[: -self._size]:
            self._dismissed(old)

    def _dismiss(self, worker: Worker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            self._do(worker.stop())

    def fill(self) -> None:
        """Start what is missing, unless a pause is due."""
        if self._closed or self._pause is not None:
            return
        there = sum(not worker.is_retiring for worker in self._workers)
        for _ in range(self._size - there - self._starting):
            self._starting += 1
            task = self._do(self._start())
            self._starts.add(task)
            task.add_done_callback(self._starts.discard)

    async def _start(self) -> None:
        worker = Worker(self._spec, self._models, self._exited)
        try:
            await worker.start()
        except BackendFault as fault:
            self._failed(fault.failure)
            return
        finally:
            self._starting -= 1
        if self._closed:
            await worker.stop()
            return
        self._failure = None
        self._workers.append(worker)
        if worker.models != self._models:
            self._retire(worker)
            self.fill()
        self._serve()

    def _exited(self, worker: Worker) -> None:
        """A process is gone; if that was not our doing another one replaces it."""
        if worker not in self._workers:
            return
        self._dismiss(worker)
        if not worker.is_retiring:
            self._failures = 0 if worker.started else self._failures
            self._again()
        self._serve()

    def _failed(self, failure: Failure) -> None:
        if self._failure is None or self._failure.message != failure.message:
            self._say(failure.message)
        self._again()
        if not any(worker.is_ready for worker in self._workers):
            self._failure = failure
            waiting, self._queue = self._queue, deque()
            for waiter in waiting:
                _refuse(waiter, failure)

    def _again(self) -> None:
        """Try again after a while."""
        if self._closed or self._pause is not None:
            return
        pause = min(LONGEST_PAUSE, SHORTEST_PAUSE * 2**self._failures)
        self._failures += 1
        self._pause = asyncio.get_running_loop().call_later(pause, self._pause_over)

    def _pause_over(self) -> None:
        self._pause = None
        self.fill()

    def _do(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _refuse(waiter: _Waiter, failure: Failure) -> None:
    if not waiter.granted.done():
        waiter.granted.set_exception(Broken(failure))


def _no_slot(message: str) -> Broken:
    return Broken(Failure(429, "rate_limit_exceeded", message, retry_after=retry_after(10), retryable=True))
