"""What turns used: a row for each turn, and for each hour of the more distant past a row for what is equal in them."""

import hashlib
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import asdict, replace

from toolwire.memory.sql.operation import SqlStore, Transaction, reading, transaction, writing
from toolwire.memory.store import UsageRow

ROWS_PER_ROLL_UP = 500
"""Maximum rows of turns that one transaction sums."""
HOUR = 3600
MAX_GROUPS = 10_000
"""Maximum rows of a report."""

UsageField: TypeAlias = Literal["key", "team", "model", "backend", "dialect", "outcome", "day", "hour"]
_EXPRESSIONS: dict[UsageField, str] = {"day": "hour / 24"}


class UsageGroup(msgspec.Struct, frozen=True):
    """The sums of the turns in which some fields are equal."""

    values: tuple[str | int, ...]
    """The fields, in the order of the question. Hours and days are counted from 1970."""
    turns: int
    input: int
    output: int
    cached: int
    cache_write: int
    reasoning: int
    calls: int
    notes: int
    duration: int
    """Milliseconds."""


class UsageLedger(SqlStore):
    """What turns used."""

    @writing
    async def put_usage(self, tx: Transaction, rows: Sequence[UsageRow]) -> None:
        """Add the rows of turns, each once however often it is put."""
        ordered = sorted(rows, key=lambda row: row.id)  # all writers lock rows in one order
        await tx.execute_many("put_usage", [asdict(row) for row in ordered])

    @transaction
    async def roll_up_usage(self, tx: Transaction, before: float) -> bool:
        """Sum some rows of turns that ended before this time by hour; returns whether there may be more."""
        taken = await tx.fetch("take_old_usage", before=before, most=ROWS_PER_ROLL_UP)
        sums: dict[str, UsageRow] = {}
        for row in taken:
            summed = _to_hour(UsageRow(*row))
            found = sums.get(summed.id)
            sums[summed.id] = summed if found is None else _add(found, summed)
        await tx.execute_many("add_usage", [asdict(sums[id]) for id in sorted(sums)])
        return len(taken) == ROWS_PER_ROLL_UP

    @reading
    async def sum_usage(
        self, tx: Transaction, by: Sequence[UsageField], since: float, until: float
    ) -> list[UsageGroup]:
        """The sums of the turns that ended in this time, by these fields; the largest come first.

        Hours that are summed count as a whole, by their beginning.
        """
        columns = [_EXPRESSIONS.get(field, field) for field in by]
        shown = "".join(f", {column}" for column in columns)
        groups = f"GROUP BY {', '.join(columns)}" if columns else "HAVING count(*) > 0"
        where = "FROM toolwire.usage WHERE span IN (0, 3600) AND at >= :since AND at < :until"
        query = f"{{usage_sums}}{shown} {where} {groups} ORDER BY sum(input + output) DESC LIMIT :most"
        rows = await tx.fetch(query, since=since, until=until, most=MAX_GROUPS)
        return [UsageGroup(tuple(row[9:]), *row[:9]) for row in rows]


def _to_hour(row: UsageRow) -> UsageRow:
    """The row of a turn as a sum for its hour, whose id is made of what the turns of the sum have in common."""
    common = (row.hour, row.key, row.team, row.model, row.backend, row.dialect, row.outcome)
    id = "hour_" + hashlib.sha256(msgspec.json.encode(common)).hexdigest()
    return replace(row, id=id, span=HOUR, at=float(row.hour * HOUR))


def _add(one: UsageRow, other: UsageRow) -> UsageRow:
    names = ("turns", "input", "output", "cached", "cache_write", "reasoning", "calls", "notes", "duration")
    return replace(one, **{name: getattr(one, name) + getattr(other, name) for name in names})
