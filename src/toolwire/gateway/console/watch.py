"""Watches all turns: a row for each at once, and the whole of those there is time for.

A turn costs a few references while it runs. When it is over its trace waits, raw, in a small buffer, and a task of the
event loop makes of it what is kept, in steps of a millisecond or two that take a few per cent of the time at most.
While the buffer is full, turns are kept as their facts, and counted. Nothing raw gets into the ring.
"""

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from secrets import token_hex
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from toolwire.core.bounds import Steps, run_steps
from toolwire.core.events import Note
from toolwire.core.notes import TurnStats
from toolwire.gateway.console.keep import pack, whole_turn
from toolwire.gateway.console.numbers import Numbers
from toolwire.gateway.console.ring import Kept, Ring
from toolwire.gateway.console.rows import Names, Row, finished_row, running_row
from toolwire.gateway.keys import presented_key
from toolwire.gateway.process import Process
from toolwire.turns.settings import Settings, bytes_of
from toolwire.turns.trace import Held, TurnTrace

WAITING, BUSY_WAITING = 8 * 1024 * 1024, 1024 * 1024
"""Bytes of raw traces that wait from which no further turn is held whole: in calm times, and while many turns end."""
MOST_HELD = 32 * 1024 * 1024
"""Bytes of all raw traces, also of running turns, at most."""
MOST_AT_ONCE, BUSY_AT_ONCE = 32, 4
"""Running turns of which every byte is held, likewise: there is no time to keep more of them."""
SHARE = 0.01
"""How much of the time that turns take of the processor may go into keeping them."""
TRICKLE = 0.003
"""How much of all time may at least."""
CALM, CALM_SHARE = 10, 0.1
"""Turns a second below which there is time for more, and how much of all time may go into it then."""
IDLE, IDLE_SHARE = 0.2, 0.25
"""Seconds without a turn after which there is time for much more, and how much."""
AHEAD = 0.003
"""Seconds of work that may be done at once after a rest."""
TOGETHER, DELAY = 32, 0.05
"""Rows that are put into the ring at once: so many, or those of so many seconds."""
MOST_LIVE = 1024 * 1024
"""Bytes of a turn that are shown while it is under way."""
MOST_CAPTURED = 1000
"""Turns that can be asked for with "capture the next turns"."""
SHORTEST_SECRET = 4
"""Bytes from which a key is looked for in what was said."""
EVERYBODY = ""
"""In place of the name of a key, which is never empty."""
_REFUSED = (401, 403)
"""What somebody gets who is not let in."""


class _Waiting(msgspec.Struct):
    """A turn that is over and not kept whole yet."""

    trace: TurnTrace
    kept: Kept
    notes: list[Note]


