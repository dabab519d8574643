"""Watches all turns: keeps the metadata of every one, and the content of as many as there is time for.

A turn costs a few references while it runs. When it is over its trace waits, raw, in a small buffer, and a task of the
event loop makes of it what is kept, a little at a time. While the buffer is full only the metadata of turns is kept,
and such turns are counted. Nothing raw gets into the ring.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from secrets import token_hex
from typing import Any

import msgspec

from toolwire.config.settings import Settings, bytes_of
from toolwire.core.bounds import Steps, run_steps
from toolwire.core.events import Note
from toolwire.core.notes import TurnStats
from toolwire.gateway.console.keep import pack, whole_turn
from toolwire.gateway.console.numbers import Numbers
from toolwire.gateway.console.pace import Pace
from toolwire.gateway.console.ring import Kept, Ring
from toolwire.gateway.console.rows import Names, Row, finished_row, is_large, running_row
from toolwire.gateway.console.secrets import SHORTEST_SECRET, known_secrets
from toolwire.gateway.console.threads import in_thread
from toolwire.gateway.keys import presented_key
from toolwire.gateway.log import Log
from toolwire.gateway.process import Process
from toolwire.turns.trace import Held, TurnTrace

WAITING, BUSY_WAITING = 8 * 1024 * 1024, 1024 * 1024
"""Bytes of turns that are over and wait to be prepared, from which only metadata is kept of new ones: in calm times,
and under load."""
MOST_HELD = 32 * 1024 * 1024
"""Bytes of all raw traces, also of running turns, at most."""
MOST_AT_ONCE, BUSY_AT_ONCE = 32, 4
"""Running turns of which every byte is held, at most: in calm times, and under load."""
CALM, CALM_SECONDS = 10, 2.0
"""Times are calm while fewer turns than this end in a second, and if none has ended for so many seconds."""
IDLE = 0.2
"""Seconds without a turn from which a process has nothing else to do."""
TRICKLE, CALM_SHARE, IDLE_SHARE = 0.003, 0.1, 0.25
"""The part of all time that preparing turns may take: under load, in calm times, with nothing else to do."""
TOGETHER, DELAY = 32, 0.05
"""Rows of turns are made together: so many, or those of so many seconds."""
MOST_LIVE = 1024 * 1024
"""Bytes of a turn that are shown while it is under way."""
MOST_RUNNING = 300
"""Turns under way that are listed."""
MOST_CAPTURED = 1000
"""Turns that can be asked for with "capture the next turns"."""
EVERYBODY = ""
"""Stands for all keys; no key has an empty name."""


class _Waiting(msgspec.Struct):
    """A turn whose content is to be prepared."""

    trace: TurnTrace
    kept: Kept
    notes: list[Note]


class Watch:
    """What one process knows of its turns."""

    def __init__(
        self, settings: Settings, loop: asyncio.AbstractEventLoop, token: str, process: Process, log: Log
    ) -> None:
        self._ring = Ring(bytes_of(settings.console.max_size))
        self._numbers = Numbers()
        self._over: list[tuple[TurnTrace, Mapping[str, Any], TurnStats, float, str]] = []  # not in the ring yet
        self.process = token_hex(8)
        """Names this process; a page that sees another name begins anew."""
        self._worker = str(process.slot) if process.slot is not None else ""
        self.busy: Counter[str] = Counter()
        """Turns of which only metadata is kept because of load, by key."""
        self.pin_share = 1 / max(1, sum(bool(key.console) for key in settings.keys))
        """How much of the room for pinned turns one key may take."""
        self._loop = loop
        self._log = log
        self._held = Held(MOST_HELD)
        keeps = settings.console.keep
        self.keeps_everything = keeps == "everything" or (keeps == "auto" and not settings.keys)
        self.to_capture: dict[str, int] = {}
        """How many further turns of a key, or of everybody, are kept whole."""
        self.captured: Callable[[str], None] = lambda _: None
        """Called when one of them is captured, so that other processes count it too."""
        self.secrets = known_secrets(settings, token)
        """Every key that this gateway knows, as it may stand in a body."""
        self._names = Names(self.secrets)
        self._running: dict[str, tuple[TurnTrace, Mapping[str, Any]]] = {}
        self._running_whole = 0
        self._waiting: deque[_Waiting] = deque()
        self._wanted: set[str] = set()
        self._ended = 0.0  # when a turn ended last
        self._second, self._count, self._before = 0.0, 0, 0  # when a second began, turns in it and in the one before
        self._is_busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # Called by every turn

    def begin(self, seed: str, headers: Mapping[bytes, bytes], path: str) -> TurnTrace:
        """A request begins, which may become a turn."""
        return TurnTrace(seed, headers, self._held, path)

    def enter(self, trace: TurnTrace, facts: Mapping[str, Any]) -> None:
        """It is known who asks, and that they may. Is this turn to be kept whole?"""
        self._running[trace.seed] = (trace, facts)
        held, is_busy = self._held, not self._is_calm
        if held.size >= held.most or held.waiting >= (BUSY_WAITING if is_busy else WAITING):
            return
        if self._running_whole >= (BUSY_AT_ONCE if is_busy else MOST_AT_ONCE):
            return
        if self.keeps_everything or "replay_of" in facts or (bool(self.to_capture) and self._is_captured(facts["key"])):
            trace.keeps = True
            self._running_whole += 1

    def end(self, trace: TurnTrace, facts: Mapping[str, Any], stats: TurnStats, seconds: float, owner: str) -> None:
        """A turn is over. A request that did not enter was none."""
        if self._running.pop(trace.seed, None) is None:
            trace.release()
            return
        if trace.keeps:
            self._running_whole -= 1
            trace.wait()
        over = self._over
        over.append((trace, facts, stats, seconds, owner))
        if len(over) == 1:
            self._timer = self._loop.call_later(DELAY, self._settle)
        if len(over) == TOGETHER or is_large(facts, stats):
            self._settle()

    def forget(self, trace: TurnTrace) -> None:
        """Drop the trace of a request that was no turn."""
        self._running_whole -= trace.keeps
        self._running.pop(trace.seed, None)
        trace.release()

    def _settle(self) -> None:
        """Make rows of the turns that are over, count them, and put them into the ring. Many at once cost half of
        what they would cost one by one, between turns that use the processor's caches for something else."""
        over, self._over = self._over, []
        if not over:
            return
        if self._timer is not None:
            self._timer.cancel()
        now = self._loop.time()
        if now - self._second >= 1.0:
            self._before = self._count if now - self._second < CALM_SECONDS else 0
            self._second, self._count = now, 0
        self._count += len(over)
        self._ended = now
        self._is_busy = max(self._count, self._before) >= CALM
        turns = [self._kept(*each) for each in over]
        rows = [kept.row for kept in turns]
        self._names.clean(rows)
        self._numbers.count(rows)
        self._ring.add(turns)
        if self.keeps_everything:
            self.busy.update([row.key for row in rows if row.kept == "busy"])

    def _kept(self, trace: TurnTrace, facts: Mapping[str, Any], stats: TurnStats, seconds: float, owner: str) -> Kept:
        kept = Kept(finished_row(trace, facts, stats, seconds, self._worker), owner)
        if trace.keeps:
            kept.row.kept = "waiting"
            self._waiting.append(_Waiting(trace, kept, stats.notes))
            self._more.set()
        else:
            trace.release()
            if self.keeps_everything:
                kept.row.kept = "busy"
        return kept

    @property
    def _is_calm(self) -> bool:
        """Whether there is time for more; a busy time is over when no turn has ended for a while."""
        if self._is_busy and self._loop.time() - self._ended > CALM_SECONDS:
            self._is_busy = False
        return not self._is_busy

    # For the console

    @property
    def ring(self) -> Ring:
        """All turns that are over."""
        self._settle()
        return self._ring

    @property
    def numbers(self) -> Numbers:
        """The numbers of all turns that are over."""
        self._settle()
        return self._numbers

    def capture(self, key: str, count: int) -> None:
        """Keep the next turns of a key, or of everybody, whole."""
        if count > 0:
            self.to_capture[key] = min(count, MOST_CAPTURED)
        else:
            self.to_capture.pop(key, None)

    def running(self, sees: Callable[[str], bool] = lambda _: True) -> list[Row]:
        """The rows of the turns that are under way and whose key may be seen, the latest at the end."""
        now = time.perf_counter()
        found = [each for each in self._running.values() if sees(each[1]["key"])][-MOST_RUNNING:]
        rows = [running_row(trace, facts, now, self._worker) for trace, facts in found]
        self._names.clean(rows)
        return rows

    async def snapshot(self, id: str, sees: Callable[[str], bool]) -> Kept | None:
        """A turn that is under way, if its key may be seen: its metadata, and what was said by now if that is not
        much."""
        if id not in self._running:
            return None
        trace, facts = self._running[id]
        if not sees(facts["key"]):
            return None
        row = running_row(trace, facts, time.perf_counter(), self._worker)
        self._names.clean([row])
        if not trace.keeps or trace.size > MOST_LIVE:
            return Kept(row, "")
        steps = self._steps(_Waiting(trace.snapshot(), Kept(row, ""), []))
        return Kept(row, "", await in_thread(run_steps, steps))

    async def prepared(self, id: str) -> Kept | None:
        """A turn, as whole as it is going to be: one that still waits is prepared now."""
        kept = self.ring.get(id)
        if kept is None or kept.row.kept != "waiting":
            return kept
        first = [waiting for waiting in self._waiting if waiting.kept is kept]
        if first:
            self._waiting.remove(first[0])
            self._waiting.appendleft(first[0])
        self._wanted.add(id)
        try:
            while kept.row.kept == "waiting" and self._is_kept(kept):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        finally:
            self._wanted.discard(id)
        return kept

    def _is_kept(self, kept: Kept) -> bool:
        """Whether a turn that waits can still become whole."""
        return self.ring.get(kept.row.id) is kept and self._task is not None and not self._task.done()

    def start(self) -> None:
        self._task = self._loop.create_task(self._prepare_all())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def _is_captured(self, key: str) -> bool:
        for name in (key, EVERYBODY):
            left = self.to_capture.get(name, 0)
            if left:
                self.capture(name, left - 1)
                self.captured(name)
                return True
        return False

    # Preparing what is kept

    async def _prepare_all(self) -> None:
        """Prepare what waits, without ever taking more than a share of the time."""
        pace = Pace(self._loop, self._share)
        while True:
            if not self._waiting:
                self._more.clear()
                await self._more.wait()
                continue
            waiting = self._waiting.popleft()
            steps = self._steps(waiting)
            packed = None
            while packed is None:
                await pace.rest(self._is_hurried)
                packed = pace.work(steps)
            is_cut = waiting.trace.is_cut
            waiting.trace.release()
            self.ring.fill(waiting.kept, packed, is_cut=is_cut)

    def _is_hurried(self) -> bool:
        """Whether somebody waits to look at a turn."""
        return bool(self._wanted)

    def _share(self) -> float:
        """How much of all time may go into preparing turns now."""
        if not self._running and self._loop.time() - self._ended > IDLE:
            return IDLE_SHARE
        return CALM_SHARE if self._is_calm else TRICKLE

    def _steps(self, waiting: _Waiting) -> Steps[bytes]:
        """What is kept of a turn, packed. A fault of ours costs the turn's copy and nothing else."""
        trace, row = waiting.trace, waiting.kept.row
        own = presented_key(trace.request_headers)
        secrets = (*self.secrets, own) if len(own) >= SHORTEST_SECRET else self.secrets
        try:
            whole = yield from whole_turn(trace, row, waiting.notes, secrets)
            return (yield from pack(whole))
        except Exception as error:  # noqa: BLE001 - a turn that cannot be shown must not end the others
            self._log.crashed(row.id, error)
            return b""
