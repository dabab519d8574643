"""The process that has workers: it starts them, hands signals on, and gives them new settings on SIGHUP.

It serves nothing itself and waits in one place, for signals and for what workers say, so that it is never deaf: not
while workers start or drain, nor while new settings are checked.
"""

import asyncio
import os
import selectors
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from toolwire.config.masking import version_of
from toolwire.config.settings import Settings, SettingsError
from toolwire.gateway.console.access import console_line, load_token
from toolwire.gateway.serve import StartFailed, turns_running
from toolwire.gateway.workers.child import ending_of, forked, load_for_forks
from toolwire.gateway.workers.crew import STARTS, Crew, Lost
from toolwire.gateway.workers.lines import SupervisorLines
from toolwire.gateway.workers.messages import Drain, End, Failed, FromWorker, Ready
from toolwire.gateway.workers.reload import Check, Reload
from toolwire.gateway.workers.runtime import LOCK, leave_runtime_folder, make_runtime_folder
from toolwire.gateway.workers.signals import Signals, noted_signals
from toolwire.gateway.workers.slot import Child, Generation
from toolwire.gateway.workers.sockets import address_of, listen_for
from toolwire.gateway.workers.worker import check_settings

Tell: TypeAlias = Callable[[int], Coroutine[None, None, None]]

TICK = 1.0
"""Seconds between two looks at everything."""
ATTEMPTS = 3
"""Workers of a slot that may end without a reason before the first is ready."""
ENDS = 5
"""Ticks that workers have to end at once before they are killed."""
_FIXED = ("host", "port", "workers")
"""Settings of the server that cannot change while it runs: its sockets are bound."""


def supervise(settings: Settings, tell_more: Tell | None, read: Callable[[], Settings]) -> None:
    """Serve with several workers until a signal ends it. `tell_more` gets the port when all are ready; `read` reads
    the settings anew."""
    with noted_signals() as signals:
        if _is_checked(settings, signals):
            _supervise(settings, signals, tell_more, read)


def _supervise(settings: Settings, signals: Signals, tell_more: Tell | None, read: Callable[[], Settings]) -> None:
    sockets = listen_for(settings, settings.server.workers)
    owned = make_runtime_folder()
    folder = owned.path
    generation = Generation(settings, version_of(settings))
    try:
        with selectors.DefaultSelector() as selector:
            lines = SupervisorLines(settings, folder / LOCK)
            load_token()  # all workers have the same one
            load_for_forks(_loaded_late(settings))
            crew = Crew(generation, sockets, folder, lines, selector)
            Supervisor(crew, generation, lines, selector, signals, tell_more, read).run()
    finally:
        leave_runtime_folder(folder, to_others=False)
        owned.release()


def _loaded_late(settings: Settings) -> Iterator[str]:
    """Modules that a worker would load by itself when it runs."""
    yield from ("uvicorn.lifespan.on", "uvicorn.loops.auto", "uvloop")
    if settings.store.is_database:
        yield "toolwire.memory.postgres"
    if settings.gateway_tools.tools or settings.gateway_tools.mcp:
        yield "toolwire.gateway.tools"


def _is_checked(settings: Settings, signals: Signals) -> bool:
    """Check in a process of its own what it takes threads and connections to find out. Says no when a signal ends it
    meanwhile, and raises what is wrong."""
    try:
        pid, channel = forked(partial(check_settings, settings), ())
    except OSError as error:
        raise StartFailed(f"the settings cannot be checked: {error}") from None
    with selectors.DefaultSelector() as selector:
        selector.register(signals.wakes, selectors.EVENT_READ)
        checker = Child(pid, channel, selector)
        said = _heard_to_its_end(checker, signals, selector)
        checker.close()
    if signals.say_end:
        return False
    _heed_check_at_start(said, checker)
    return True


def _heard_to_its_end(child: Child, signals: Signals, selector: selectors.BaseSelector) -> list[FromWorker]:
    """What a child says until it ends. A signal that wishes an end kills it."""
    said: list[FromWorker] = []
    while child.status is None:
        if signals.say_end:
            child.kill()
        selector.select(TICK)
        signals.sleep_again()
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        child.status = status if pid else None
        said += child.received()
    return said


