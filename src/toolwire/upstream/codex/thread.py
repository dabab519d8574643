"""A thread of a worker, from the side that reads its lines: while it serves a client, while it waits, while it is left.

Leaving is what makes it worth a class: a turn that nobody reads any more is interrupted as soon as its id is known, its
requests are declined, and its slot is free when it has ended or has had time enough to.
"""

import asyncio
from collections.abc import Callable
from typing import Literal, TypeAlias

from toolwire.backends.codex import Profile
from toolwire.backends.codex.protocol import Envelope, ThreadTracker
from toolwire.core.backend import Ask, PendingTurn
from toolwire.core.errors import BackendFault, Failure
from toolwire.upstream.codex.pool import Pool
from toolwire.upstream.codex.worker import Worker

LEAVING = 2.0
"""Seconds that a turn has to end once it is interrupted, before its slot is free."""
FORGETTING = 30.0
"""Seconds after which nobody waits for its end any more."""

INBOX_LIMIT = 64 * 1024 * 1024
"""Most bytes that may wait for a slow client."""

State: TypeAlias = Literal["served", "waiting", "left", "over"]


class Thread:
    """One thread, which begins with a slot at its worker."""

    def __init__(self, worker: Worker, pool: Pool, profile: Profile, expire: "Callable[[Thread], None]") -> None:
        self.worker = worker
        self.waiting: PendingTurn | None = None
        self._tracker = ThreadTracker()
        self._pool = pool
        self._profile = profile
        self._expire = expire
        """Called with a thread that waits when its results are not to be awaited any longer."""
        self._loop = asyncio.get_running_loop()
        self._state: State = "served"
        self._channel = worker.open_channel(self)
        self._inbox: list[bytes] = []
        self._size = 0
        self._fault: BackendFault | None = None
        self._reader: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        worker.started += 1
        self.resume()

    # For whoever serves a client

    def ask(self, ask: Ask) -> None:
        self._tracker.sent(ask)
        self.worker.ask(self._channel, ask)

    def take(self) -> bytes:
        """The lines that have come."""
        if not self._inbox:
            if self._fault is not None:
                raise self._fault
            return b""
        lines, self._inbox, self._size = self._inbox, [], 0
        lines.append(b"")
        return b"\n".join(lines)

    async def arrived(self) -> bytes:
        """The next lines."""
        while not self._inbox and self._fault is None:
            self._reader = self._loop.create_future()
            await self._reader
        return self.take()

    @property
    def is_running(self) -> bool:
        return self._tracker.is_running

    def resume(self) -> None:
        """It serves a client, who has a slot for it."""
        self._state = "served"
        self._has_slot = True
        self.stop_timer()
        self._received_at = self._loop.time()
        self._timer = self._loop.call_later(self._profile.silence, self._probe)

    def wait(self, waiting: PendingTurn) -> None:
        """The client has its calls; their results may come."""
        self._state = "waiting"
        self.waiting = waiting
        self.stop_timer()
        self._timer = self._loop.call_later(self._profile.keep, self._expire, self)
        self._free()

    def leave(self) -> None:
        """Nobody reads its lines any more."""
        if self._state in ("left", "over"):
            return
        self._state = "left"
        self.stop_timer()
        self._inbox.clear()
        if not self.is_running and (self._tracker.thread or self._fault is not None):
            self._finish()
            return
        self._timer = self._loop.call_later(LEAVING, self._leave_late)
        self._interrupt()

    def _leave_late(self) -> None:
        """It has had time enough to end. Its slot is free; should its turn begin only now, it is still interrupted."""
        self._free()
        self._timer = self._loop.call_later(FORGETTING, self._finish)

    def _interrupt(self) -> None:
        if ask := self._tracker.interrupt():
            self.worker.ask(self._channel, ask)

    def _finish(self) -> None:
        """There is nothing left to do about it."""
        self._state = "over"
        self.stop_timer()
        if self._tracker.thread and self.worker.is_ready:
            self.worker.ask(f"0.{self._channel}", self._tracker.unsubscribe())  # there is no channel 0
        self.worker.threads.pop(self._tracker.thread, None)
        self.worker.close_channel(self._channel)
        self._free()
        self._pool.look_after(self.worker)

    def _free(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self._pool.release(self.worker)

    def stop_timer(self) -> None:
        """Let it neither be probed nor expire."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # For the worker

    def receive(self, envelope: Envelope, line: bytes) -> None:
        self._received_at = self._loop.time()
        tracker, was_known = self._tracker, bool(self._tracker.thread)
        tracker.feed(envelope)
        if tracker.thread and not was_known:
            self.worker.threads[tracker.thread] = self
        if self._state == "served":
            self._keep(line)
        elif refusal := envelope.refusal:
            self.worker.write(refusal)
        if self._state == "waiting" and (not self.is_running or envelope.is_call):
            self._expire(self)  # it has ended, or has more calls than its client knows
        elif self._state == "left":
            if self.is_running:
                self._interrupt()
            else:
                self._finish()  # with its id, if it has got one only now

    def _keep(self, line: bytes) -> None:
        self._inbox.append(line)
        self._size += len(line)
        if self._size > INBOX_LIMIT:
            self._fault = BackendFault(Failure(502, "client_too_slow", "The client reads too slowly."))
            self._inbox.clear()
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def lose(self, fault: BackendFault) -> None:
        self._fault = fault
        self._tracker.is_running = False
        self._wake()
        if self._state == "waiting":
            self._expire(self)
        elif self._state != "served":
            self._finish()

    def _probe(self) -> None:
        """Ask after a thread that has been silent for long."""
        silence, silent = self._profile.silence, self._loop.time() - self._received_at
        if silent >= silence and self._tracker.thread and self.is_running:
            self._received_at = self._loop.time()
            self.worker.ask(self._channel, self._tracker.probe())
            silent = 0.0
        self._timer = self._loop.call_later(max(0.05, silence - silent), self._probe)
