"""Records turns: the metadata of all, and the content of those that the settings or a viewer select, within limits.

A turn costs a few references to existing bytes. Its content stays raw in the ring, in this process, until it
is first viewed; then a thread removes the secrets and packs it. Everything that leaves this module is without secrets.
"""

from collections.abc import Callable, Sequence
from secrets import token_hex
from socket import gethostname

from toolwire.config.settings import Settings, bytes_of
from toolwire.core.request import Request, RequestHead
from toolwire.gateway.console.content import pack
from toolwire.gateway.console.history import TurnHistory
from toolwire.gateway.console.http import run_in_thread
from toolwire.gateway.console.ring import RecordedTurn, Ring
from toolwire.gateway.console.rows import MAX_NAME_LENGTH, TurnRow, is_large, list_results, make_row
from toolwire.gateway.console.secrets import RowCleaner, collect_secrets, remove_secrets
from toolwire.gateway.console.statistics import Statistics
from toolwire.gateway.console.trace import TurnTrace
from toolwire.gateway.log import Log
from toolwire.gateway.memory_budget import MemoryBudget
from toolwire.gateway.process import Process
from toolwire.turns.observers import TurnObserver, TurnOutcome, TurnReport

MAX_HELD = 32 * 1024 * 1024
"""Maximum bytes of all traces of turns that are not in the ring yet."""
ROWS_PER_BATCH, MAX_PENDING_SIZE = 32, 256 * 1024
"""Ended turns, and bytes of one turn, after which rows are made: in batches they cost half."""
MAX_LIVE_SIZE = 1024 * 1024
"""Maximum bytes of a running turn whose content is shown."""
MAX_RUNNING_ROWS = 300
"""Maximum number of running turns in a list."""
MAX_CAPTURES = 1000
"""Maximum number of turns that one "capture the next turns" may request."""
ALL_KEYS = ""
"""Stands for all keys; no key has an empty name."""


