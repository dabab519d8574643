"""Numbers for Prometheus. Labels come from the operator, never from a client, so their number is bounded.

Turns count into plain dicts; the library's own families are made from them when somebody asks.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from toolwire.core.notes import TurnStats
from toolwire.gateway.stderr import dropped_lines
from toolwire.memory.store import StoreStats

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
Labels: TypeAlias = tuple[str, ...]

_WHERE = ("dialect", "backend")
_COUNTERS = {
    "toolwire_turns": ("Turns, by outcome", (*_WHERE, "status")),
    "toolwire_calls": ("Calls delivered", _WHERE),
    "toolwire_truncated_turns": ("Turns with calls withheld", _WHERE),
    "toolwire_gateway_calls": ("Calls that the gateway ran itself, by outcome", ("tool", "outcome")),
    "toolwire_store_failures": ("Attempts to use the store that failed, by reason", ("reason",)),
    "toolwire_take_overs": ("Background runs taken over from a process that is gone, by outcome", ("outcome",)),
    "toolwire_notes": ("Deviations, by code", ("code",)),
    "toolwire_tokens": ("Tokens", (*_WHERE, "direction")),
}
_HISTOGRAMS: dict[str, tuple[str, Labels, tuple[float, ...]]] = {
    "toolwire_turn_seconds": ("Duration of turns", _WHERE, SECONDS),
    "toolwire_flush_seconds": ("How long events of background runs waited until they were kept", (), SHORT_SECONDS),
    "toolwire_store_seconds": ("Duration of operations of the store", ("operation",), SHORT_SECONDS),
}


class Histogram:
    """Durations in buckets, by labels."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._buckets: dict[Labels, list[int]] = {}
        self._sums: defaultdict[Labels, float] = defaultdict(float)

    def add(self, labels: Labels, seconds: float) -> None:
        if labels not in self._buckets:
            self._buckets[labels] = [0] * (len(self._bounds) + 1)
        self._buckets[labels][bisect_left(self._bounds, seconds)] += 1
        self._sums[labels] += seconds

    def family(self, name: str, says: str, labels: Labels) -> HistogramMetricFamily:
        family = HistogramMetricFamily(name, says, labels=labels)
        for values, buckets in self._buckets.items():
            total = 0
            shown: list[tuple[str, float]] = []
            for bound, count in zip((*map(str, self._bounds), "+Inf"), buckets, strict=True):
                total += count
                shown.append((bound, total))
            family.add_metric(values, shown, self._sums[values])
        return family


class Metrics(Collector):
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._counts: dict[str, defaultdict[Labels, float]] = {name: defaultdict(float) for name in _COUNTERS}
        self._durations = {name: Histogram(bounds) for name, (_, _, bounds) in _HISTOGRAMS.items()}
        self._store_fails = False
        self.running = 0
        """Turns that are being answered now."""
        self.follows = 0
        """Streams of background runs that are being read now."""
        self.stored = StoreStats()
        """What the store held when it was last asked."""

    def turn(self, facts: dict[str, Any], stats: TurnStats, seconds: float) -> None:
        where = (facts["dialect"], facts.get("backend", ""))
        counts = self._counts
        counts["toolwire_turns"][*where, str(facts["status"])] += 1
        self._durations["toolwire_turn_seconds"].add(where, seconds)
        if stats.call_count:
            counts["toolwire_calls"][where] += stats.call_count
        if stats.truncated:
            counts["toolwire_truncated_turns"][where] += 1
        for code, count in stats.counts.items():
            counts["toolwire_notes"][code,] += count
        if stats.usage is not None:
            counts["toolwire_tokens"][*where, "input"] += stats.usage.input
            counts["toolwire_tokens"][*where, "output"] += stats.usage.output

    def gateway_call(self, tool: str, outcome: str) -> None:
        """A call of one of the gateway's own tools."""
        self._counts["toolwire_gateway_calls"][tool, outcome] += 1

    def store(self, reason: str) -> None:
        """An attempt to use the store failed for this reason; or, without one, it works again."""
        self._store_fails = bool(reason)
        if reason:
            self._counts["toolwire_store_failures"][reason,] += 1

    def took_over(self, outcome: str) -> None:
        """A background run whose process is gone was asked again, or ended."""
        self._counts["toolwire_take_overs"][outcome,] += 1

    def flushed(self, seconds: float) -> None:
        """Events of a background run were kept, of which the oldest had waited for so long."""
        self._durations["toolwire_flush_seconds"].add((), seconds)

    @contextmanager
    def using_store(self, operation: str) -> Generator[None]:
        """Measure an operation of the store, if it succeeds."""
        began = monotonic()
        yield
        self._durations["toolwire_store_seconds"].add((operation,), monotonic() - began)

    def collect(self) -> Iterator[Metric]:
        for name, (says, labels) in _COUNTERS.items():
            family = CounterMetricFamily(name, says, labels=labels)
            for values, count in self._counts[name].items():
                family.add_metric(values, count)
            yield family
        yield CounterMetricFamily("toolwire_log_lines_dropped", "Lines nobody read in time", value=dropped_lines())
        yield GaugeMetricFamily("toolwire_turns_running", "Turns being answered now", float(self.running))
        yield GaugeMetricFamily("toolwire_store_failing", "Whether the store fails", float(self._store_fails))
        yield GaugeMetricFamily("toolwire_follows", "Background runs being read as streams now", float(self.follows))
        for what in StoreStats.__struct_fields__:
            says = f"What the store holds: {what}"
            yield GaugeMetricFamily(f"toolwire_store_{what}", says, float(getattr(self.stored, what)))
        for name, (says, labels, _) in _HISTOGRAMS.items():
            yield self._durations[name].family(name, says, labels)

    def text(self) -> bytes:
        return generate_latest(self._registry)