class Watch:
    """What one process knows of its turns."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop, token: str, process: Process) -> None:
        self._ring = Ring(bytes_of(settings.console.max_size))
        self._numbers = Numbers()
        self._over: list[Kept] = []  # turns that are not in the ring yet
        self.process = token_hex(8)
        """Which start of which process this is: after another one all numbers begin anew."""
        self._worker = str(process.slot) if process.slot is not None else ""
        self.busy: Counter[str] = Counter()
        """Turns of which only the facts are kept because there was no time for more, by key."""
        lookers = sum(bool(key.console) for key in settings.keys)
        self.pin_share = 1 / max(1, lookers)
        """How much of the room for pinned turns one key may take."""
        self._loop = loop
        self._held = Held(WAITING, MOST_HELD)
        keeps = settings.console.keep
        self.keeps_everything = keeps == "everything" or (keeps == "auto" and not settings.keys)
        self.next: dict[str, int] = {}
        """How many further turns of a key, or of everybody, are kept whole."""
        self.captured: Callable[[str], None] = lambda _: None
        """Called when one of them is, so that other processes count it too."""
        self.secrets = known_secrets(settings, token)
        """Every key that this gateway knows, as it may stand in a body."""
        self._names = Names(self.secrets)
        self._running: dict[str, tuple[TurnTrace, Mapping[str, Any]]] = {}
        self._waiting: deque[_Waiting] = deque()
        self._wanted: set[str] = set()
        self._at_once = 0  # running turns that are held whole
        self._most_at_once = MOST_AT_ONCE
        self._ended = 0.0  # when a turn ended last
        self._second, self._count, self._before = 0.0, 0, 0  # when a second began, turns in it and in the one before
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # Called by every turn

    def begin(self, seed: str, headers: Mapping[bytes, bytes], path: str) -> TurnTrace:
        """A request begins, which may become a turn."""
        return TurnTrace(seed, headers, self._held, path)

    def enter(self, trace: TurnTrace, facts: Mapping[str, Any]) -> None:
        """Who asks is known: is this turn to be kept whole?"""
        self._running[trace.seed] = (trace, facts)
        if not self._held.has_room or self._at_once >= self._most_at_once:
            return
        if self.keeps_everything or "replay_of" in facts or (bool(self.next) and self._is_next(facts["key"])):
            trace.keeps = True
            self._at_once += 1

    def end(self, trace: TurnTrace, facts: Mapping[str, Any], stats: TurnStats, seconds: float, owner: str) -> None:
        """A turn is over. A request of somebody who was not let in was none."""
        if self._running.pop(trace.seed, None) is None and facts["status"] in _REFUSED:
            return
        row = finished_row(trace, facts, stats, seconds, self._worker)
        kept = Kept(row, owner)
        if trace.keeps:
            self._at_once -= 1
            row.kept = "waiting"
            trace.wait()
            self._waiting.append(_Waiting(trace, kept, stats.notes))
            if len(self._waiting) == 1:
                self._more.set()
        else:
            trace.release()
            if self.keeps_everything:
                row.kept = "busy"
        over = self._over
        over.append(kept)
        if len(over) == 1:
            self._loop.call_later(DELAY, self._settle)
        elif len(over) == TOGETHER:
            self._settle()

    def _settle(self) -> None:
        """Count the turns that are over, and put their rows into the ring. Many at once cost a quarter of what they
        would cost one by one, between turns that use the processor's caches for something else."""
        over, self._over = self._over, []
        if not over:
            return
        self._measure(len(over))
        rows = [kept.row for kept in over]
        self._names.clean(rows)
        self._numbers.count(rows)
        self._ring.add(over)
        if self.keeps_everything:
            self.busy.update([row.key for row in rows if row.kept == "busy"])

    def _measure(self, count: int) -> None:
        """So many turns more are over: is this a calm time?"""
        now = self._loop.time()
        if now - self._second >= 1.0:
            self._before = self._count if now - self._second < 2.0 else 0
            self._second, self._count = now, 0
        self._count += count
        self._ended = now
        is_calm = self._count < CALM and self._before < CALM
        self._held.limit = WAITING if is_calm else BUSY_WAITING
        self._most_at_once = MOST_AT_ONCE if is_calm else BUSY_AT_ONCE

    def forget(self, trace: TurnTrace) -> None:
        """It was no turn."""
        self._at_once -= trace.keeps
        self._running.pop(trace.seed, None)
        trace.release()

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
            self.next[key] = min(count, MOST_CAPTURED)
        else:
            self.next.pop(key, None)

    def running(self) -> list[Row]:
        """The rows of the turns that are under way."""
        now = time.perf_counter()
        rows = [running_row(trace, facts, now, self._worker) for trace, facts in self._running.values()]
        self._names.clean(rows)
        return rows

    async def so_far(self, id: str, sees: Callable[[str], bool]) -> Kept | None:
        """A turn that is under way, if its key may be seen: its facts, and what was said by now if that is not much."""
        if id not in self._running:
            return None
        trace, facts = self._running[id]
        if not sees(facts["key"]):
            return None
        row = running_row(trace, facts, time.perf_counter(), self._worker)
        self._names.clean([row])
        if not trace.keeps or trace.size > MOST_LIVE:
            return Kept(row, "")
        steps = self._steps(_Waiting(trace.so_far(), Kept(row, ""), []))
        return Kept(row, "", await asyncio.to_thread(run_steps, steps))

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
        self._task = self._loop.create_task(self._keep())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def _is_next(self, key: str) -> bool:
        for name in (key, EVERYBODY):
            left = self.next.get(name, 0)
            if left:
                self.capture(name, left - 1)
                self.captured(name)
                return True
        return False

    async def _keep(self) -> None:
        """Keep what waits, without ever taking more than a share of the time."""
        pace = _Pace(self._loop, self._share)
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
            waiting.trace.release()
            self.ring.fill(waiting.kept, packed)

    def _is_hurried(self) -> bool:
        """Whether somebody waits to look at a turn."""
        return bool(self._wanted)

    def _share(self) -> float:
        """How much of all time may go into keeping turns now."""
        since = self._loop.time() - self._ended
        if not self._running and since > IDLE:
            return IDLE_SHARE
        return CALM_SHARE if since > 2.0 or max(self._count, self._before) < CALM else TRICKLE

    def _steps(self, waiting: _Waiting) -> Steps[bytes]:
        """What is kept of a turn, packed. A fault of ours costs the turn's copy and nothing else."""
        trace, row = waiting.trace, waiting.kept.row
        own = presented_key(trace.request_headers)
        secrets = (*self.secrets, own) if len(own) >= SHORTEST_SECRET else self.secrets
        if row.kept == "running":  # a model may be in the middle of one
            secrets += tuple(secret[:end] for secret in secrets for end in range(len(secret) // 2 + 1, len(secret)))
        try:
            is_socket = row.transport == "websocket"
            whole = yield from whole_turn(trace, row.dialect, waiting.notes, secrets, is_socket=is_socket)
            return (yield from pack(whole))
        except Exception:  # noqa: BLE001 - a turn that cannot be shown must not end the others
            return b""


class _Pace:
    """Work that takes little of the time: next to nothing of a busy process, and more of one that has nothing to do.

    A share of the processor's time is meant, as far as turns use it: on a busy machine the clock on the wall would give
    a process that gets little of it as much for this as one that gets all.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, share: Callable[[], float]) -> None:
        self._loop = loop
        self._share = share
        self._credit = AHEAD
        self._since = loop.time()
        self._used = time.process_time()

    async def rest(self, is_hurried: Callable[[], bool]) -> None:
        """Wait until there is time for another step."""
        await asyncio.sleep(0)
        self._earn()
        while self._credit <= 0 and not is_hurried():
            await asyncio.sleep(0.02)
            self._earn()

    def _earn(self) -> None:
        now, used = self._loop.time(), time.process_time()
        earned = max((now - self._since) * self._share(), (used - self._used) * SHARE)
        self._credit = min(AHEAD, self._credit + earned)
        self._since, self._used = now, used

    def work(self, steps: Steps[bytes]) -> bytes | None:
        """Do steps for about a millisecond; the result, once there is one."""
        began = time.thread_time()
        try:
            while time.thread_time() - began < 0.001:
                next(steps)
        except StopIteration as end:
            return end.value
        finally:
            self._credit -= time.thread_time() - began
        return None


def known_secrets(settings: Settings, token: str) -> tuple[bytes, ...]:
    """Every key that this gateway knows, as it may stand in a body."""
    texts = {os.environ.get(name, "") for name in settings.secret_variables}
    texts |= {settings.key_of(key) for key in settings.keys} | {token}
    for url in (
        settings.store.url,
        os.environ.get(settings.store.url_env, ""),
        *(each.base_url for each in settings.backends),
    ):
        texts |= _passwords(url)
    for backend in settings.backends:
        texts |= {value for name, value in backend.headers.items() if is_secret_name(name)}
        texts |= {value for name, value in backend.query.items() if is_secret_name(name)}
    forms = {form for text in texts for form in (text.encode(errors="replace"), msgspec.json.encode(text)[1:-1])}
    return tuple(sorted((form for form in forms if len(form) >= SHORTEST_SECRET), key=len, reverse=True))


def _passwords(url: str) -> set[str]:
    """The password in a URL, as it stands there and as it is meant."""
    with suppress(ValueError):
        password = urlsplit(url).password or ""
        return {password, unquote(password)}
    return set()


def is_secret_name(name: str) -> bool:
    return any(word in name.lower() for word in ("key", "auth", "token", "secret", "cookie", "password"))
