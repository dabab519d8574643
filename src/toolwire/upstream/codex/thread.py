"""A thread of an app-server: it serves a client, waits for results, or is abandoned.

The turn of an abandoned thread is interrupted as soon as its id is known, and its requests are declined. Its slot is
free when the turn has ended, or after `INTERRUPT_TIMEOUT`.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from toolwire.backends.codex import Profile
from toolwire.backends.codex.protocol import Envelope, ThreadTracker
from toolwire.core.backend import Ask
from toolwire.core.errors import BackendFault
from toolwire.upstream.codex.app_server import AppServer
from toolwire.upstream.codex.inbox import Inbox
from toolwire.upstream.codex.pool import Pool

INTERRUPT_TIMEOUT = 2.0
"""Seconds to wait for the end of an interrupted turn before its slot is freed."""
LATE_TURN_TIMEOUT = 30.0
"""Further seconds in which a turn that begins late is still interrupted."""

State: TypeAlias = Literal["served", "waiting", "abandoned", "over"]


class Thread:
    """One thread, which begins with a slot at its app-server. `expire` abandons a waiting thread."""

    def __init__(self, app_server: AppServer, pool: Pool, profile: Profile, expire: "Callable[[Thread], None]") -> None:
        self.app_server = app_server
        self.inbox = Inbox(b"\n")
        self._tracker = ThreadTracker()
        self._pool = pool
        self._profile = profile
        self._expire = expire
        self._loop = asyncio.get_running_loop()
        self._state: State = "served"
        self._channel = app_server.open_channel(self)
        self._timer: asyncio.TimerHandle | None = None
        app_server.started += 1
        self.resume()

    # For the reply that serves a client

    def ask(self, ask: Ask) -> None:
        self._tracker.note_sent(ask)
        self.app_server.ask(self._channel, ask)

    def write(self, line: bytes) -> None:
        self.app_server.write(line)

    @property
    def headers(self) -> Mapping[str, str]:
        """The rate limits of the account."""
        return self.app_server.make_limit_headers

    @property
    def is_running(self) -> bool:
        return self._tracker.is_running

    def resume(self) -> None:
        """Serve a client. The caller has acquired a slot."""
        self._state = "served"
        self._has_slot = True
        self._received_at = self._loop.time()
        self._set_timer(self._profile.silence, self._probe)

    def wait(self) -> None:
        """Free the slot, and wait for the results of calls that the client runs."""
        self._state = "waiting"
        self._set_timer(self._profile.keep, lambda: self._expire(self))
        self._free_slot()

    def abandon(self) -> None:
        """End a thread that no client reads any longer."""
        if self._state in ("abandoned", "over"):
            return
        self._state = "abandoned"
        self.stop_timer()
        self.inbox.clear()
        if not self.is_running and (self._tracker.thread or self.inbox.fault is not None):
            self._finish()
            return
        self._set_timer(INTERRUPT_TIMEOUT, self._give_up_turn)
        self._interrupt()

    def _give_up_turn(self) -> None:
        """Free the slot of a turn that does not end. If the turn begins only now, it is still interrupted."""
        self._free_slot()
        self._set_timer(LATE_TURN_TIMEOUT, self._finish)

    def _interrupt(self) -> None:
        if ask := self._tracker.interrupt():
            self.app_server.ask(self._channel, ask)

    def _finish(self) -> None:
        """Unsubscribe and release everything."""
        self._state = "over"
        self.stop_timer()
        if self._tracker.thread and self.app_server.is_ready:
            self.app_server.ask(f"0.{self._channel}", self._tracker.unsubscribe())  # there is no channel 0
        self.app_server.threads.pop(self._tracker.thread, None)
        self.app_server.close_channel(self._channel)
        self._free_slot()
        self._pool.replace_if_due(self.app_server)

    def _free_slot(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self._pool.release(self.app_server)

    def _set_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        self.stop_timer()
        self._timer = self._loop.call_later(seconds, callback)

    def stop_timer(self) -> None:
        """Cancel the next probe, expiry or clean-up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # For the app-server

    def receive(self, envelope: Envelope, line: bytes) -> None:
        self._received_at = self._loop.time()
        tracker, was_known = self._tracker, bool(self._tracker.thread)
        tracker.feed(envelope)
        if tracker.thread and not was_known:
            self.app_server.threads[tracker.thread] = self
        if self._state == "served":
            self.inbox.put(line)
        elif refusal := envelope.refusal:
            self.app_server.write(refusal)
        if self._state == "waiting" and (not self.is_running or envelope.is_call):
            self._expire(self)  # it has ended, or makes calls that its client does not know
        elif self._state == "abandoned":
            if self.is_running:
                self._interrupt()
            else:
                self._finish()  # also if its id has only now arrived

    def lose(self, fault: BackendFault) -> None:
        self._tracker.is_running = False
        self.inbox.fail(fault)
        if self._state == "waiting":
            self._expire(self)
        elif self._state != "served":
            self._finish()

    def _probe(self) -> None:
        """Ask for the status of a thread after a long silence."""
        silence, silent = self._profile.silence, self._loop.time() - self._received_at
        if silent >= silence and self._tracker.thread and self.is_running:
            self._received_at = self._loop.time()
            self.app_server.ask(self._channel, self._tracker.probe())
            silent = 0.0
        self._set_timer(max(0.05, silence - silent), self._probe)
