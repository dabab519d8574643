"""Numbers for Prometheus of many processes, added up.

A snapshot is what a registry shows, as plain data. Counters and histograms of two snapshots are summed, and so are
gauges, but for those about the store, which all workers see as one. What is gone leaves its counters, not its gauges.

Sums of durations are whole microseconds until they are shown. Fractions would add up to less in another order, as when
a worker leaves, and what was shown once must not become less.
"""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector


class Sample(msgspec.Struct, array_like=True, frozen=True):
    name: str
    labels: tuple[tuple[str, str], ...]
    value: int | float


class Family(msgspec.Struct, array_like=True, frozen=True):
    name: str
    type: str
    says: str
    samples: tuple[Sample, ...]


Snapshot: TypeAlias = list[Family]

_SHARED = "toolwire_store_"
"""How the names of gauges begin that are about the store: of what the workers have last seen, the highest counts."""
_LASTING = frozenset(("counter", "histogram"))
_MICROSECONDS = 1_000_000
"""Of a second."""


def snapshot_of(collector: Collector) -> Snapshot:
    """What a collector has counted."""
    return [
        Family(
            metric.name,
            metric.type,
            metric.documentation,
            tuple(
                Sample(each.name, tuple(each.labels.items()), _counted(metric.type, each.name, each.value))
                for each in metric.samples
            ),
        )
        for metric in collector.collect()
    ]


def _is_duration(type: str, name: str) -> bool:
    return type == "histogram" and name.endswith("_sum")


def _counted(type: str, name: str, shown: float) -> int | float:
    """A value as it can be added up."""
    return round(shown * _MICROSECONDS) if _is_duration(type, name) else shown


def _shown(type: str, name: str, counted: float) -> float:
    return counted / _MICROSECONDS if _is_duration(type, name) else counted


def merged(snapshots: Iterable[Snapshot]) -> Snapshot:
    """All of them as one."""
    heads: dict[str, Family] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], int | float]] = {}
    for family in (family for snapshot in snapshots for family in snapshot):
        heads.setdefault(family.name, family)
        found = values.setdefault(family.name, {})
        for sample in family.samples:
            key = (sample.name, sample.labels)
            before = found.get(key, 0)
            is_shared = family.type == "gauge" and family.name.startswith(_SHARED)
            found[key] = max(before, sample.value) if is_shared else before + sample.value
    return [
        Family(name, head.type, head.says, tuple(Sample(*key, value) for key, value in values[name].items()))
        for name, head in heads.items()
    ]


def lasting(snapshot: Snapshot) -> Snapshot:
    """What remains of a process that is gone."""
    return [family for family in snapshot if family.type in _LASTING]


def counter(name: str, says: str, label: str, values: dict[str, int]) -> Family:
    """A counter with one label."""
    samples = tuple(Sample(f"{name}_total", ((label, value),), float(count)) for value, count in values.items())
    return Family(name, "counter", says, samples)


def gauge(name: str, says: str, value: float) -> Family:
    return Family(name, "gauge", says, (Sample(name, (), value),))


class _Shown(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        for family in self._snapshot:
            metric = Metric(family.name, family.says, family.type)
            for sample in family.samples:
                metric.add_sample(sample.name, dict(sample.labels), _shown(family.type, sample.name, sample.value))
            yield metric


def text(snapshot: Snapshot) -> bytes:
    """A snapshot as Prometheus reads it."""
    registry = CollectorRegistry()
    registry.register(_Shown(snapshot))
    return generate_latest(registry)
