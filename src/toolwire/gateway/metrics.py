"""Numbers for Prometheus. Labels come from the operator, never from a client, so their number is bounded.

Turns count into plain dicts; the library's own families are made from them when somebody asks.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from toolwire.core.notes import TurnStats
from toolwire.gateway.stderr import dropped_lines

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
Labels: TypeAlias = tuple[str, ...]

_WHERE = ("dialect", "backend")
_COUNTERS = {
    "toolwire_turns": ("Turns, by outcome", (*_WHERE, "status")),
    "toolwire_calls": ("Calls delivered", _WHERE),
    "toolwire_truncated_turns": ("Turns with calls withheld", _WHERE),
    "toolwire_gateway_calls": ("Calls that the gateway ran itself, by outcome", ("tool", "outcome")),
    "toolwire_store_failures": ("Attempts to use the store that failed, by reason", ("reason",)),
    "toolwire_notes": ("Deviations, by code", ("code",)),
    "toolwire_tokens": ("Tokens", (*_WHERE, "direction")),
}


class Metrics(Collector):
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._counts: dict[str, defaultdict[Labels, float]] = {name: defaultdict(float) for name in _COUNTERS}
        self._buckets: dict[Labels, list[int]] = {}
        self._seconds: defaultdict[Labels, float] = defaultdict(float)
        self._store_fails = False
        self.running = 0
        """Turns that are being answered now."""

    def turn(self, facts: dict[str, Any], stats: TurnStats, seconds: float) -> None:
        where = (facts["dialect"], facts.get("backend", ""))
        counts = self._counts
        counts["toolwire_turns"][*where, str(facts["status"])] += 1
        if where not in self._buckets:
            self._buckets[where] = [0] * (len(SECONDS) + 1)
        self._buckets[where][bisect_left(SECONDS, seconds)] += 1
        self._seconds[where] += seconds
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

    def collect(self) -> Iterator[Metric]:
        for name, (says, labels) in _COUNTERS.items():
            family = CounterMetricFamily(name, says, labels=labels)
            for values, count in self._counts[name].items():
                family.add_metric(values, count)
            yield family
        yield CounterMetricFamily("toolwire_log_lines_dropped", "Lines nobody read in time", value=dropped_lines())
        yield GaugeMetricFamily("toolwire_turns_running", "Turns being answered now", float(self.running))
        yield GaugeMetricFamily("toolwire_store_failing", "Whether the store fails", float(self._store_fails))
        seconds = HistogramMetricFamily("toolwire_turn_seconds", "Duration of turns", labels=_WHERE)
        for where, buckets in self._buckets.items():
            total = 0
            shown: list[tuple[str, float]] = []
            for bound, count in zip((*map(str, SECONDS), "+Inf"), buckets, strict=True):
                total += count
                shown.append((bound, total))
            seconds.add_metric(where, shown, self._seconds[where])
        yield seconds

    def text(self) -> bytes:
        return generate_latest(self._registry)
