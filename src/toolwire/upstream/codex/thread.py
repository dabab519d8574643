"""A thread of a worker, from the side that reads its lines: while it serves a client, while it waits, while it is left.

Leaving is what makes it worth a class: a turn that nobody reads any more is interrupted as soon as its id is known, its
requests are declined, and its slot is free when it has ended or has had time enough to.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from toolwire.backends.codex import Profile
from toolwire.backends.codex.protocol import Envelope, ThreadTracker
from toolwire.core.backend import Ask, PendingTurn
from toolwire.core.errors import BackendFault
from toolwire.upstream.codex.inbox import Inbox
from toolwire.upstream.codex.pool import Pool
from toolwire.upstream.codex.worker import Worker

LEAVING = 2.0
"""Seconds that a turn has to end once it is interrupted, before its slot is free."""
FORGETTING = 30.0
"""Seconds after which nobody waits for its end any more."""

State: TypeAlias = Literal["served", "waiting", "left", "over"]


class Thread:
    """One thread, which begins with a slot at its worker."""

    def __init__(self, worker: Worker, pool: Pool, profile: Profile, expire: "Callable[[Thread], None]") -> None:
        self.worker = worker
        self.waiting: PendingTurn | None = None
        self.inbox = Inbox(b"\n")
        self._tracker = ThreadTracker()
        self._pool = pool
        self._profile = profile
        self._expire = expire
        """Called with a thread that waits when its results are not to be awaited any longer."""
        self._loop = asyncio.get_running_loop()
        self._state: State = "served"
        self._channel = worker.open_channel(self)
        self._timer: asyncio.TimerHandle | None = None
        worker.started += 1
        self.resume()

    # For whoever serves a client

    def ask(self, ask: Ask) -> None:
        self._tracker.note_sent(ask)
        self.worker.ask(self._channel, ask)

    def write(self, line: bytes) -> None:
        self.worker.write(line)

    def take(self) -> bytes:
        """The lines that have come."""
        return self.inbox.take()

    async def arrived(self) -> bytes:
        """The next lines."""
        return await self.inbox.arrived()

    def put_back(self, data: bytes) -> None:
        """Let lines be read again, before all others."""
        self.inbox.put_back(data)

    @property
    def headers(self) -> Mapping[str, str]:
        """The rate limits of the account."""
        return self.worker.limit_headers

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
        self.inbox.clear()
        if not self.is_running and (self._tracker.thread or self.inbox.fault is not None):
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
            self.inbox.put(line)
        elif refusal := envelope.refusal:
            self.worker.write(refusal)
        if self._state == "waiting" and (not self.is_running or envelope.is_call):
            self._expire(self)  # it has ended, or has more calls than its client knows
        elif self._state == "left":
            if self.is_running:
                self._interrupt()
            else:
                self._finish()  # with its id, if it has got one only now

    def lose(self, fault: BackendFault) -> None:
        self._tracker.is_running = False
        self.inbox.fail(fault)
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
