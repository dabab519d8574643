"""What the console counts: since the start, and for each of the last sixty minutes.

Names of tools and models come from clients, so only so many of them are told apart.
"""

import time
from collections import deque
from math import frexp
from typing import Any, TypeVar, cast

import msgspec

from toolwire.gateway.console.rows import Row

MINUTES = 60
MOST_NAMES = 200
"""Tools that are told apart; the others are counted together."""
OTHERS = "(others)"
_PARTS = 16
"""Steps in which times are counted between a number and its double."""
_CALLS_KEPT = 5000
"""Calls whose results are waited for."""


def _bucket(ms: float) -> int:
    mantissa, exponent = frexp(ms)
    return exponent * _PARTS + int((2 * mantissa - 1) * _PARTS)


def _value(bucket: int) -> float:
    exponent, part = divmod(bucket, _PARTS)
    return round((1 + (part + 0.5) / _PARTS) / 2 * 2.0**exponent, 1)


class Counts(msgspec.Struct):
    """Sums of some turns."""

    minute: int = 0
    turns: int = 0
    errors: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0
    first: dict[int, int] = {}
    total: dict[int, int] = {}
    calls: dict[str, int] = {}
    failed: dict[str, int] = {}
    answered: dict[str, int] = {}
    notes: dict[str, int] = {}

    def add(self, row: Row) -> None:
        self.turns += 1
        self.errors += row.status >= 400
        self.input += row.input
        self.output += row.output
        self.cached += row.cached
        if row.first_ms and row.status < 400:
            bucket = _bucket(row.first_ms)
            self.first[bucket] = self.first.get(bucket, 0) + 1
        bucket = _bucket(row.ms)
        self.total[bucket] = self.total.get(bucket, 0) + 1
        for name in row.calls:
            self._name(self.calls, name)
        for code in row.notes:
            _add(self.notes, code)

    def _name(self, counts: dict[str, int], name: str) -> None:
        _add(counts, name if name in counts or len(counts) < MOST_NAMES else OTHERS)

    def result(self, name: str, *, failed: bool) -> None:
        self._name(self.answered, name)
        if failed:
            self._name(self.failed, name)

    def plus(self, other: "Counts") -> "Counts":
        """The sum of both, of no minute."""
        return Counts(0, *(_sum(getattr(self, name), getattr(other, name)) for name in self.__struct_fields__[1:]))

    def shown(self) -> dict[str, Any]:
        """As the page shows it."""
        tools = {
            name: {"calls": count, "results": self.answered.get(name, 0), "failed": self.failed.get(name, 0)}
            for name, count in _most_first(self.calls)[:50]
        }
        return {
            "turns": self.turns,
            "errors": self.errors,
            "input": self.input,
            "output": self.output,
            "cached": self.cached,
            "first_p50": percentile(self.first, 0.5),
            "first_p99": percentile(self.first, 0.99),
            "total_p50": percentile(self.total, 0.5),
            "total_p99": percentile(self.total, 0.99),
            "tools": tools,
            "notes": dict(_most_first(self.notes)),
        }


Count = TypeVar("Count", str, int)


def _add(counts: dict[Count, int], what: Count) -> None:
    counts[what] = counts.get(what, 0) + 1


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        counts = cast("dict[Any, int]", one)
        return {what: counts.get(what, 0) + other.get(what, 0) for what in (*counts, *other)}
    return one + other


def _most_first(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda each: -each[1])


def percentile(counts: dict[int, int], share: float) -> float | None:
    """The time that this share of the turns stays below."""
    wanted = sum(counts.values()) * share
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= wanted:
            return _value(bucket)
    return None


class Numbers:
    """The counts of one process."""

    def __init__(self) -> None:
        self.since = time.time()
        self._all = Counts()  # of all minutes but the last
        self._now = 0
        self._minutes: deque[Counts] = deque(maxlen=MINUTES)
        self._names: dict[str, str] = {}

    def count(self, row: Row) -> None:
        """A turn is over."""
        self._minute().add(row)
        if row.call_ids:
            names = self._names
            names.update(zip(row.call_ids, row.calls, strict=False))
            if len(names) > _CALLS_KEPT:
                for id in tuple(names)[: _CALLS_KEPT // 2]:
                    del names[id]

    def results(self, row: Row) -> None:
        """Results of earlier calls came with a turn."""
        for each in row.results:
            id, _, failed = each.partition(" ")
            name = self._names.pop(id, "")
            if name:
                self._minute().result(name, failed=bool(failed))

    def report(self) -> "Report":
        """Everything that was counted, to be added to that of other processes."""
        oldest = int(time.time() // 60) - MINUTES
        last = self._minutes[-1] if self._minutes else Counts()
        return Report(self.since, self._all.plus(last), [each for each in self._minutes if each.minute > oldest])

    def _minute(self) -> Counts:
        minute = int(time.time() // 60)
        if minute != self._now:
            if self._minutes:
                self._all = self._all.plus(self._minutes[-1])
            self._minutes.append(Counts(minute))
            self._now = minute
        return self._minutes[-1]


class Report(msgspec.Struct):
    """The counts of a process."""

    since: float
    all: Counts
    minutes: list[Counts]


def shown(reports: list[Report]) -> dict[str, Any]:
    """The counts of all processes, as the page shows them."""
    everything, hour = Counts(), Counts()
    by_minute: dict[int, list[int]] = {}
    for report in reports:
        everything = everything.plus(report.all)
        for minute in report.minutes:
            hour = hour.plus(minute)
            turns, errors = by_minute.get(minute.minute, [0, 0])
            by_minute[minute.minute] = [turns + minute.turns, errors + minute.errors]
    return {
        "since": min((report.since for report in reports), default=time.time()),
        "start": everything.shown(),
        "hour": hour.shown(),
        "minutes": sorted([minute, *counts] for minute, counts in by_minute.items()),
    }
