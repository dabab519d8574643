"""What the console counts: since the start, and for each of the last sixty minutes.

Names of tools and models come from clients, so only so many of them are told apart.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from math import frexp
from typing import Any, cast

import msgspec

from toolwire.gateway.console.rows import FAILED, Row

MINUTES = 60
MOST_NAMES = 200
"""Tools that are told apart; the others are counted together."""
OTHERS = "(others)"
_PARTS = 16
"""Steps in which times are counted between a number and its double."""
_CALLS_KEPT = 5000
"""Calls whose results are waited for, and results whose calls another process may have made."""


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
        self.errors += row.failed
        self.input += row.input
        self.output += row.output
        self.cached += row.cached
        if row.first_ms and not row.failed:
            bucket = _bucket(row.first_ms)
            self.first[bucket] = self.first.get(bucket, 0) + 1
        bucket = _bucket(row.ms)
        self.total[bucket] = self.total.get(bucket, 0) + 1
        for name in row.calls:
            _add_name(self.calls, name, 1)
        for code in row.notes:
            _add_name(self.notes, code, 1)

    def result(self, name: str, *, failed: bool) -> None:
        _add_name(self.answered, name, 1)
        if failed:
            _add_name(self.failed, name, 1)

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


def _add_name(counts: dict[str, int], name: str, count: int) -> None:
    """Count a name, or something else if there are too many of them."""
    name = name if name in counts or len(counts) < MOST_NAMES else OTHERS
    counts[name] = counts.get(name, 0) + count


def _sum(one: Any, other: Any) -> Any:
    if not isinstance(one, dict):
        return one + other
    out = dict(cast("dict[Any, int]", one))
    for what, count in cast("dict[Any, int]", other).items():
        if isinstance(what, str):
            _add_name(cast("dict[str, int]", out), what, count)
        else:
            out[what] = out.get(what, 0) + count
    return out


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


def latencies(turns: Iterable[Sequence[Any]]) -> dict[str, Any]:
    """How fast a backend was in these turns, each as `[AT, FIRST_MS, MS, STATUS, ERROR]`, and how often it failed."""
    counts = Counts()
    for at, first_ms, ms, status, error in turns:
        counts.add(Row("", at, "", first_ms=first_ms, ms=ms, status=status, error=error))
    shown = counts.shown()
    return {name: shown[name] for name in ("errors", "first_p50", "first_p99", "total_p50", "total_p99")}


class Matches:
    """Which tool a result is of. Calls and results that are still alone may find each other in another process."""

    def __init__(self) -> None:
        self.calls: dict[str, str] = {}
        """The tool of each call without a result."""
        self.results: dict[str, tuple[int, bool]] = {}
        """The minute of each result without a call, and whether it failed."""

    def call(self, row: Row) -> None:
        """The calls of a turn."""
        self.calls.update(zip(row.call_ids, row.calls, strict=False))
        _shorten(self.calls)

    def result(self, each: str, minute: int) -> tuple[str, bool]:
        """The tool of a result, empty if it is not known here, and whether it failed."""
        id = each.removesuffix(FAILED)
        failed = id != each
        name = self.calls.pop(id, "")
        if not name:
            self.results[id] = (minute, failed)
            _shorten(self.results)
        return name, failed


def _shorten(entries: dict[str, Any]) -> None:
    if len(entries) > _CALLS_KEPT:
        for id in tuple(entries)[: _CALLS_KEPT // 2]:
            del entries[id]


class Numbers:
    """The counts of one process."""

    def __init__(self) -> None:
        self.since = time.time()
        self._all = Counts()  # of all minutes but the last
        self._now = 0
        self._minutes: deque[Counts] = deque(maxlen=MINUTES)
        self._matches = Matches()

    def count(self, rows: Iterable[Row]) -> None:
        """These turns are over."""
        counts = self._minute()
        for row in rows:
            counts.add(row)
            if row.call_ids:
                self._matches.call(row)
            for each in row.results:
                name, failed = self._matches.result(each, self._now)
                if name:
                    counts.result(name, failed=failed)

    def report(self) -> "Report":
        """Everything that was counted, to be added to that of other processes."""
        oldest = int(time.time() // 60) - MINUTES
        last = self._minutes[-1] if self._minutes else Counts()
        minutes = [each for each in self._minutes if each.minute > oldest]
        return Report(self.since, self._all.plus(last), minutes, self._matches.calls, self._matches.results)

    def _minute(self) -> Counts:
        minute = int(time.time() // 60)
        if minute != self._now:
            if self._minutes:
                self._all = self._all.plus(self._minutes[-1])
            self._minutes.append(Counts(minute))
            self._now = minute
        return self._minutes[-1]


class Report(msgspec.Struct):
    """The counts of a process, and what it could not match."""

    since: float
    all: Counts
    minutes: list[Counts]
    calls: dict[str, str] = {}
    results: dict[str, tuple[int, bool]] = {}


def report_of(rows: Iterable[Row]) -> Report:
    """The counts of these turns, as those of a process."""
    oldest = int(time.time() // 60) - MINUTES
    everything, minutes, matches = Counts(), dict[int, Counts](), Matches()
    ordered = sorted(rows, key=lambda row: row.at)
    for row in ordered:
        minute = int((row.at + row.ms / 1000) // 60)
        counts = (everything, minutes.setdefault(minute, Counts(minute))) if minute > oldest else (everything,)
        for each in counts:
            each.add(row)
        matches.call(row)
        for result in row.results:
            name, failed = matches.result(result, minute)
            for each in counts if name else ():
                each.result(name, failed=failed)
    since = ordered[0].at if ordered else time.time()
    return Report(since, everything, list(minutes.values()), matches.calls, matches.results)


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
    oldest = int(time.time() // 60) - MINUTES
    for name, minute, failed in _matched(reports):
        for counts in (everything, hour) if minute > oldest else (everything,):
            counts.result(name, failed=failed)
    return {
        "since": min((report.since for report in reports), default=time.time()),
        "start": everything.shown(),
        "hour": hour.shown(),
        "minutes": sorted([minute, *counts] for minute, counts in by_minute.items()),
    }


def _matched(reports: list[Report]) -> Iterator[tuple[str, int, bool]]:
    """Results that came to another process than that of their calls: tool, minute, and whether they failed."""
    calls = {id: name for report in reports for id, name in report.calls.items()}
    for report in reports:
        for id, (minute, failed) in report.results.items():
            if name := calls.pop(id, ""):
                yield name, minute, failed
