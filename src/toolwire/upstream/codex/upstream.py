"""The upstream of a `codex` backend: a dialogue becomes a thread of an app-server, and threads that wait are kept."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Protocol

from toolwire.backends.codex import Profile
from toolwire.core.backend import Ask, Dialogue, Opening, PendingTurn
from toolwire.core.errors import THREAD_GONE
from toolwire.core.jsonrpc import JSON_LINES
from toolwire.upstream.codex.app_server import AppServer, AppServerSpec
from toolwire.upstream.codex.inbox import Inbox
from toolwire.upstream.codex.pool import Pool
from toolwire.upstream.codex.thread import Thread
from toolwire.upstream.reply import Upstream, broken, sanitize_headers

MAX_WAITING_THREADS = 1000
"""Threads that may wait for results at a time; beyond that the oldest is left."""


class CodexUpstream(Upstream):
    """The app-servers of one backend, and its threads that wait."""

    def __init__(
        self,
        spec: AppServerSpec,
        app_servers: int,
        profile: Profile,
        models: frozenset[str],
        say: Callable[[str], None],
    ) -> None:
        self._pool = Pool(spec, app_servers, profile, models, self._dismiss, say)
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
            app_server = await self._pool.acquire(opening.model)
            thread = Thread(app_server, self._pool, self._profile, self._expire)
            return CodexReply(thread, opening, partial(self._release, thread))
        threads = self._waiting.get(waiting.calls[0], [])
        thread = next((each for each in threads if each.waiting is waiting), None)
        if thread is None:
            raise broken(THREAD_GONE, "The thread of these calls is gone.")
        self._forget(thread)
        thread.stop_timer()  # it does not expire while it waits for a slot
        try:
            await self._pool.acquire(opening.model, thread.app_server)
        except BaseException:
            thread.leave()
            raise
        if not thread.is_running:
            self._pool.release(thread.app_server)
            thread.leave()
            raise broken(THREAD_GONE, "The thread of these calls has ended.")
        thread.resume()
        return CodexReply(thread, opening, partial(self._release, thread))

    def waiting(self, calls: Sequence[Hashable]) -> list[PendingTurn]:
        """The turns that wait for the result of one of these calls, the latest first."""
        found = {thread: None for call in calls for thread in reversed(self._waiting.get(call, ()))}
        return [thread.waiting for thread in found if thread.waiting is not None]

    def _release(self, thread: Thread, waiting: PendingTurn | None) -> None:
        """The turn is over for the client. Its thread waits for the results of its calls, or is left."""
        if waiting is None or not thread.app_server.is_ready:
            thread.leave()
            return
        while len(self._parked) >= MAX_WAITING_THREADS:
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

    def _dismiss(self, app_server: AppServer) -> None:
        """Leave the waiting threads of an app-server that is to end."""
        for thread in tuple(self._parked):
            if thread.app_server is app_server:
                self._expire(thread)


class ServedThread(Protocol):
    """A thread of this process, or of the process that hosts Codex."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def is_running(self) -> bool: ...

    @property
    def inbox(self) -> Inbox: ...

    def ask(self, ask: Ask) -> None: ...

    def write(self, line: bytes) -> None: ...


class CodexReply:
    """The lines of a thread that answer one request. `release` gets the turn that waits in the end, if one does."""

    def __init__(self, thread: ServedThread, dialogue: Dialogue, release: Callable[[PendingTurn | None], None]) -> None:
        self.inbox = thread.inbox
        self._thread = thread
        self._dialogue = dialogue
        self._release = release
        self._closed = False
        self.status = 200
        self.flush()

    @property
    def headers(self) -> Mapping[str, str]:
        return {"content-type": JSON_LINES, **sanitize_headers(self._thread.headers)}

    def read_nowait(self) -> bytes:
        self.flush()
        return self.inbox.read_nowait()

    async def read(self) -> bytes:
        self.flush()
        return await self.inbox.read()

    def is_whole(self) -> bool:
        return self._dialogue.is_over or not self._thread.is_running

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.flush()
        self._release(self._dialogue.waiting)

    def flush(self) -> None:
        """Send what the dialogue holds."""
        outbox = self._dialogue.outbox
        for each in outbox:
            if isinstance(each, Ask):
                self._thread.ask(each)
            else:
                self._thread.write(each)
        outbox.clear()
