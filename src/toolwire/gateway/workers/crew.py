"""All workers of a supervisor: forked, heard, counted, and replaced when they end or hang.

It counts in ticks, not in seconds: when the supervisor is stopped itself, or the machine sleeps, no time passes for it,
and it kills nobody who was just as still.
"""

import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from toolwire.gateway.peers import socket_path
from toolwire.gateway.workers.child import Body, ending_of, forked
from toolwire.gateway.workers.counters import Snapshot, counter, gauge, lasting, merged
from toolwire.gateway.workers.lines import SupervisorLines
from toolwire.gateway.workers.messages import (
    AllNumbers,
    Beat,
    Drain,
    Draining,
    Failed,
    Fleet,
    FromSupervisor,
    FromWorker,
    Hello,
    Numbers,
    NumbersWanted,
    Ready,
    Retire,
)
from toolwire.gateway.workers.slot import Child, Generation, Slot, Worker
from toolwire.gateway.workers.worker import Plan, run_worker

HUNG = 10
"""Ticks of silence after which a worker that was ready is killed. Its event loop speaks every second."""
STARTS = 120
"""Ticks that a worker may take to become ready, however silent it is, and a check to end."""
STEADY = 30
"""Ticks that a worker must serve so that its end is no sign of worse to come."""
PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0)
"""Seconds before the next worker of a slot, by how many ended too soon. Connections wait for it that long."""
FULL = 2.0
"""Seconds before the next fork when the system had no room for one."""
MOST_RETIRED = 4
"""Workers of a slot that may finish their turns without a limit at the same time, after many reloads."""


class Lost(NamedTuple):
    """A worker that was to come and did not."""

    worker: Worker
    reason: str


