"""A thread of a worker, as the one who listens to it: while a client is served, while it waits, and while it is left.

Leaving is what makes it worth a class: a turn that nobody listens to any more is interrupted as soon as its name is
known, its requests are declined, and its place is free when it has ended or has had time enough to.
"""

import asyncio
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from toolwire.core.backend import Ask, Waiting
from toolwire.core.errors import BackendFault, Failure
from toolwire.core.jsonrpc import Id
from toolwire.transport.codex.worker import Envelope, Worker

CALL = "item/tool/call"

LEAVING = 2.0
"""Seconds that a turn has to end once it is interrupted, before its place is free."""
FORGETTING = 30.0
"""Seconds after which nobody listens for its end any more."""

INBOX_LIMIT = 64 * 1024 * 1024
"""Most bytes that may wait for a slow client."""

State: TypeAlias = Literal["served", "waiting", "left", "over"]


class Places(Protocol):
    """Who gives places at workers."""

    def release(self, worker: Worker) -> None:
        """A place is free."""
        ...

    def rest(self, worker: Worker) -> None:
        """A thread has ended."""
        ...


class Thread:
    """One thread, which has a place at its worker."""

    def __init__(self, worker: Worker, declined: Callable[[str, Id], bytes], places: Places, silence: float) -> None:
        self.worker = worker
        self.id = ""
        self.waiting: Waiting | None = None
        self._declined = declined
        self._places = places
        self._silence = silence
        self._loop = asyncio.get_running_loop()
        self._state: State = "served"
        self._holds_place = True
        self._turn = ""
        self._runs = False
        self._interrupted = False
        self._expired: Callable[[Thread], None] | None = None
        self._channel = worker.open_channel(self)
        self._inbox: list[bytes] = []
        self._size = 0
        self._fault: BackendFault | None = None
        self._reader: asyncio.Future[None] | None = None
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(silence, self._look)
        worker.started += 1

    # For whoever serves a client

    def ask(self, ask: Ask) -> None:
        if ask.method == "turn/start":
            self._runs = True
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
    def runs(self) -> bool:
        return self._runs

    def go_on(self) -> None:
        """A client is served again, who has a place for it."""
        self._state = "served"
        self._holds_place = True
        self._stop_timer()
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(self._silence, self._look)

    def hold(self) -> None:
        """Its results have come, and wait for a place: it does not expire."""
        self._stop_timer()

    def wait(self, waiting: Waiting, seconds: float, expired: "Callable[[Thread], None]") -> None:
        """The client has its calls; their results may come."""
        self._state = "waiting"
        self.waiting = waiting
        self._stop_timer()
        self._expired = expired
        self._timer = self._loop.call_later(seconds, expired, self)
        self._free()

    def leave(self) -> None:
        """Nobody listens any more."""
        if self._state in ("left", "over"):
            return
        self._state = "left"
        self._stop_timer()
        self._inbox.clear()
        if not self._runs and (self.id or self._fault is not None):
            self._finish()
            return
        self._timer = self._loop.call_later(LEAVING, self._leave_late)
        self._interrupt()

    def _leave_late(self) -> None:
        """It has had time enough to end. Its place is free; should its turn begin only now, it is still interrupted."""
        self._free()
        self._timer = self._loop.call_later(FORGETTING, self._finish)

    def _interrupt(self) -> None:
        if self._turn and not self._interrupted:
            self._interrupted = True
            self.worker.ask(
                self._channel, Ask("interrupt", "turn/interrupt", {"threadId": self.id, "turnId": self._turn})
            )

    def _finish(self) -> None:
        """There is nothing left to do about it."""
        self._state = "over"
        self._stop_timer()
        if self.id and self.worker.is_ready:
            self.worker.ask("0", Ask(f"{self._channel}.done", "thread/unsubscribe", {"threadId": self.id}))
        self.worker.threads.pop(self.id, None)
        self.worker.close_channel(self._channel)
        self._free()
        self._places.rest(self.worker)

    def _free(self) -> None:
        if self._holds_place:
            self._holds_place = False
            self._places.release(self.worker)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # For the worker

    def hear(self, envelope: Envelope, line: bytes) -> None:
        self._heard_at = self._loop.time()
        self._learn(envelope)
        if self._state == "served":
            self._keep(line)
        elif envelope.is_request:
            assert envelope.id is not None
            self.worker.write(self._declined(envelope.method, envelope.id))
        if self._state == "waiting" and (not self._runs or envelope.method == CALL) and self._expired is not None:
            self._expired(self)  # it has ended, or has more calls than its client knows
        elif self._state == "left":
            if self._runs:
                self._interrupt()
            else:
                self._finish()  # with its name, if it has got one only now

    def _learn(self, envelope: Envelope) -> None:
        result, params = envelope.result, envelope.params
        if result is not None and result.thread is not None and not self.id:
            self.id = result.thread.id
            self.worker.threads[self.id] = self
        if envelope.error is not None and str(envelope.id).endswith((".turn", ".interrupt")):
            self._runs = False  # it never began, or has ended
        if params is not None and params.turn is not None:
            self._turn = params.turn.id
            self._runs = envelope.method != "turn/completed"

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
        self._runs = False
        self._wake()
        if self._state == "waiting" and self._expired is not None:
            self._expired(self)
        elif self._state != "served":
            self._finish()

    def _look(self) -> None:
        """Ask after a thread that has been silent for long."""
        silent = self._loop.time() - self._heard_at
        if silent >= self._silence and self.id and self._runs:
            self._heard_at = self._loop.time()
            self.worker.ask(self._channel, Ask("probe", "thread/read", {"threadId": self.id}))
            silent = 0.0
        self._timer = self._loop.call_later(max(0.05, self._silence - silent), self._look)
