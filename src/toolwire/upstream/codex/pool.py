"""The app-servers of one backend: slots for turns, the queue for them, and replacement.

An app-server is replaced after a number of threads, when it ends, or when a request names a model that it does not
know. A failed start is repeated with exponential backoff.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from toolwire.backends.codex import Profile
from toolwire.backoff import retry_after
from toolwire.core.errors import BackendFault, Failure
from toolwire.upstream.codex.app_server import AppServer, AppServerSpec
from toolwire.upstream.reply import Broken

MIN_BACKOFF = 0.25
MAX_BACKOFF = 30.0
"""Seconds before the next start after a failed one; doubled from the minimum to the maximum."""
MAX_LEARNED_MODELS = 64
"""Models that requests may add to those of the settings; further ones get Codex's own defaults."""


class _Waiter(msgspec.Struct, eq=False):
    """A request in the queue for a slot: at one app-server, or at any that knows its model."""

    model: str
    app_server: AppServer | None
    granted: asyncio.Future[AppServer]


class Pool:
    """The app-servers of one backend."""

    def __init__(
        self,
        spec: AppServerSpec,
        size: int,
        profile: Profile,
        models: frozenset[str],
        abandon_threads: Callable[[AppServer], None],
        warn: Callable[[str], None],
    ) -> None:
        """`abandon_threads` is called with an app-server that must end, and abandons its waiting threads."""
        self._spec = spec
        self._size = size
        self._profile = profile
        self._models = models
        self._max_models = len(models) + MAX_LEARNED_MODELS
        self._abandon_threads = abandon_threads
        self._warn = warn
        self._app_servers: list[AppServer] = []
        self._starting = 0
        self._queue: deque[_Waiter] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._starts: set[asyncio.Task[None]] = set()
        self._failures = 0
        self.failure: Failure | None = None
        """Why there is no app-server."""
        self._backoff: asyncio.TimerHandle | None = None
        self._closed = False

    async def stop(self) -> None:
        self._closed = True
        if self._backoff is not None:
            self._backoff.cancel()
        for waiter in self._queue:
            _refuse(waiter, Failure(503, "shutting_down", "The gateway is shutting down."))
        for task in self._starts:
            task.cancel()
        for app_server in tuple(self._app_servers):
            self._spawn(app_server.stop())
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def acquire(self, model: str, app_server: AppServer | None = None) -> AppServer:
        """Acquire a slot for a turn, at this app-server or at any. Raises `Broken` if none is free in time."""
        if app_server is None and model not in self._models and len(self._models) < self._max_models:
            self._models |= {model}
            for each in tuple(self._app_servers):  # new ones that know the model replace them
                self._retire(each)
            self.fill()
        waiter = _Waiter(model, app_server, asyncio.get_running_loop().create_future())
        self._queue.append(waiter)
        self._serve()
        if waiter.granted.done():
            return waiter.granted.result()
        if self.failure is not None or len(self._queue) > self._profile.queue:
            self._queue.remove(waiter)
            if self.failure is not None:
                raise Broken(self.failure)
            raise _make_no_slot(f"More than {self._profile.queue} requests are waiting for Codex.")
        self.fill()
        try:
            async with asyncio.timeout(self._profile.patience):
                return await waiter.granted
        except BaseException as error:
            if waiter in self._queue:
                self._queue.remove(waiter)
            elif not waiter.granted.cancelled() and waiter.granted.exception() is None:
                self.release(waiter.granted.result())  # granted too late
            if isinstance(error, TimeoutError):
                message = f"Codex had no free slot for this turn within {self._profile.patience:g} seconds."
                raise _make_no_slot(message) from None
            raise

    def release(self, app_server: AppServer) -> None:
        """Release the slot of a turn that is over or waits for its client."""
        app_server.turns -= 1
        self.replace_if_due(app_server)
        self._serve()

    def _serve(self) -> None:
        """Grant free slots to the requests in the queue, in order."""
        waiting, self._queue = self._queue, deque()
        for waiter in waiting:
            if waiter.granted.done():
                continue
            usable = [
                each
                for each in self._app_servers
                if each.is_ready
                and not each.is_retiring
                and (waiter.model in each.models or waiter.model not in self._models)
            ]
            app_server = waiter.app_server or min(usable, key=lambda each: each.turns, default=None)
            if app_server is None or app_server.turns >= self._profile.turns:
                self._queue.append(waiter)
            elif not app_server.is_ready:
                _refuse(waiter, Failure(502, "backend_broke_off", "The worker has ended.", retryable=True))
            else:
                app_server.turns += 1
                waiter.granted.set_result(app_server)

    def replace_if_due(self, app_server: AppServer) -> None:
        """Replace or stop the app-server of a turn or thread that has ended, if it is due."""
        if app_server.started >= self._profile.threads and not app_server.is_retiring:
            self._retire(app_server)
            self.fill()
        if app_server.is_retiring and app_server.turns <= 0 and not app_server.threads:
            self._dismiss(app_server)

    def _retire(self, app_server: AppServer) -> None:
        app_server.is_retiring = True
        self.replace_if_due(app_server)
        retiring = [each for each in self._app_servers if each.is_retiring]
        for old in retiring[: -self._size]:
            self._abandon_threads(old)

    def _dismiss(self, app_server: AppServer) -> None:
        if app_server in self._app_servers:
            self._app_servers.remove(app_server)
            self._spawn(app_server.stop())

    def fill(self) -> None:
        """Start missing app-servers, except during a backoff."""
        if self._closed or self._backoff is not None:
            return
        active = sum(not app_server.is_retiring for app_server in self._app_servers)
        for _ in range(self._size - active - self._starting):
            self._starting += 1
            task = self._spawn(self._start())
            self._starts.add(task)
            task.add_done_callback(self._starts.discard)

    async def _start(self) -> None:
        app_server = AppServer(self._spec, self._models, self._replace)
        try:
            await app_server.start()
        except BackendFault as fault:
            if self.failure is None or self.failure.message != fault.failure.message:
                self._warn(fault.failure.message)
            self._fill_later()
            if not any(each.is_ready for each in self._app_servers):
                self.failure = fault.failure
                waiting, self._queue = self._queue, deque()
                for waiter in waiting:
                    _refuse(waiter, fault.failure)
            return
        finally:
            self._starting -= 1
        if self._closed:
            await app_server.stop()
            return
        self.failure = None
        self._app_servers.append(app_server)
        if app_server.models != self._models:
            self._retire(app_server)
            self.fill()
        self._serve()

    def _replace(self, app_server: AppServer) -> None:
        """Replace an app-server whose process has ended, unless it was stopped."""
        if app_server not in self._app_servers:
            return
        self._dismiss(app_server)
        if not app_server.is_retiring:
            self._failures = 0 if app_server.started else self._failures
            self._fill_later()
        self._serve()

    def _fill_later(self) -> None:
        """Start missing app-servers after a backoff."""
        if self._closed or self._backoff is not None:
            return
        delay = min(MAX_BACKOFF, MIN_BACKOFF * 2**self._failures)
        self._failures += 1

        def resume() -> None:
            self._backoff = None
            self.fill()

        self._backoff = asyncio.get_running_loop().call_later(delay, resume)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _refuse(waiter: _Waiter, failure: Failure) -> None:
    if not waiter.granted.done():
        waiter.granted.set_exception(Broken(failure))


def _make_no_slot(message: str) -> Broken:
    return Broken(Failure(429, "rate_limit_exceeded", message, retry_after=retry_after(10), retryable=True))
