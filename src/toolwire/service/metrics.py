"""Numbers for Prometheus. Labels come from the settings, never from a client, so their number is bounded."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from toolwire.core.notes import Tally

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._children: dict[tuple[Any, tuple[str, ...]], Any] = {}
        labels = ("dialect", "backend", "status")
        self._turns = Counter("toolwire_turns", "Turns, by outcome", labels, registry=self._registry)
        self._seconds = Histogram(
            "toolwire_turn_seconds",
            "Duration of turns",
            ("dialect", "backend"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        where = ("dialect", "backend")
        self._calls = Counter("toolwire_calls", "Calls delivered", where, registry=self._registry)
        self._truncated = Counter(
            "toolwire_truncated_turns", "Turns with calls withheld", where, registry=self._registry
        )
        self._notes = Counter("toolwire_notes", "Deviations, by code", ("code",), registry=self._registry)
        self._tokens = Counter("toolwire_tokens", "Tokens", (*where, "direction"), registry=self._registry)

    def turn(self, facts: dict[str, Any], tally: Tally, seconds: float) -> None:
        place = (facts["dialect"], facts.get("backend", ""))
        self._count(self._turns, (*place, str(facts["status"])))
        seconds_of = self._children.get((self._seconds, place)) or self._child(self._seconds, place)
        seconds_of.observe(seconds)
        if tally.call_count:
            self._count(self._calls, place, tally.call_count)
        if tally.truncated:
            self._count(self._truncated, place)
        for code, count in tally.counts.items():
            self._count(self._notes, (code,), count)
        if tally.usage is not None:
            self._count(self._tokens, (*place, "input"), tally.usage.input)
            self._count(self._tokens, (*place, "output"), tally.usage.output)

    def _count(self, counter: Counter, labels: tuple[str, ...], by: int = 1) -> None:
        child = self._children.get((counter, labels)) or self._child(counter, labels)
        child.inc(by)

    def _child(self, metric: Any, labels: tuple[str, ...]) -> Any:
        """A metric under its labels, found once: the library looks them up anew each time."""
        child = self._children[metric, labels] = metric.labels(*labels)
        return child

    def text(self) -> bytes:
        return generate_latest(self._registry)
