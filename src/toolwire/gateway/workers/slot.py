"""The places that workers have: at most one worker of a slot is current, one is on its way, others finish their turns.

(none) → coming → current → retired → (none)
"""

import os
import selectors
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from toolwire.config.settings import Settings
from toolwire.gateway.workers.counters import Snapshot
from toolwire.gateway.workers.messages import (
    LONGEST,
    FromSupervisor,
    FromWorker,
    Lines,
    TooLong,
    decode_from_worker,
    line_of,
)


class Generation(msgspec.Struct, frozen=True, eq=False):
    """Settings that were read at one time."""

    settings: Settings
    version: str


class Child:
    """A process that was forked, and our end of the pair."""

    def __init__(self, pid: int, channel: socket.socket, selector: selectors.BaseSelector) -> None:
        self.pid = pid
        self.reason = ""
        """Why it does not come about, if it said so."""
        self.is_lasting = False
        """Whether it would not come about another time either."""
        self.silent = 0
        """Ticks since it was last heard."""
        self.age = 0
        """Ticks since it was forked."""
        self.status: int | None = None
        """How it ended, as `waitpid` says. From then on its process id may be that of a stranger."""
        self._channel = channel
        self._selector = selector
        self._lines = Lines()
        self._unsent = bytearray()
        selector.register(channel, selectors.EVENT_READ, self)

    def received(self) -> Iterator[FromWorker]:
        """What it has said since the last time."""
        with suppress(BlockingIOError, ConnectionError):
            while data := self._channel.recv(1 << 20):
                self.silent = 0
                try:
                    yield from map(decode_from_worker, self._lines.feed(data))
                except (msgspec.DecodeError, TooLong):
                    self.kill()  # it has lost its senses
                    return
            self._watch(0)

    def send(self, message: FromSupervisor) -> None:
        """Tell it something, now or as soon as it listens. One that never does is killed."""
        self._unsent += line_of(message)
        if len(self._unsent) > 2 * LONGEST:
            self.kill()
        self.flush()

    def flush(self) -> None:
        """Send what it has room for. What is left is sent when there is room again."""
        try:
            while self._unsent:
                del self._unsent[: self._channel.send(self._unsent)]
        except BlockingIOError:
            pass
        except ConnectionError:
            self._unsent.clear()  # it is gone
        self._watch(selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0))

    def _watch(self, events: int) -> None:
        """Wait for these events. At the end of the stream there is nothing more to wait for."""
        try:
            watched = self._selector.get_key(self._channel).events
        except KeyError:
            return
        if not events:
            self._selector.unregister(self._channel)
        elif events != watched:
            self._selector.modify(self._channel, events, self)

    def kill(self) -> None:
        if self.status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        self._watch(0)
        self._channel.close()

    @property
    def channel(self) -> socket.socket:
        return self._channel


class Worker(Child):
    """A child that serves."""

    def __init__(
        self, pid: int, channel: socket.socket, selector: selectors.BaseSelector, slot: "Slot", generation: Generation
    ) -> None:
        super().__init__(pid, channel, selector)
        self.slot = slot
        self.generation = generation
        self.incarnation = ""
        self.running = 0
        """Turns."""
        self.snapshot: Snapshot = []
        self.served = 0
        """Ticks since it was ready."""
        self.fate = ""
        """Why it was killed, if it was."""


class Slot:
    """One place, with the socket that its workers accept connections from, one after the other."""

    def __init__(self, number: int, sock: socket.socket, generation: Generation) -> None:
        self.number = number
        self.sock = sock
        self.generation = generation
        """That of its current worker, and of the next if that one ends."""
        self.current: Worker | None = None
        self.coming: Worker | None = None
        self.retired: list[Worker] = []
        self.failures = 0
        """Workers in a row that ended too soon."""
        self.due = 0.0
        """When the next worker may be forked."""

    @property
    def workers(self) -> list[Worker]:
        return [each for each in (self.current, self.coming, *self.retired) if each is not None]

    def remove(self, worker: Worker) -> None:
        if self.current is worker:
            self.current = None
        if self.coming is worker:
            self.coming = None
        if worker in self.retired:
            self.retired.remove(worker)
