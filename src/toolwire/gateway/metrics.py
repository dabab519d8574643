"""Metrics for Prometheus. Labels come from the operator, never from a client, so their number is bounded.

A worker process keeps its metrics in files that all workers read (prometheus_client's multiprocess mode), so each of
them shows the sums of all. A file belongs to a seat, an id that no two live processes share. The next process with this
seat continues its counters, so that no sum decreases. Gauges are removed with their process.
"""

import os
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess, values
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from toolwire.gateway.nonblocking_stderr import count_dropped_lines
from toolwire.memory.store import StoreStats
from toolwire.turns.observers import TurnObserver, TurnOutcome, TurnReport

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
Labels: TypeAlias = tuple[str, ...]

_WHERE = ("dialect", "backend")
_COUNTERS = {
    "toolwire_turns": ("Turns, by outcome", (*_WHERE, "status")),
    "toolwire_calls": ("Calls delivered", _WHERE),
    "toolwire_truncated_turns": ("Turns with calls withheld", _WHERE),
    "toolwire_gateway_calls": ("Calls that the gateway ran itself, by outcome", ("tool", "outcome")),
    "toolwire_console_turns_dropped": ("Turns of the console that were not stored in time", ()),
    "toolwire_usage_dropped": ("Turns without a row of usage, because the store failed for too long", ()),
    "toolwire_store_failures": ("Failed operations of the store, by reason", ("reason",)),
    "toolwire_take_overs": ("Background runs taken over from a process that is gone, by outcome", ("outcome",)),
    "toolwire_notes": ("Deviations, by code", ("code",)),
    "toolwire_tokens": ("Tokens", (*_WHERE, "direction")),
    "toolwire_log_lines_dropped": ("Log lines dropped because stderr was not read in time", ()),
}
_HISTOGRAMS: dict[str, tuple[str, Labels, tuple[float, ...]]] = {
    "toolwire_turn_seconds": ("Duration of turns", _WHERE, SECONDS),
    "toolwire_flush_seconds": ("How long events of background runs waited until they were stored", (), SHORT_SECONDS),
    "toolwire_store_seconds": ("Duration of operations of the store", ("operation",), SHORT_SECONDS),
}
_GAUGES = {
    "toolwire_turns_running": "Turns being answered now",
    "toolwire_follows": "Background runs being read as streams now",
    "toolwire_store_failing": "Whether the store fails",
    **{f"toolwire_store_{name}": f"What the store holds: {name}" for name in StoreStats.__struct_fields__},
}
_SHARED = "toolwire_store_"
"""Prefix of gauges about the store, which all workers share: the highest value counts, not the sum."""
MAX_PENDING_TURNS = 1000
"""Turns that are exported together at the latest."""
_values, _multiprocess = cast("Any", values), cast("Any", multiprocess)  # neither is fully typed
_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_FILES = ("counter", "histogram", "gauge_livesum", "gauge_livemax")
_FILE_SIZE = 256 * 1024
"""Bytes written in advance for each file: a write to a mapped file on a full disk would kill the process."""


