"""Counts of turns: since the start, and for each of the last sixty minutes.

Names of tools and models come from clients, so only a limited number of them is counted separately.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from math import frexp
from typing import Any, TypeVar

import msgspec

from toolwire.gateway.console.rows import FAILED, TurnRow

MINUTES = 60
MAX_NAMES = 200
"""Maximum number of names that are counted separately; all others are counted together."""
OTHERS = "(others)"
MAX_SHOWN_TOOLS = 50
BUCKETS_PER_DOUBLING = 16
"""Histogram buckets between a time and its double."""
MAX_UNMATCHED = 5000
"""Maximum number of unmatched calls, and of unmatched results: another process may have the counterpart."""

V = TypeVar("V")


def _bucket_of(ms: float) -> int:
    mantissa, exponent = frexp(ms)
    return exponent * BUCKETS_PER_DOUBLING + int((2 * mantissa - 1) * BUCKETS_PER_DOUBLING)


def find_percentile(counts: dict[int, int], share: float) -> float | None:
    """The time within which this share of the turns ended; None if there are none."""
    wanted = sum(counts.values()) * share
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= wanted:
            exponent, part = divmod(bucket, BUCKETS_PER_DOUBLING)
            return round((1 + (part + 0.5) / BUCKETS_PER_DOUBLING) / 2 * 2.0**exponent, 1)
    return None


class Counts(msgspec.Struct):
    """Sums over turns."""

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

    def add(self, row: TurnRow) -> None:
        """Count a turn."""
        self.turns += 1
        self.errors += row.failed
        self.input += row.input
        self.output += row.output
        self.cached += row.cached
        if row.first_ms and not row.failed:
            _increase(self.first, _bucket_of(row.first_ms))
        _increase(self.total, _bucket_of(row.ms))
        for name in row.calls:
            _increase(self.calls, name)
        for code in row.notes:
            _increase(self.notes, code)

    def add_result(self, name: str, *, failed: bool) -> None:
        """Count a result of this tool."""
        _increase(self.answered, name)
        if failed:
            _increase(self.failed, name)

    def include(self, other: "Counts") -> None:
        """Add the counts of another minute or process."""
        for field in self.__struct_fields__[1:]:
            own, others = getattr(self, field), getattr(other, field)
            if isinstance(own, int):
                setattr(self, field, own + others)
            else:
                for name, count in others.items():
                    _increase(own, name, count)

    def summarize(self) -> dict[str, object]:
        """The counts as the page shows them."""
        tools = {
            name: {"calls": count, "results": self.answered.get(name, 0), "failed": self.failed.get(name, 0)}
            for name, count in _sort_by_count(self.calls)[:MAX_SHOWN_TOOLS]
        }
        return {
            "turns": self.turns,
            "errors": self.errors,
            "input": self.input,
            "output": self.output,
            "cached": self.cached,
            "first_p50": find_percentile(self.first, 0.5),
            "first_p99": find_percentile(self.first, 0.99),
            "total_p50": find_percentile(self.total, 0.5),
            "total_p99": find_percentile(self.total, 0.99),
            "tools": tools,
            "notes": dict(_sort_by_count(self.notes)),
        }


def _increase(counts: dict[Any, int], name: str | int, count: int = 1) -> None:
    """Count a bucket or a name. Once there are too many names, new ones count as `OTHERS`."""
    if name not in counts and isinstance(name, str) and len(counts) >= MAX_NAMES:
        name = OTHERS
    counts[name] = counts.get(name, 0) + count


def _sort_by_count(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda each: -each[1])


def summarize_latencies(turns: Iterable[Sequence[Any]]) -> dict[str, object]:
    """Times and failures of a backend in these turns, each `[AT, FIRST_MS, MS, STATUS, ERROR]`."""
    counts = Counts()
    for at, first_ms, ms, status, error in turns:
        counts.add(TurnRow("", at, "", first_ms=first_ms, ms=ms, status=status, error=error))
    shown = counts.summarize()
    return {name: shown[name] for name in ("errors", "first_p50", "first_p99", "total_p50", "total_p99")}


class CountReport(msgspec.Struct):
    """The counts of a process, and the calls and results that it could not match with each other."""

    since: float
    all: Counts
    minutes: list[Counts]
    calls: dict[str, str] = {}
    """The tool of each call without a result."""
    results: dict[str, tuple[int, bool]] = {}
    """The minute of each result without a call, and whether the tool failed."""


class Statistics:
    """The counts of one process, or of some turns."""

    def __init__(self, since: float | None = None) -> None:
        self._since = time.time() if since is None else since
        self._earlier = Counts()  # all minutes but the last
        self._minutes: deque[Counts] = deque([Counts()], maxlen=MINUTES)
        self._calls: dict[str, str] = {}
        self._results: dict[str, tuple[int, bool]] = {}

    def count(self, rows: Iterable[TurnRow], minute: int = 0) -> None:
        """Count turns that ended in this minute, or now. Minutes must not decrease."""
        minute = minute or int(time.time() // 60)
        if minute > self._minutes[-1].minute:
            self._earlier.include(self._minutes[-1])
            self._minutes.append(Counts(minute))
        counts = self._minutes[-1]
        for row in rows:
            counts.add(row)
            if row.call_ids:
                self._calls.update(zip(row.call_ids, row.calls, strict=False))
                _drop_oldest(self._calls)
            for each in row.results:
                id = each.removesuffix(FAILED)
                if name := self._calls.pop(id, ""):
                    counts.add_result(name, failed=id != each)
                else:
                    self._results[id] = (minute, id != each)
                    _drop_oldest(self._results)

    def report(self) -> CountReport:
        """Everything that was counted, to be added to the counts of other processes."""
        everything = Counts()
        for counts in (self._earlier, self._minutes[-1]):
            everything.include(counts)
        oldest = int(time.time() // 60) - MINUTES
        minutes = [each for each in self._minutes if each.minute > oldest]
        return CountReport(self._since, everything, minutes, self._calls, self._results)


def _drop_oldest(entries: dict[str, V]) -> None:
    """Drop half of the entries if there are too many."""
    if len(entries) > MAX_UNMATCHED:
        for id in tuple(entries)[: MAX_UNMATCHED // 2]:
            del entries[id]


def count_rows(rows: Iterable[TurnRow]) -> CountReport:
    """The counts of these turns, as a process would report them."""
    ordered = sorted(rows, key=lambda row: row.at + row.ms / 1000)
    counted = Statistics(min((row.at for row in ordered), default=None))
    for row in ordered:
        counted.count((row,), int((row.at + row.ms / 1000) // 60))
    return counted.report()


def merge_reports(reports: list[CountReport]) -> dict[str, object]:
    """The counts of all processes, as the page shows them. Results are matched with calls of other processes."""
    everything, hour = Counts(), Counts()
    by_minute: dict[int, list[int]] = {}
    for report in reports:
        everything.include(report.all)
        for minute in report.minutes:
            hour.include(minute)
            turns, errors = by_minute.get(minute.minute, [0, 0])
            by_minute[minute.minute] = [turns + minute.turns, errors + minute.errors]
    oldest = int(time.time() // 60) - MINUTES
    calls = {id: name for report in reports for id, name in report.calls.items()}
    for report in reports:
        for id, (minute, failed) in report.results.items():
            if name := calls.pop(id, ""):
                for counts in (everything, hour) if minute > oldest else (everything,):
                    counts.add_result(name, failed=failed)
    return {
        "since": min((report.since for report in reports), default=time.time()),
        "start": everything.summarize(),
        "hour": hour.summarize(),
        "minutes": sorted([minute, *counts] for minute, counts in by_minute.items()),
    }
