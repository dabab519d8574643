"""Small values that are kept between turns, in PostgreSQL."""

from collections.abc import Sequence

from toolwire.memory.postgres.database import Database
from toolwire.memory.postgres.responses import NO_AGE
from toolwire.memory.postgres.statements import Statement
from toolwire.memory.postgres.values import digest_of
from toolwire.memory.store import KeyValue

KEPT_ROW = 128
"""Bytes that a value counts beside its own and those of its key."""
KEPT_AT_ONCE = 64 * 1024 * 1024
"""Most bytes of values that one question is answered with."""

_PUT = Statement(
    """
    INSERT INTO toolwire.kept (owner, kind, digest, key, value, size)
    SELECT owner, kind, digest, key, value, length(key) + length(value) + :row_size
    FROM unnest(:owners::text[], :kinds::text[], :digests::bytea[], :keys::bytea[], :contents::bytea[])
        AS given (owner, kind, digest, key, value) ORDER BY owner, kind, digest
    ON CONFLICT (owner, kind, digest) DO UPDATE SET value = excluded.value, size = excluded.size, used = now()
    """
)

_GET = Statement(
    """
    WITH found AS (
        SELECT given.number, k.value, coalesce(sum(length(k.value)) OVER (
            ORDER BY given.number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
        FROM unnest(:kinds::text[], :digests::bytea[]) WITH ORDINALITY AS given (kind, digest, number)
        JOIN toolwire.kept k ON k.owner = :owner AND k.kind = given.kind AND k.digest = given.digest
            AND k.used >= now() - :max_age * interval '1 second'
    )
    SELECT number, value FROM found WHERE before < :most
    """
)


class PostgresKept:
    """The part of the store for what is kept between turns."""

    _database: Database
    _max_age: float

    async def put_values(self, rows: Sequence[KeyValue]) -> None:
        latest = list({(row.owner, row.kind, row.key): row for row in rows}.values())
        await self._database.write(
            _PUT,
            owners=[row.owner for row in latest],
            kinds=[row.kind for row in latest],
            digests=[digest_of(row.key) for row in latest],
            keys=[row.key for row in latest],
            contents=[row.value for row in latest],
            row_size=KEPT_ROW,
        )

    async def get_values(
        self, owner: str, keys: Sequence[tuple[str, bytes]], most: int = KEPT_AT_ONCE
    ) -> list[bytes | None]:
        rows = await self._database.read(
            _GET,
            owner=owner,
            kinds=[kind for kind, _ in keys],
            digests=[digest_of(key) for _, key in keys],
            max_age=self._max_age or NO_AGE,
            most=most,
        )
        found: dict[int, bytes] = {number: value for number, value in rows}  # noqa: C416 - a row is no tuple
        return [found.get(number) for number in range(1, len(keys) + 1)]