class TurnRecorder(TurnObserver):
    """Observes and records the turns of one process."""

    def __init__(
        self, settings: Settings, token: str, process: Process, log: Log, history: TurnHistory | None = None
    ) -> None:
        self._log = log
        self.history = history
        self.process = token_hex(8)
        """The id of this process; a page that sees another id reloads its list."""
        self._worker = str(process.slot) if process.slot is not None else ""
        if history is not None:
            self._worker = f"{gethostname()[:MAX_NAME_LENGTH]} {self._worker}".rstrip()
        keep = settings.console.keep
        is_default = keep == "auto" and not settings.needs_key
        self.keeps_everything = history is not None or keep == "everything" or is_default
        self.pin_share = 1 / max(1, sum(bool(key.console) for key in settings.keys))
        """The share of the room for pinned turns that one key may use."""
        self.captures: dict[str, int] = {}
        """Number of further turns of a key, or of all keys, to record with their content."""
        self.on_capture: Callable[[str], None] = lambda _: None
        """Called when one of them is captured, so that other processes count it too."""
        self.secrets = collect_secrets(settings, token)
        self._cleaner = RowCleaner(self.secrets)
        self._held = MemoryBudget(MAX_HELD)
        self._begun: dict[str, TurnTrace] = {}  # not authenticated yet
        self._running: dict[str, tuple[TurnTrace, TurnReport]] = {}
        self._finished: list[tuple[TurnTrace, TurnReport, TurnOutcome]] = []  # not in the ring yet
        self._ring = Ring(bytes_of(settings.console.max_size))
        self._statistics = Statistics()

    # As an observer

    def begin(self, report: TurnReport, head: RequestHead, path: str) -> TurnTrace:
        """Begin the trace of a request, which may become a turn."""
        trace = self._begun[report.turn] = TurnTrace(report.turn, head.headers, self._held, path)
        return trace

    def enter(self, report: TurnReport) -> None:
        """The client is authenticated. Decide whether to record the content."""
        trace = self._begun.pop(report.turn)
        self._running[report.turn] = (trace, report)
        trace.keeps = (
            self.keeps_everything
            or bool(report.replay_of)
            or (bool(self.captures) and self._held.reserved < self._held.limit and self._capture(report.key or ""))
        )

    def ask(self, report: TurnReport, request: Request) -> None:
        """Note the calls whose results the request carries."""
        running = self._running.get(report.turn)
        if running is not None:
            running[0].results = list_results(request.entries)

    def end(self, report: TurnReport, outcome: TurnOutcome) -> None:
        """Add a turn that is over to the next batch of rows. An unauthenticated request was not a turn."""
        running = self._running.pop(report.turn, None)
        if running is None:
            self._begun.pop(report.turn).release()
            return
        trace, _ = running
        self._finished.append((trace, report, outcome))
        if len(self._finished) == ROWS_PER_BATCH or trace.size > MAX_PENDING_SIZE or is_large(report, outcome.stats):
            self._settle()

    def _capture(self, key: str) -> bool:
        """Whether to capture a turn of this key; if so, count it."""
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
        rows = self._make_rows(finished)
        turns: list[RecordedTurn] = []
        for row, (trace, _, outcome) in zip(rows, finished, strict=True):
            turn = RecordedTurn(row, outcome.owner)
            trace.finish()
            if trace.keeps:
                row.kept = "cut" if trace.is_cut else "whole"
                turn.trace, turn.notes = trace, outcome.stats.notes
            else:
                trace.release()
            turns.append(turn)
        self._statistics.count(rows)
        self._ring.add(turns)
        if self.history is not None:
            self.history.add(turns)

    def _make_rows(self, turns: Sequence[tuple[TurnTrace, TurnReport, TurnOutcome | None]]) -> list[TurnRow]:
        """The rows of turns, without secrets; a turn without an outcome is still running."""
        rows = [make_row(trace, report, outcome, self._worker) for trace, report, outcome in turns]
        self._cleaner.clean(rows, [trace.request_headers for trace, _, _ in turns])
        return rows

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

    def list_running(self, sees: Callable[[str], bool] = lambda _: True) -> list[TurnRow]:
        """The rows of the running turns whose key `sees` accepts, the latest last."""
        found = [each for each in self._running.values() if sees(each[1].key or "")][-MAX_RUNNING_ROWS:]
        return self._make_rows([(trace, report, None) for trace, report in found])

    async def snapshot(self, id: str, sees: Callable[[str], bool]) -> RecordedTurn | None:
        """A running turn, if `sees` accepts its key; with its content so far unless that is large."""
        running = self._running.get(id)
        if running is None or not sees(running[1].key or ""):
            return None
        trace, report = running
        [row] = self._make_rows([(trace, report, None)])
        turn = RecordedTurn(row, "")
        if trace.keeps and trace.size <= MAX_LIVE_SIZE:
            turn.packed = await self._pack(trace, turn)
        return turn

    async def find(self, id: str, sees: Callable[[str], bool] = lambda _: True) -> RecordedTurn | None:
        """A finished turn, if `sees` accepts its key; ready to be viewed."""
        turn = self.ring.get(id)
        if turn is None or not sees(turn.row.key):
            return None
        await self.prepare(turn)
        return turn

    async def prepare(self, turn: RecordedTurn) -> None:
        """Remove the secrets of a finished turn and pack it, unless that is done; or load it from the store."""
        if turn.trace is not None:
            self._ring.fill(turn, await self._pack(turn.trace, turn))
        elif self.history is not None and turn.is_stored and not turn.packed:
            await self.history.load(turn)

    async def _pack(self, trace: TurnTrace, turn: RecordedTurn) -> bytes:
        """The content of a trace without secrets, packed; empty if that fails."""
        copied = trace.snapshot()  # the original may grow, or be released
        try:
            return await run_in_thread(lambda: pack(remove_secrets(copied, turn.row, turn.notes, self.secrets)))
        except Exception as error:  # noqa: BLE001 - one turn that cannot be shown must not affect others
            self._log.crash(turn.row.id, error)
            return b""