def _heed_check_at_start(said: list[FromWorker], checker: Child) -> None:
    message = said[-1] if said else None
    if isinstance(message, Failed):
        raise SettingsError(message.reason)
    if not isinstance(message, Ready):
        raise StartFailed(f"the check of the settings ended with {ending_of(checker.status or 0)}")


class Supervisor:
    """The loop."""

    def __init__(
        self,
        crew: Crew,
        generation: Generation,
        lines: SupervisorLines,
        selector: selectors.BaseSelector,
        signals: Signals,
        tell_more: Tell | None,
        read: Callable[[], Settings],
    ) -> None:
        self._crew = crew
        self._generation = generation
        """What is in force."""
        self._lines = lines
        self._selector = selector
        self._tell_more = tell_more
        self._read = read
        self._signals = signals
        self._check: Check | None = None
        self._reload: Reload | None = None
        self._reload_again = False
        self._is_told = False
        self._teller: Child | None = None
        self._failure: Exception | None = None
        """Why the start failed, if it did."""
        self._ends_in: int | None = None  # ticks until those that still live are killed

    def run(self) -> None:
        self._selector.register(self._signals.wakes, selectors.EVENT_READ)
        self._heed_signals()
        try:
            self._loop()
        except Exception as error:
            self._give_up(error)
            raise
        finally:
            self._kill_all()
        if self._failure is not None:
            raise self._failure

    def _loop(self) -> None:
        next_tick = time.monotonic() + TICK
        while True:
            self._crew.fork_missing()
            for key, events in self._selector.select(max(0.0, min(next_tick - time.monotonic(), TICK))):
                if events & selectors.EVENT_WRITE:
                    key.data.flush()
            self._signals.sleep_again()
            self._crew.reap()
            lost = self._crew.look()
            self._heed_signals()
            for each in lost:
                self._heed_loss(each)
            self._go_on()
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + TICK  # not one for each that was slept through
                self._tick()
            if self._crew.ending and not self._crew.workers:
                return

    def _tick(self) -> None:
        self._crew.tick()
        self._lines.flush()
        if self._check is not None:
            self._check.child.age += 1
        if self._ends_in is not None:
            self._ends_in -= 1
            if self._ends_in <= 0:
                for worker in self._crew.workers:
                    worker.kill()

    def _give_up(self, error: Exception) -> None:
        """Something is wrong with the supervisor itself. Workers that have none finish their turns and end.

        It waits for them: in a container, and under systemd, they would be killed with it.
        """
        self._crew.ending = True
        for worker in self._crew.workers:
            worker.close()
        self._drop_reload()
        self._lines.log("error", "supervisor", state="failed", failure=repr(error))
        ends = time.monotonic() + self._longest_drain
        self._signals.taken()
        while any(worker.status is None for worker in self._crew.workers) and time.monotonic() < ends:
            if self._signals.say_end:
                return
            time.sleep(0.1)
            self._crew.reap()

    # Starting

    def _go_on(self) -> None:
        """Whatever can be done next."""
        if self._crew.started and not self._is_told:
            self._is_told = True
            self._tell_ready()
        if self._check is not None:
            self._heed_check(self._check)
        if self._reload is not None:
            self._go_on_reloading(self._reload)
        if self._reload_again and self._may_check():
            self._reload_again = False
            self._begin_check()

    def _tell_ready(self) -> None:
        sock = self._crew.slots[0].sock
        self._lines.tell(f"toolwire ready on {address_of(sock)}")
        if line := console_line(self._generation.settings, address_of(sock)):
            self._lines.tell(line)
        if self._tell_more is not None:
            with suppress(OSError):  # where the system has no room for it, the line above must do
                self._teller = self._crew.child(partial(_telling, self._tell_more, sock.getsockname()[1]))
                self._teller.close()  # it says nothing to us

    def _heed_loss(self, lost: Lost) -> None:
        if self._crew.ending:
            return
        worker = lost.worker
        what = f"worker {worker.slot.number} does not start: {lost.reason}"
        if not self._crew.started:
            if worker.reason or worker.slot.failures >= ATTEMPTS:
                self._failure = SettingsError(what) if worker.is_lasting else StartFailed(what)
                self._end_at_once()
        elif self._reload is not None and worker.generation is self._reload.after:
            self._roll_back(self._reload, what)

    # Ending

    def _heed_signals(self) -> None:
        for wish in self._signals.taken():
            if wish == "reload":
                self._reload_again = True
            else:
                self._end()

    def _end(self) -> None:
        """Let running turns finish; a second signal ends them at once."""
        if self._crew.ending:
            self._end_at_once()
            return
        drain = self._generation.settings.server.drain
        if self._crew.running:
            self._lines.tell(f"toolwire: {turns_running(self._crew.running, drain)}")
        self._crew.ending = True
        self._drop_reload()
        self._crew.send(Drain())
        if not self._crew.started:
            self._crew.kill_coming()
        self._ends_in = self._longest_drain

    @property
    def _longest_drain(self) -> int:
        """Seconds for connections, and then for background runs. Who needs more is beyond hope."""
        return 2 * int(self._generation.settings.server.drain) + 30

    def _end_at_once(self) -> None:
        self._crew.ending = True
        self._drop_reload()
        self._crew.send(End())
        self._ends_in = ENDS

    def _kill_all(self) -> None:
        self._drop_reload()
        for worker in self._crew.workers:
            worker.kill()
        if self._teller is not None:
            self._teller.kill()

    # Reloading

    def _may_check(self) -> bool:
        is_busy = self._check is not None or (self._reload is not None and not self._reload.reason)
        return self._crew.started and not self._crew.ending and not is_busy

    def _begin_check(self) -> None:
        try:
            settings = self._read()
            self._refuse_changes(settings)
            after = Generation(settings, version_of(settings))
            child = self._crew.child(partial(check_settings, settings))
        except SettingsError as error:
            self._refuse(str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the workers go on with what they have
            self._refuse(f"it cannot be read or checked: {error!r}")
        else:
            self._lines.log("info", "reload", state="checking", configuration=after.version)
            self._check = Check(after, child)

    def _refuse_changes(self, settings: Settings) -> None:
        before = self._generation.settings.server
        for field in _FIXED:
            old, new = getattr(before, field), getattr(settings.server, field)
            if old != new:
                raise SettingsError(f"server.{field}: cannot change from {old} to {new} by a reload; restart for it")

    def _go_on_reloading(self, reload: Reload) -> None:
        for slot in self._crew.slots:
            if slot.generation is not reload.target:
                is_due = not reload.reason or time.monotonic() >= slot.due  # new settings may be what helps
                if slot.coming is None and is_due:
                    self._crew.fork(slot, reload.target)
                return
        self._finish(reload)

    def _heed_check(self, check: Check) -> None:
        child = check.child
        check.said += child.received()
        if child.status is None and child.age < STARTS:
            return
        self._drop_check()
        failures = [message.reason for message in check.said if isinstance(message, Failed)]
        if failures:
            self._refuse(failures[0])
        elif any(isinstance(message, Ready) for message in check.said):
            self._reload = Reload(self._generation, check.generation)
        else:
            ending = ending_of(child.status) if child.status is not None else f"nothing within {STARTS} s"
            self._refuse(f"the check ended with {ending}")

    def _refuse(self, reason: str) -> None:
        self._crew.reloads["refused"] += 1
        self._lines.log("error", "reload", state="refused", configuration=self._generation.version, failure=reason)

    def _roll_back(self, reload: Reload, reason: str) -> None:
        if not reload.reason:
            reload.reason = reason
            self._lines.log(
                "error", "reload", state="rolling back", configuration=reload.before.version, failure=reason
            )

    def _finish(self, reload: Reload) -> None:
        self._reload = None
        self._generation = reload.target
        outcome = "rolled back" if reload.reason else "done"
        self._crew.reloads[outcome.replace(" ", "_")] += 1
        self._lines.use(self._generation.settings)
        self._lines.log("info", "reload", state=outcome, configuration=self._generation.version)

    def _drop_reload(self) -> None:
        self._drop_check()
        self._reload, self._reload_again = None, False

    def _drop_check(self) -> None:
        if self._check is not None:
            self._check.child.kill()
            self._check.child.close()
            self._check = None


def _telling(tell_more: Tell, port: int, channel: socket.socket) -> int:
    asyncio.run(tell_more(port))
    return 0
