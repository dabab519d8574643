"""Records turns: the metadata of every one, and the content of some: by the settings, by request, within limits.

A turn costs a few references to bytes that exist anyway. Its content stays raw in the ring, in this process, until it
is viewed for the first time; then a thread removes the secrets and packs it. Everything that leaves this module is
without secrets.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import Any

from toolwire.config.settings import Settings, bytes_of
from toolwire.core.notes import TurnStats
from toolwire.gateway.console.ring import RecordedTurn, Ring
from toolwire.gateway.console.rows import NameCleaner, Row, finished_row, is_large, running_row
from toolwire.gateway.console.secrets import known_secrets
from toolwire.gateway.console.statistics import Statistics
from toolwire.gateway.console.stored_trace import pack, remove_secrets
from toolwire.gateway.console.threads import in_thread
from toolwire.gateway.log import Log
from toolwire.gateway.process import Process
from toolwire.turns.trace import Held, TurnTrace

MAX_HELD = 32 * 1024 * 1024
"""Bytes of all traces that are not in the ring yet."""
MAX_TURNS_PER_SECOND = 20
"""Turns whose content is recorded unasked. Under load, holding the content of all would cost another tenth."""
ROWS_PER_BATCH, MAX_PENDING_SIZE = 32, 256 * 1024
"""Finished turns, and bytes of one, from which rows are made although no viewer asks: in batches they cost half."""
MAX_LIVE_SIZE = 1024 * 1024
"""Bytes of a running turn up to which its content is shown."""
MAX_RUNNING_ROWS = 300
"""Running turns in a list."""
MAX_CAPTURES = 1000
"""Turns that one "capture the next turns" may ask for."""
ALL_KEYS = ""
"""Stands for all keys; no key has an empty name."""


class Recorder:
    """The turns of one process."""

    def __init__(
        self, settings: Settings, loop: asyncio.AbstractEventLoop, token: str, process: Process, log: Log
    ) -> None:
        self._loop = loop
        self._log = log
        self.process = token_hex(8)
        """Names this process; a page that sees another name begins again."""
        self._worker = str(process.slot) if process.slot is not None else ""
        keep = settings.console.keep
        self.keeps_everything = keep == "everything" or (keep == "auto" and not settings.keys)
        self.pin_share = 1 / max(1, sum(bool(key.console) for key in settings.keys))
        """How much of the room for pinned turns one key may take."""
        self.busy: Counter[str] = Counter()
        """Turns whose content was not recorded because of load, by key."""
        self.captures: dict[str, int] = {}
        """How many further turns of a key, or of all keys, are recorded with their content."""
        self.on_capture: Callable[[str], None] = lambda _: None
        """Called when one of them is captured, so that other processes count it too."""
        self.secrets = known_secrets(settings, token)
        self._names = NameCleaner(self.secrets)
        self._held = Held(MAX_HELD)
        self._running: dict[str, tuple[TurnTrace, Mapping[str, Any]]] = {}
        self._finished: list[tuple[TurnTrace, Mapping[str, Any], TurnStats, float, str]] = []  # not in the ring yet
        self._second = self._count = 0  # turns of the current second
        self._ring = Ring(bytes_of(settings.console.max_size))
        self._statistics = Statistics()

    # Called by every turn

    def begin(self, seed: str, headers: Mapping[bytes, bytes], path: str) -> TurnTrace:
        """A request begins, which may become a turn."""
        return TurnTrace(seed, headers, self._held, path)

    def enter(self, trace: TurnTrace, facts: Mapping[str, Any]) -> None:
        """The caller is authenticated. Decide whether to record the content."""
        self._running[trace.seed] = (trace, facts)
        if self._held.size < self._held.most:
            trace.keeps = (
                "replay_of" in facts
                or (bool(self.captures) and self._capture(facts["key"]))
                or (self.keeps_everything and self._is_within_rate(trace.began))
            )

    def end(self, trace: TurnTrace, facts: Mapping[str, Any], stats: TurnStats, seconds: float, owner: str) -> None:
        """A turn is over. A request that did not enter was none."""
        if self._running.pop(trace.seed, None) is None:
            trace.release()
            return
        self._finished.append((trace, facts, stats, seconds, owner))
        if len(self._finished) == ROWS_PER_BATCH or trace.size > MAX_PENDING_SIZE or is_large(facts, stats):
            self._settle()

    def forget(self, trace: TurnTrace) -> None:
        """Drop the trace of a request that was no turn."""
        self._running.pop(trace.seed, None)
        trace.release()

    def _is_within_rate(self, now: float) -> bool:
        """Whether the content of one more turn is recorded in this second."""
        second = int(now)
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        return self._count <= MAX_TURNS_PER_SECOND

    def _capture(self, key: str) -> bool:
        """Whether a turn of this key is to be captured; then it is counted."""
        for name in (key, ALL_KEYS):
            left = self.captures.get(name, 0)
            if left:
                self.capture(name, left - 1)
                self.on_capture(name)
                return True
        return False

    def _settle(self) -> None:
        """Make rows of finished turns, count them, and put them into the ring."""
        finished, self._finished = self._finished, []
        turns: list[RecordedTurn] = []
        for trace, facts, stats, seconds, owner in finished:
            turn = RecordedTurn(finished_row(trace, facts, stats, seconds, self._worker), owner)
            trace.finish()
            if trace.keeps:
                turn.row.kept = "cut" if trace.is_cut else "whole"
                turn.trace, turn.notes = trace, stats.notes
            else:
                trace.release()
                if self.keeps_everything:
                    turn.row.kept = "busy"
                    self.busy[turn.row.key] += 1
            turns.append(turn)
        rows = [turn.row for turn in turns]
        self._names.clean(rows)
        self._statistics.count(rows)
        self._ring.add(turns)

    # For the console

    @property
    def ring(self) -> Ring:
        """All finished turns."""
        self._settle()
        return self._ring

    @property
    def statistics(self) -> Statistics:
        """The counts of all finished turns."""
        self._settle()
        return self._statistics

    def capture(self, key: str, count: int) -> None:
        """Record the content of the next turns of a key, or of all keys."""
        if count > 0:
            self.captures[key] = min(count, MAX_CAPTURES)
        else:
            self.captures.pop(key, None)

    def running(self, sees: Callable[[str], bool] = lambda _: True) -> list[Row]:
        """The rows of the running turns whose key `sees` accepts, the latest last."""
        now = time.perf_counter()
        found = [each for each in self._running.values() if sees(each[1]["key"])][-MAX_RUNNING_ROWS:]
        rows = [running_row(trace, facts, now, self._worker) for trace, facts in found]
        self._names.clean(rows)
        return rows

    async def snapshot(self, id: str, sees: Callable[[str], bool]) -> RecordedTurn | None:
        """A running turn whose key `sees` accepts, with its content so far unless that is large."""
        found = self._running.get(id)
        if found is None or not sees(found[1]["key"]):
            return None
        trace, facts = found
        row = running_row(trace, facts, time.perf_counter(), self._worker)
        self._names.clean([row])
        turn = RecordedTurn(row, "")
        if trace.keeps and trace.size <= MAX_LIVE_SIZE:
            turn.packed = await self._pack(trace, turn)
        return turn

    async def find(self, id: str) -> RecordedTurn | None:
        """A finished turn, ready to be viewed."""
        turn = self.ring.get(id)
        if turn is not None:
            await self.prepare(turn)
        return turn

    async def prepare(self, turn: RecordedTurn) -> None:
        """Remove the secrets of a finished turn and pack it, unless that is done."""
        if turn.trace is not None:
            self._ring.fill(turn, await self._pack(turn.trace, turn))

    async def _pack(self, trace: TurnTrace, turn: RecordedTurn) -> bytes:
        """The content of a trace without secrets, packed; empty if that fails."""
        copied = trace.snapshot()  # the original may grow, or be released
        try:
            return await in_thread(lambda: pack(remove_secrets(copied, turn.row, turn.notes, self.secrets)))
        except Exception as error:  # noqa: BLE001 - one turn that cannot be shown must not affect others
            self._log.crashed(turn.row.id, error)
            return b""