class SharedFiles:
    """The files of all processes of a gateway, in one directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    @contextmanager
    def use_seat(self, seat: str) -> Generator[None]:
        """Keep metrics that are created in the block in the files of a seat. Raises `OSError` if the disk is full.

        No two processes may have a seat at the same time.
        """
        for name in _FILES:
            path = self._folder / f"{name}_{seat}.db"
            if not path.exists():
                (reserved := path.with_suffix(".new")).write_bytes(bytes(_FILE_SIZE))
                reserved.rename(path)  # a reader never finds it empty
        _values.ValueClass = _values.MultiProcessValue(lambda: seat)
        os.environ[_FOLDER] = str(self._folder)
        try:
            yield
        finally:
            del os.environ[_FOLDER]  # the files are open by now, and child processes must not inherit it

    def leave(self, seat: str) -> None:
        """Remove the gauges of a seat whose process is gone."""
        _multiprocess.mark_process_dead(seat, str(self._folder))

    def collect(self) -> Iterable[Metric]:
        """The sums of all processes, added in a fixed order, so that rounding does not make them decrease."""
        return _multiprocess.MultiProcessCollector.merge(sorted(map(str, self._folder.glob("*.db"))))


class SupervisorMetrics:
    """The metrics of the supervisor, which the workers export with their own."""

    def __init__(self, shared: SharedFiles) -> None:
        with shared.use_seat("supervisor"):
            restarts = Counter("toolwire_worker_restarts", "Workers replaced, by reason", ["reason"], registry=None)
            reloads = Counter("toolwire_reloads", "Configuration reloads, by outcome", ["outcome"], registry=None)
            self.restarts = {reason: restarts.labels(reason) for reason in ("ended", "hung", "late")}
            self.reloads = {outcome: reloads.labels(outcome) for outcome in ("done", "refused", "rolled_back")}
            self.ready = Gauge("toolwire_workers", "Workers that are ready", registry=None, multiprocess_mode="livesum")


class Metrics(Collector, TurnObserver):
    """The metrics of one process. With `shared` they are kept in its files, and the text has the sums of all."""

    def __init__(self, shared: SharedFiles | None = None, seat: str = "") -> None:
        self._shared = shared
        self._registry = registry = CollectorRegistry()
        self._families: dict[str, Counter | Histogram] = {}
        self._gauges: dict[str, Gauge] = {}
        with shared.use_seat(seat) if shared is not None else nullcontext():
            for name, (help, labels) in _COUNTERS.items():
                self._families[name] = Counter(name, help, labels, registry=registry)
            for name, (help, labels, bounds) in _HISTOGRAMS.items():
                self._families[name] = Histogram(name, help, labels, buckets=bounds, registry=registry)
            for name, help in _GAUGES.items():
                mode = "livemax" if name.startswith(_SHARED) else "livesum"
                self._gauges[name] = Gauge(name, help, registry=registry, multiprocess_mode=mode)
        self._children: dict[tuple[str, Labels], Counter | Histogram] = {}
        self._counts: defaultdict[tuple[str, Labels], int] = defaultdict(int)  # of turns that are not yet exported
        self._durations: list[tuple[Labels, float]] = []
        self._store_fails = False
        self._dropped = 0
        self.running = 0
        """Requests that are being served now, and background turns."""
        self.follows = 0
        """Streams of background runs that are being read now."""
        self.stored = StoreStats()
        """What the store held at its last count."""

    def _get_child(self, name: str, labels: Labels) -> Any:
        child = self._children.get((name, labels))
        if child is None:
            family = self._families[name]
            child = self._children[name, labels] = family.labels(*labels) if labels else family
        return child

    def start(self) -> None:
        """Count a request that is being served."""
        self.running += 1

    def stop(self) -> None:
        """Count a request that is no longer being served."""
        self.running -= 1

    def end(self, report: TurnReport, outcome: TurnOutcome) -> None:
        """Count a turn that is over. Turns are exported together, because each number takes a lock."""
        where, counts, stats = (report.dialect, report.backend or ""), self._counts, outcome.stats
        counts["toolwire_turns", (*where, str(report.status))] += 1
        self._durations.append((where, outcome.seconds))
        if stats.call_count:
            counts["toolwire_calls", where] += stats.call_count
        if stats.truncated:
            counts["toolwire_truncated_turns", where] += 1
        for code, count in stats.counts.items():
            counts["toolwire_notes", (code,)] += count
        if stats.usage is not None:
            counts["toolwire_tokens", (*where, "input")] += stats.usage.input
            counts["toolwire_tokens", (*where, "output")] += stats.usage.output
        if len(self._durations) >= MAX_PENDING_TURNS:
            self._export_turns()

    def _export_turns(self) -> None:
        counts, self._counts = self._counts, defaultdict(int)
        durations, self._durations = self._durations, []
        for (name, labels), count in counts.items():
            self._get_child(name, labels).inc(count)
        for where, seconds in durations:
            self._get_child("toolwire_turn_seconds", where).observe(seconds)

    def call(self, tool: str, outcome: str) -> None:
        """Count a call of one of the gateway's own tools."""
        self._get_child("toolwire_gateway_calls", (tool, outcome)).inc()

    def store(self, reason: str) -> None:
        """Count a failure of the store by its reason; an empty reason means that the store works again."""
        self._store_fails = bool(reason)
        if reason:
            self._get_child("toolwire_store_failures", (reason,)).inc()

    def count_unstored_turns(self, count: int) -> None:
        """Count turns of the console that could not be stored."""
        self._get_child("toolwire_console_turns_dropped", ()).inc(count)

    def count_dropped_usage(self, count: int) -> None:
        """Count turns whose usage could not be stored."""
        self._get_child("toolwire_usage_dropped", ()).inc(count)

    def count_recovery(self, outcome: str) -> None:
        """Count an orphaned background run that was started again or closed."""
        self._get_child("toolwire_take_overs", (outcome,)).inc()

    def record_flush(self, seconds: float) -> None:
        """Record how long the oldest event of a background run waited until it was stored."""
        self._get_child("toolwire_flush_seconds", ()).observe(seconds)

    @contextmanager
    def time_store(self, operation: str) -> Generator[None]:
        """Record the duration of an operation of the store that succeeds."""
        began = monotonic()
        yield
        self._get_child("toolwire_store_seconds", (operation,)).observe(monotonic() - began)

    def refresh(self) -> None:
        """Update the gauges and the counters. Each worker does this every second."""
        self._export_turns()
        self._gauges["toolwire_turns_running"].set(self.running)
        self._gauges["toolwire_follows"].set(self.follows)
        self._gauges["toolwire_store_failing"].set(self._store_fails)
        for name in StoreStats.__struct_fields__:
            self._gauges[f"toolwire_store_{name}"].set(getattr(self.stored, name))
        dropped = count_dropped_lines()
        self._get_child("toolwire_log_lines_dropped", ()).inc(dropped - self._dropped)
        self._dropped = dropped

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect() if self._shared is None else self._shared.collect():
            samples = [each for each in metric.samples if not each.name.endswith("_created")]
            for index, sample in enumerate(samples):
                if bound := sample.labels.get("le"):  # `1.0` and `1` would be two series
                    samples[index] = sample._replace(labels={**sample.labels, "le": bound.removesuffix(".0")})
            metric.samples = samples
            yield metric

    def encode_text(self) -> bytes:
        """The text format of Prometheus, as of the last `refresh`. Takes milliseconds for each worker."""
        return generate_latest(self)
