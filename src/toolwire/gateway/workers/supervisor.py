"""The process above the workers: it starts and replaces them, passes signals on, and reloads settings on SIGHUP.

It serves nothing itself. It waits in one place for signals and messages of workers, so that it responds at any time:
while workers start or drain, and while settings are checked.

A reload checks the new settings first. Then the slots get workers with them, one slot at a time; an old worker accepts
connections until its successor does, so that every slot always has one that does. If a new worker fails to start, the
slots that were switched go back to the old settings in the same way. A rollback goes on until the old settings serve
again, or until an operator reloads settings that pass the check.
"""

import asyncio
import gc
import importlib
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

from toolwire.config.display import hash_settings
from toolwire.config.settings import Settings, SettingsError
from toolwire.gateway.console.access import load_token, make_console_line
from toolwire.gateway.serve import Announce, StartFailed, describe_drain
from toolwire.gateway.workers.fork import Child
from toolwire.gateway.workers.messages import Drain, End
from toolwire.gateway.workers.signals import Order, Signals, note_signals
from toolwire.gateway.workers.sockets import (
    LOCK,
    address_of,
    leave_runtime_folder,
    listen_for,
    make_runtime_folder,
)
from toolwire.gateway.workers.supervisor_log import SupervisorLog
from toolwire.gateway.workers.worker import Generation, check_settings
from toolwire.gateway.workers.worker_pool import START_TICKS, Worker, WorkerPool

TICK = 1.0
"""Seconds between two checks of all workers."""
START_ATTEMPTS = 3
"""Workers of a slot that may crash before one is ready; then the start fails."""
END_TICKS = 5
"""Ticks between the order to end at once and the kill."""
_FIXED = ("host", "port", "workers")
"""Settings of the server that cannot change while it runs: its sockets are bound."""


def supervise(settings: Settings, announce: Announce | None, read: Callable[[], Settings]) -> None:
    """Serve with several workers until a signal ends it.

    `announce` runs with the port when all workers are ready; `read` reads the settings again. Raises `SettingsError` or
    `StartFailed` if workers cannot start.
    """
    with note_signals() as signals:
        sockets = listen_for(settings, settings.server.workers)
        owned = make_runtime_folder()
        try:
            load_token()  # all workers have the same one
            load_modules(settings)
            _Supervisor(settings, sockets, owned.path, signals, announce, read).run()
        finally:
            leave_runtime_folder(owned.path, is_last=True)
            owned.release()


def load_modules(settings: Settings) -> None:
    """Import the modules that each worker needs. The collector skips them, so that workers share their pages."""
    modules = ["toolwire.gateway.websocket", "uvloop"]
    if settings.tools.arguments != "pass":
        modules.append("toolwire.turns.schemas")
    if settings.store.is_database:
        modules.append("toolwire.memory.postgres")
    if settings.gateway_tools.tools or settings.gateway_tools.mcp:
        modules.append("toolwire.gateway.tools")
    for name in modules:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


class _Check(NamedTuple):
    """Settings, and the child that checks whether workers could serve with them."""

    generation: Generation
    child: Child


class _Reload:
    """One reload of settings that have passed their check."""

    def __init__(self, before: Generation, after: Generation) -> None:
        self.before = before
        self.after = after
        self.failure = ""
        """Why it is being rolled back."""

    @property
    def target(self) -> Generation:
        """The generation that every slot should have."""
        return self.before if self.failure else self.after


