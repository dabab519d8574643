"""The workers of a supervisor: forked, counted, and replaced when they end or hang.

Time is counted in ticks of the supervisor. While it is suspended, or the machine sleeps, no tick passes, so it does not
time out workers that were suspended with it.

A slot is held by one worker after another:

    (none) → starting → serving → retired → (none)

With `codex` backends there is one more slot for each generation of settings in use: a process that hosts the threads of
all workers (`codex_host.py`). It ends after the last worker with its settings.
"""

import os
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal, TypeAlias

from toolwire.gateway.metrics import SharedFiles, SupervisorMetrics
from toolwire.gateway.peers import make_incarnation, socket_path
from toolwire.gateway.workers.codex_host import run_codex_host
from toolwire.gateway.workers.fork import Body, Child
from toolwire.gateway.workers.messages import Drain, End, Failed, Fleet, FromSupervisor, Retire
from toolwire.gateway.workers.sockets import METRICS
from toolwire.gateway.workers.supervisor_log import SupervisorLog
from toolwire.gateway.workers.worker import Generation, WorkerPlan, run_worker

HANG_TICKS = 10
"""Ticks of silence after which a worker that was ready is killed. Its event loop sends a heartbeat every second."""
START_TICKS = 120
"""Ticks that a worker has to become ready, and a check of new settings to end."""
STEADY_TICKS = 30
"""Ticks that a worker must serve before its slot's failure count is reset."""
RESTART_PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0)
"""Seconds before the next worker of a slot, by its consecutive failures. Connections wait that long."""
FORK_PAUSE = 2.0
"""Seconds before the next fork after one that failed."""
MAX_RETIRED = 4
"""Retired workers of a slot that may finish their turns without a time limit; older ones drain."""

State: TypeAlias = Literal["starting", "serving", "retired"]


class Slot:
    """The position of a worker: its listening socket, and the failures of its workers."""

    def __init__(self, number: int, sock: socket.socket | None, generation: Generation) -> None:
        self.number = number
        self.sock = sock
        """None for a Codex host."""
        self.generation = generation
        """The generation of its serving worker, and of the replacement if that one ends."""
        self.failures = 0
        """Consecutive workers that ended too soon."""
        self.due = 0.0
        """When the next worker may be forked."""

    @property
    def name(self) -> int | str:
        """Its name in the log."""
        return self.number if self.sock is not None else "codex"


class Worker(Child):
    """A process that serves clients, or hosts Codex for those that do."""

    def __init__(
        self,
        body: Body,
        close: Iterator[socket.socket],
        selector: selectors.BaseSelector,
        slot: Slot,
        generation: Generation,
        seat: str,
        path: str,
    ) -> None:
        super().__init__(body, close, selector)
        self.slot = slot
        self.generation = generation
        self.seat = seat
        """The id of its metrics files; empty for a Codex host."""
        self.path = path
        """The path of its socket for other workers."""
        self.state: State = "starting"
        self.served = 0
        """Ticks since it was ready."""
        self.fate: Literal["ended", "hung", "late"] = "ended"
        """Why it is gone."""

    @property
    def start_failure(self) -> str:
        """Why it has ended before it was ready."""
        return self.failure.reason if self.failure else f"it ended with {self.ending} before it was ready"


