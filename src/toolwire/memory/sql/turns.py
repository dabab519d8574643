"""Turns that the console keeps, under their owners."""

from collections.abc import Sequence

from msgspec.structs import asdict

from toolwire.memory.sql.operation import SqlStore, Transaction, reading, writing
from toolwire.memory.sql.values import ROW_OVERHEAD
from toolwire.memory.store import KeptTurn, TurnBounds


class Turns(SqlStore):
    """Turns that the console keeps."""

    def age_of(self, bounds: TurnBounds) -> float:
        """Seconds after which a turn is no longer kept."""
        return min(bounds.max_age or self.age_limit, self.age_limit)

    @writing
    async def put_turns(self, tx: Transaction, turns: Sequence[KeptTurn]) -> None:
        """Save turns, each in place of an earlier one with its id."""
        ordered = sorted(turns, key=lambda turn: turn.id)  # all writers lock rows in one order
        sizes = [len(turn.facts) + len(turn.content) + ROW_OVERHEAD for turn in ordered]
        rows = [{**asdict(turn), "size": size} for turn, size in zip(ordered, sizes, strict=True)]
        await tx.execute_many("put_turn", rows)

    @reading
    async def recent_turns(
        self, tx: Transaction, bounds: TurnBounds, limit: int, after: int = 0
    ) -> list[tuple[KeptTurn, int]]:
        """The turns after this number, without content, each with its number; the latest come first.

        Those of a transaction that is committed late may have lower numbers than others that were read before.
        """
        rows = await tx.fetch("recent_turns", after=after, turns_age=self.age_of(bounds), limit=limit)
        return [(KeptTurn(*row[:3]), row[3]) for row in rows]

    @reading
    async def turn_content(self, tx: Transaction, owner: str, id: str) -> bytes | None:
        """The content of a turn; None if the turn is not kept."""
        found = await tx.fetch_one("turn_content", id=id, owner=owner)
        return found[0] if found is not None else None
