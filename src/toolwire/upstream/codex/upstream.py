"""The upstream of a `codex` backend: each dialogue is carried by a thread, which may wait for results afterwards."""

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
from toolwire.upstream.reply import Take, Upstream, make_broken, sanitize_headers

MAX_WAITING_THREADS = 1000
"""Maximum threads that wait for results; beyond that the oldest is abandoned."""


class CodexUpstream(Upstream):
    """The app-servers of one backend, and its waiting threads."""

    def __init__(
        self,
        spec: AppServerSpec,
        app_servers: int,
        profile: Profile,
        models: frozenset[str],
        warn: Callable[[str], None],
    ) -> None:
        self._pool = Pool(spec, app_servers, profile, models, self._abandon_threads, warn)
        self._profile = profile
        self._waiting: dict[Thread, PendingTurn] = {}  # the oldest first

    def start(self) -> None:
        self._pool.fill()

    def unreachable(self) -> str:
        return self._pool.failure.message if self._pool.failure is not None else ""

    async def stop(self) -> None:
        await self._pool.stop()

    async def open(self, opening: Opening, key: str) -> "CodexReply":
        assert isinstance(opening, Dialogue)
        turn = opening.resume
        if turn is None:
            app_server = await self._pool.acquire(opening.model)
            thread = Thread(app_server, self._pool, self._profile, self._expire)
            return CodexReply(thread, opening, partial(self._release, thread))
        thread = next((each for each, waiting in self._waiting.items() if waiting is turn), None)
        if thread is None:
            raise make_broken(THREAD_GONE, "The thread of these calls is gone.")
        del self._waiting[thread]
        thread.stop_timer()  # it does not expire while it waits for a slot
        try:
            await self._pool.acquire(opening.model, thread.app_server)
        except BaseException:
            thread.abandon()
            raise
        if not thread.is_running:
            self._pool.release(thread.app_server)
            thread.abandon()
            raise make_broken(THREAD_GONE, "The thread of these calls has ended.")
        thread.resume()
        return CodexReply(thread, opening, partial(self._release, thread))

    def find_waiting(self, calls: Sequence[Hashable]) -> list[PendingTurn]:
        """The turns that wait for the result of one of these calls, the latest first."""
        wanted = frozenset(calls)
        return [turn for turn in reversed(self._waiting.values()) if not wanted.isdisjoint(turn.calls)]

    def _release(self, thread: Thread, waiting: PendingTurn | None) -> None:
        """End the client's turn: the thread waits for the results of its calls, or is abandoned."""
        if waiting is None or not thread.app_server.is_ready:
            thread.abandon()
            return
        while len(self._waiting) >= MAX_WAITING_THREADS:
            self._expire(next(iter(self._waiting)))
        self._waiting[thread] = waiting
        thread.wait()

    def _expire(self, thread: Thread) -> None:
        self._waiting.pop(thread, None)
        thread.abandon()

    def _abandon_threads(self, app_server: AppServer) -> None:
        """Abandon the waiting threads of an app-server that must end."""
        for thread in tuple(self._waiting):
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
    """The lines of a thread that answer one request. `release` is called with the turn if it waits for results."""

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

    async def read(self, take: Take | None = None) -> bytes:
        self.flush()
        return await self.inbox.read()

    def is_whole(self) -> bool:
        return self._dialogue.is_over or not self._thread.is_running

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.flush()
            self._release(self._dialogue.waiting)

    def flush(self) -> None:
        """Send the messages in the dialogue's outbox."""
        outbox = self._dialogue.outbox
        for each in outbox:
            if isinstance(each, Ask):
                self._thread.ask(each)
            else:
                self._thread.write(each)
        outbox.clear()