class Crew:
    """The workers, by slot."""

    def __init__(
        self,
        generation: Generation,
        sockets: Sequence[socket.socket],
        folder: Path,
        lines: SupervisorLines,
        selector: selectors.BaseSelector,
    ) -> None:
        self.slots = [Slot(number, sock, generation) for number, sock in enumerate(sockets)]
        self.started = False
        """Whether all slots have been ready."""
        self.ending = False
        """Whether nobody is replaced any more."""
        self.reloads: Counter[str] = Counter()
        """By outcome."""
        self._folder = folder
        self._lines = lines
        self._selector = selector
        self._gone: Snapshot = []
        self._restarts: Counter[str] = Counter()
        self._questions: list[tuple[Worker, int]] = []
        self._told: Fleet | None = None
        self._children: dict[int, Child] = {}
        """Those that have not ended, by their process ids."""
        self._lost: list[Lost] = []
        self._full_until = 0.0

    @property
    def workers(self) -> list[Worker]:
        return [worker for slot in self.slots for worker in slot.workers]

    @property
    def running(self) -> int:
        """Turns of all workers."""
        return sum(worker.running for worker in self.workers)

    @property
    def ready(self) -> int:
        return sum(slot.current is not None for slot in self.slots)

    def send(self, message: FromSupervisor) -> None:
        for worker in self.workers:
            worker.send(message)

    # Coming

    def child(self, body: Body) -> Child:
        """Fork something that has nothing of the workers. Raises `OSError` where the system has no room for it."""
        pid, channel = forked(body, self._closed_in_child(None))
        child = self._children[pid] = Child(pid, channel, self._selector)
        return child

    def fork(self, slot: Slot, generation: Generation) -> None:
        """Have a worker come. Where the system has no room for it, somebody has to ask again."""
        if time.monotonic() < self._full_until:
            return
        plan = Plan(generation.settings, generation.version, slot.number, self._folder, slot.sock, self.started)
        try:
            pid, channel = forked(partial(run_worker, plan), self._closed_in_child(slot))
        except OSError as error:
            self._full_until = time.monotonic() + FULL
            facts = {"worker": slot.number, "failure": str(error), "pause": FULL}
            self._lines.log("error", "worker", state="not forked", **facts)
            return
        slot.coming = self._children[pid] = Worker(pid, channel, self._selector, slot, generation)

    def fork_missing(self) -> None:
        """Have a worker come wherever there is none, unless it is too soon."""
        now = time.monotonic()
        for slot in self.slots:
            if not self.ending and slot.current is None and slot.coming is None and now >= slot.due:
                self.fork(slot, slot.generation)

    def _closed_in_child(self, slot: Slot | None) -> list[socket.socket]:
        """What a child must not hold: the supervisor's ends, or it would be missed when the supervisor is gone."""
        own = slot.sock if slot is not None else None
        sockets = {id(each.sock): each.sock for each in self.slots if each.sock is not own}
        return [*sockets.values(), *(child.channel for child in {*self.workers, *self._children.values()})]

    # What they say

    def look(self) -> list[Lost]:
        """Hear everybody, and take leave of those that ended; returns those that did not come about."""
        self._hear_all()
        if self._questions:
            asked, self._questions = self._questions, []
            self._hear_all()  # who reported before a question was asked is now heard for certain
            for worker, question in asked:
                worker.send(AllNumbers(question, self._numbers()))
        for worker in self.workers:
            if worker.status is not None:
                self._hear(worker)  # its last words
                self._take_leave(worker, ending_of(worker.status))
        self._tell_fleet()
        lost, self._lost = self._lost, []
        return lost

    def reap(self) -> None:
        """Ask the system who has ended. As the first process of a container it gets the children of others too."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                child = self._children.pop(pid, None)
                if child is not None:
                    child.status = status

    def _hear_all(self) -> None:
        for worker in self.workers:
            self._hear(worker)

    def _hear(self, worker: Worker) -> None:
        for message in worker.received():
            self._obey(worker, message)

    def _obey(self, worker: Worker, message: FromWorker) -> None:
        slot = worker.slot
        match message:
            case Hello(incarnation):
                worker.incarnation = incarnation
            case Beat(running):
                worker.running = running
            case Numbers(running, snapshot):
                worker.running, worker.snapshot = running, snapshot
            case NumbersWanted(question):
                self._questions.append((worker, question))
            case Failed(reason, is_lasting):
                worker.reason, worker.is_lasting = reason, is_lasting
            case Ready() if slot.coming is worker:
                self._welcome(worker)
            case Draining() if slot.current is worker and not self.ending:
                self._lines.log("warning", "worker", state="draining", worker=slot.number, pid=worker.pid)
                slot.current = None
                slot.retired.append(worker)
            case _:
                pass

    def _welcome(self, worker: Worker) -> None:
        """The new worker accepts connections; the old one need not any more."""
        slot = worker.slot
        before = slot.current
        slot.current, slot.coming, slot.generation = worker, None, worker.generation
        self._told = None  # the new one does not know yet
        if before is not None:
            slot.retired.append(before)
            before.send(Retire())
        for late in slot.retired[:-MOST_RETIRED]:
            late.send(Drain())
        if self.ending:
            worker.send(Drain())

    def _numbers(self) -> Snapshot:
        restarts = counter("toolwire_worker_restarts", "Workers replaced, by reason", "reason", self._restarts)
        reloads = counter("toolwire_reloads", "Configurations read anew, by outcome", "outcome", self.reloads)
        ready = gauge("toolwire_workers", "Workers that are ready", float(self.ready))
        return merged([*(worker.snapshot for worker in self.workers), self._gone, [restarts, reloads, ready]])

    def _tell_fleet(self) -> None:
        self.started = self.started or self.ready == len(self.slots)
        fleet = Fleet(len(self.slots), self.ready, self.started)
        if fleet != self._told:
            self._told = fleet
            self.send(fleet)

    # Going

    def kill_coming(self) -> None:
        """End those that are not ready: they have no turns, and may not hear before they are."""
        for slot in self.slots:
            if slot.coming is not None:
                slot.coming.kill()

    def _take_leave(self, worker: Worker, ending: str) -> None:
        slot = worker.slot
        self._gone = merged([self._gone, lasting(worker.snapshot)])
        worker.close()
        if worker.incarnation:
            with suppress(OSError):
                os.unlink(socket_path(self._folder, worker.incarnation))
        was_coming, was_current = slot.coming is worker, slot.current is worker
        slot.remove(worker)
        if was_coming:
            self._lost.append(Lost(worker, worker.reason or f"it ended with {ending} before it was ready"))
        if self.ending or not (was_coming or was_current):
            return
        slot.failures += 1
        pause = PAUSES[min(slot.failures, len(PAUSES)) - 1]
        slot.due = time.monotonic() + pause
        self._restarts[worker.fate or "ended"] += 1
        if not self.started and worker.reason:
            return  # the start ends with it
        facts = {"worker": slot.number, "pid": worker.pid, "ending": ending, "pause": pause}
        if worker.reason:
            facts["failure"] = worker.reason
        self._lines.log("error", "worker", state=worker.fate or "ended", **facts)

    def tick(self) -> None:
        """A second has passed for the supervisor."""
        for worker in self.workers:
            worker.age += 1
            worker.silent += 1
            if worker is worker.slot.current:
                worker.served += 1
                if worker.served == STEADY:
                    worker.slot.failures = 0
            if worker is worker.slot.coming:
                if worker.age >= STARTS:
                    worker.fate, worker.reason = "late", f"it was not ready within {STARTS} s"
                    worker.kill()
            elif worker.silent >= HUNG:
                worker.fate = "hung"
                worker.kill()