class _Supervisor:
    """The state of the supervisor, and its loop."""

    def __init__(
        self,
        settings: Settings,
        sockets: list[socket.socket],
        folder: Path,
        signals: Signals,
        announce: Announce | None,
        read: Callable[[], Settings],
    ) -> None:
        self._selector = selectors.DefaultSelector()
        self._generations = count()
        self._generation = Generation(settings, hash_settings(settings), next(self._generations))
        """The settings in force."""
        self._log = SupervisorLog(settings, folder / LOCK)
        self._pool = WorkerPool(self._generation, sockets, folder, self._log, self._selector)
        self._sock = sockets[0]
        self._announce = announce
        self._announcer: Child | None = None
        self._read = read
        self._signals = signals
        self._check: _Check | None = None
        self._reload: _Reload | None = None
        self._reload_again = False
        self._is_checked = False
        """Whether the settings of the start have passed their check."""
        self._is_announced = False
        self._start_failure: Exception | None = None
        self._kill_in: int | None = None
        """Ticks until workers that are still alive are killed."""

    def run(self) -> None:
        self._selector.register(self._signals.wakes, selectors.EVENT_READ)
        try:
            self._begin_check(self._generation)
        except OSError as error:
            raise StartFailed(f"the settings cannot be checked: {error}") from None
        try:
            self._loop()
        except Exception as error:
            self._give_up(error)
            raise
        finally:
            self._stop_replacing()
            for worker in self._pool.workers:
                worker.kill()
            self._selector.close()
        if self._start_failure is not None:
            raise self._start_failure

    def _loop(self) -> None:
        next_tick = time.monotonic() + TICK
        while not (self._pool.ending and self._pool.is_empty):
            if self._is_checked:
                self._pool.fork_missing()
            for key, events in self._selector.select(max(0.0, min(next_tick - time.monotonic(), TICK))):
                if events & selectors.EVENT_WRITE:
                    key.data.flush()
            orders = self._signals.take()
            self._pool.reap()
            lost = self._pool.handle_workers()
            for order in orders:
                self._obey(order)
            for worker in lost:
                self._handle_loss(worker)
            if self._pool.started and not self._is_announced:
                self._is_announced = True
                self._announce_ready()
            self._proceed_with_reload()
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + TICK  # ticks that were missed while suspended do not count
                self._tick()

    def _tick(self) -> None:
        self._pool.tick()
        self._log.flush()
        if self._check is not None:
            self._check.child.age += 1
        if self._kill_in is not None:
            self._kill_in -= 1
            if self._kill_in <= 0:
                for worker in self._pool.workers:
                    worker.kill()

    # Starting

    def _announce_ready(self) -> None:
        address, port = address_of(self._sock), self._sock.getsockname()[1]
        self._log.print(f"toolwire ready on {address}")
        if line := make_console_line(self._generation.settings, address):
            self._log.print(line)
        announce = self._announce
        if announce is None:
            return

        def run(channel: socket.socket) -> int:
            asyncio.run(announce(port))
            return 0

        with suppress(OSError):  # if the fork fails, the line above must do
            self._announcer = self._pool.fork_helper(run)
            self._announcer.close()  # it sends nothing

    def _handle_loss(self, worker: Worker) -> None:
        """Handle a worker that ended before it was ready, which may fail the start or roll back the reload."""
        if self._pool.ending:
            return
        reason = f"worker {worker.slot.name} does not start: {worker.start_failure}"
        if not self._pool.started:
            if worker.failure is not None or worker.slot.failures >= START_ATTEMPTS:
                is_lasting = worker.failure is not None and worker.failure.is_lasting
                self._fail_start(SettingsError(reason) if is_lasting else StartFailed(reason))
        elif self._reload is not None and worker.generation is self._reload.after and not self._reload.failure:
            self._reload.failure = reason
            version = self._reload.before.version
            self._log.log("error", "reload", state="rolling back", configuration=version, failure=reason)

    def _fail_start(self, failure: Exception) -> None:
        self._start_failure = failure
        self._end_at_once()

    # Ending

    def _obey(self, order: Order) -> None:
        if order == "reload":
            self._reload_again = True
            return
        if self._pool.ending:
            self._end_at_once()
            return
        # Running turns may finish; a second signal ends them at once.
        if self._pool.running:
            drain = self._generation.settings.server.drain
            self._log.print(f"toolwire: {describe_drain(self._pool.running, drain)}")
        self._stop_replacing()
        self._pool.send(Drain())
        if not self._pool.started:
            for worker in self._pool.workers:
                if worker.state == "starting":  # it has no turns, and may not read messages yet
                    worker.kill()
        self._kill_in = self._max_drain

    @property
    def _max_drain(self) -> int:
        """Seconds until draining workers are killed: time to drain connections, and then background runs."""
        return 2 * int(self._generation.settings.server.drain) + 30

    def _end_at_once(self) -> None:
        self._stop_replacing()
        self._pool.send(End())
        self._kill_in = END_TICKS

    def _stop_replacing(self) -> None:
        self._pool.ending = True
        self._drop_check()
        self._reload, self._reload_again = None, False
        if self._announcer is not None:
            self._announcer.kill()

    def _give_up(self, error: Exception) -> None:
        """The supervisor itself has failed: wait for the workers, which finish their turns and end.

        In a container, and under systemd, they would be killed with the supervisor.
        """
        self._stop_replacing()
        for worker in self._pool.workers:
            worker.close()
        self._log.log("error", "supervisor", state="failed", failure=repr(error))
        deadline = time.monotonic() + self._max_drain
        self._signals.take()
        while any(worker.exit_code is None for worker in self._pool.workers) and time.monotonic() < deadline:
            if "end" in self._signals.take():
                return
            time.sleep(0.1)
            self._pool.reap()

    # Checking and reloading

    def _begin_check(self, generation: Generation) -> None:
        """Have a child check settings. Raises `OSError` if the fork fails."""
        self._check = _Check(generation, self._pool.fork_helper(partial(check_settings, generation.settings)))

    def _proceed_with_reload(self) -> None:
        """Take the next step of a check or a reload, if it is possible now."""
        if self._check is not None:
            self._handle_check(self._check)
        if self._reload is not None:
            self._replace_next(self._reload)
        is_busy = self._check is not None or (self._reload is not None and not self._reload.failure)
        if self._reload_again and self._pool.started and not self._pool.ending and not is_busy:
            self._reload_again = False
            self._begin_reload()

    def _begin_reload(self) -> None:
        old = self._generation.settings.server
        try:
            settings = self._read()
            for field in _FIXED:
                before, after = getattr(old, field), getattr(settings.server, field)
                if before != after:
                    self._refuse(f"server.{field}: cannot change from {before} to {after} by a reload; restart instead")
                    return
            generation = Generation(settings, hash_settings(settings), next(self._generations))
            self._begin_check(generation)
        except SettingsError as error:
            self._refuse(str(error))
        except Exception as error:  # noqa: BLE001 - the workers keep their settings, whatever failed
            self._refuse(f"it cannot be read or checked: {error!r}")
        else:
            self._log.log("info", "reload", state="checking", configuration=generation.version)

    def _handle_check(self, check: _Check) -> None:
        """When a check has ended, continue with the start or the reload."""
        child = check.child
        child.receive()
        is_late = self._is_checked and child.age >= START_TICKS
        if child.exit_code is None and not is_late:
            return
        self._drop_check()
        if child.failure is None and child.is_ready:
            if self._is_checked:
                self._reload = _Reload(self._generation, check.generation)
            self._is_checked = True
            return
        ending = child.ending or f"no result within {START_TICKS} s"
        if self._is_checked:
            self._refuse(child.failure.reason if child.failure is not None else f"the check ended with {ending}")
        elif child.failure is not None:
            self._fail_start(SettingsError(child.failure.reason))
        else:
            self._fail_start(StartFailed(f"the check of the settings ended with {ending}"))

    def _drop_check(self) -> None:
        if self._check is not None:
            self._check.child.kill()
            self._check.child.close()
            self._check = None

    def _refuse(self, reason: str) -> None:
        self._pool.metrics.reloads["refused"].inc()
        self._log.log("error", "reload", state="refused", configuration=self._generation.version, failure=reason)

    def _replace_next(self, reload: _Reload) -> None:
        """Start a worker in the next slot that needs one; without such a slot, the reload is over."""
        for slot in self._pool.slots:
            if slot.generation is not reload.target:
                is_due = not reload.failure or time.monotonic() >= slot.due  # new settings may end the failures
                if is_due and not self._pool.list_in_slot(slot, "starting"):
                    self._pool.fork(slot, reload.target)
                return
        self._reload = None
        self._generation = reload.target
        outcome = "rolled back" if reload.failure else "done"
        self._pool.metrics.reloads[outcome.replace(" ", "_")].inc()
        self._log.use(self._generation.settings)
        self._log.log("info", "reload", state=outcome, configuration=self._generation.version)