class WorkerPool:
    """The workers, by slot."""

    def __init__(
        self,
        generation: Generation,
        sockets: Sequence[socket.socket],
        folder: Path,
        log: SupervisorLog,
        selector: selectors.BaseSelector,
    ) -> None:
        self.slots = [Slot(number, sock, generation) for number, sock in enumerate(sockets)]
        self._host_slots: list[Slot] = []
        self.workers: list[Worker] = []
        self.started = False
        """Whether all slots have been ready."""
        self.ending = False
        """Whether workers are no longer replaced."""
        self._folder = folder
        self._log = log
        self._selector = selector
        self._files = SharedFiles(folder / METRICS)
        self.metrics = SupervisorMetrics(self._files)
        self._fleet: Fleet | None = None
        """The last one sent to the workers."""
        self._children: dict[int, Child] = {}
        """Those that have not been reaped, by process id."""
        self._fork_due = 0.0

    def list_in_slot(self, slot: Slot, state: State) -> list[Worker]:
        return [worker for worker in self.workers if worker.slot is slot and worker.state == state]

    @property
    def running(self) -> int:
        """Turns of all workers, as they last counted them."""
        families = (family for family in self._files.collect() if family.name == "toolwire_turns_running")
        return int(sum(sample.value for family in families for sample in family.samples))

    @property
    def is_empty(self) -> bool:
        """Whether all children have ended and been reaped."""
        return not (self.workers or self._children)

    def send(self, message: FromSupervisor) -> None:
        for worker in self.workers:
            worker.send(message)

    # Starting

    def fork_helper(self, body: Body) -> Child:
        """Fork a process that serves nothing. Raises `OSError` if the fork fails."""
        child = Child(body, self._list_foreign_sockets(None), self._selector)
        self._children[child.pid] = child
        return child

    def fork(self, slot: Slot, generation: Generation) -> None:
        """Start a worker. If the fork fails, the failure is logged, and the caller has to try again."""
        if time.monotonic() < self._fork_due:
            return
        path = generation.make_codex_path(self._folder)
        if path and all(each.generation is not generation for each in self._host_slots):
            self._host_slots.append(host := Slot(-1, None, generation))
            self.fork(host, generation)
        if slot.sock is None:
            seat, body = "", partial(run_codex_host, generation.settings, self._folder, path)
        else:
            seats, incarnation = {worker.seat for worker in self.workers}, make_incarnation()
            seat = next(seat for seat in map(str, count()) if seat not in seats)
            path = socket_path(self._folder, incarnation)
            plan = WorkerPlan(generation, slot.number, seat, incarnation, self._folder, self.started)
            body = partial(run_worker, plan, slot.sock)
        try:
            worker = Worker(body, self._list_foreign_sockets(slot.sock), self._selector, slot, generation, seat, path)
        except OSError as error:
            self._fork_due = time.monotonic() + FORK_PAUSE
            facts = {"worker": slot.name, "failure": str(error), "pause": FORK_PAUSE}
            self._log.log("error", "worker", state="not forked", **facts)
            return
        self.workers.append(worker)
        self._children[worker.pid] = worker

    def fork_missing(self) -> None:
        """Start a worker for each slot that has none and whose pause is over."""
        for slot in (*self.slots, *self._host_slots):
            is_missing = not (self.list_in_slot(slot, "serving") or self.list_in_slot(slot, "starting"))
            if is_missing and not self.ending and time.monotonic() >= slot.due:
                self.fork(slot, slot.generation)

    def _list_foreign_sockets(self, own: socket.socket | None) -> Iterator[socket.socket]:
        """Sockets that a child closes: other listening sockets, and channels, which it would keep open."""
        yield from {each.sock for each in self.slots if each.sock is not None and each.sock is not own}
        yield from {child.channel for child in (*self.workers, *self._children.values())}

    # Watching

    def reap(self) -> None:
        """Collect the exit codes of children. The first process of a container also has to reap adopted ones."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                child = self._children.pop(pid, None)
                if child is not None:
                    child.exit_code = os.waitstatus_to_exitcode(status)

    def handle_workers(self) -> list[Worker]:
        """Handle the messages and exits of workers; returns those that ended before they were ready."""
        for worker in self.workers:
            worker.receive()
            if worker.is_ready and worker.state == "starting":
                self._put_in_service(worker)
            if worker.is_draining and worker.state == "serving" and not self.ending:
                self._log.log("warning", "worker", state="draining", worker=worker.slot.name, pid=worker.pid)
                worker.state = "retired"
        gone = [worker for worker in self.workers if worker.exit_code is not None]
        lost = [worker for worker in gone if worker.state == "starting"]
        for worker in gone:
            self._remove(worker)
        self._end_unused_hosts()
        ready = sum(worker.state == "serving" and worker.slot in self.slots for worker in self.workers)
        self.started = self.started or ready == len(self.slots)
        fleet = Fleet(len(self.slots), ready, self.started)
        if fleet != self._fleet:
            self._fleet = fleet
            self.metrics.ready.set(ready)
            self.send(fleet)
        return lost

    def _put_in_service(self, worker: Worker) -> None:
        """Put a new worker in service, and retire the old one of its slot."""
        slot = worker.slot
        for before in self.list_in_slot(slot, "serving"):
            before.state = "retired"
            before.send(Retire())
        for late in self.list_in_slot(slot, "retired")[:-MAX_RETIRED]:
            late.send(Drain())
        worker.state, slot.generation = "serving", worker.generation
        self._fleet = None  # the new one does not know it yet
        if self.ending:
            worker.send(Drain())

    def _end_unused_hosts(self) -> None:
        """End Codex hosts whose settings no worker has any longer."""
        in_use = [worker.generation for worker in self.workers if worker.slot in self.slots]
        in_use += [slot.generation for slot in self.slots if not self.ending]
        for slot in tuple(self._host_slots):
            if slot.generation not in in_use:
                self._host_slots.remove(slot)
                for worker in self.workers:
                    if worker.slot is slot:
                        worker.state = "retired"
                        worker.send(End())

    def _remove(self, worker: Worker) -> None:
        """Remove a worker that has ended. After each failure its slot waits longer for the next one."""
        worker.close()
        self.workers.remove(worker)
        self._files.leave(worker.seat)
        with suppress(OSError):
            os.unlink(worker.path)
        if self.ending or worker.state == "retired":
            return
        slot = worker.slot
        slot.failures += 1
        pause = RESTART_PAUSES[min(slot.failures, len(RESTART_PAUSES)) - 1]
        slot.due = time.monotonic() + pause
        self.metrics.restarts[worker.fate].inc()
        if not self.started and worker.failure is not None:
            return  # the start fails with this reason
        facts = {"worker": slot.name, "pid": worker.pid, "ending": worker.ending, "pause": pause}
        if worker.failure is not None:
            facts["failure"] = worker.failure.reason
        self._log.log("error", "worker", state=worker.fate, **facts)

    def tick(self) -> None:
        """Kill workers that hang or do not become ready in time."""
        for worker in self.workers:
            worker.age += 1
            worker.silent += 1
            if worker.state == "serving":
                worker.served += 1
                if worker.served == STEADY_TICKS:
                    worker.slot.failures = 0
            if worker.state != "starting":
                if worker.silent >= HANG_TICKS:
                    worker.fate = "hung"
                    worker.kill()
            elif worker.age >= START_TICKS:
                worker.fate = "late"
                worker.failure = Failed(f"it was not ready within {START_TICKS} s", is_lasting=False)
                worker.kill()
