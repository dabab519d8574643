"""Numbers for Prometheus. Labels come from the settings, never from a client, so their number is bounded."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from toolwire.core.notes import Tally

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
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
        dialect, backend = facts["dialect"], facts.get("backend", "")
        self._turns.labels(dialect, backend, str(facts["status"])).inc()
        self._seconds.labels(dialect, backend).observe(seconds)
        if tally.call_count:
            self._calls.labels(dialect, backend).inc(tally.call_count)
        if tally.truncated:
            self._truncated.labels(dialect, backend).inc()
        for code, count in tally.counts.items():
            self._notes.labels(code).inc(count)
        if tally.usage is not None:
            self._tokens.labels(dialect, backend, "input").inc(tally.usage.input)
            self._tokens.labels(dialect, backend, "output").inc(tally.usage.output)

    def text(self) -> bytes:
        return generate_latest(self._registry)
