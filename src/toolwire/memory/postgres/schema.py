"""The tables of the PostgreSQL store, their migrations, and the statements.

Every step is made once, by the first process that comes, and only adds: processes of the previous version go on beside
those of the new one.

All names are in the schema `toolwire`, which every statement names: a pooler may give each to another connection.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from toolwire.memory.postgres.faults import NotUsable
from toolwire.memory.sql.statements import Statements, read_statements

LOCK = 7_306_084_411
"""Advisory lock of the process that migrates the tables. The next number locks the counting of runs (`tables.sql`)."""


class Connection(Protocol):
    """What is used of a connection of asyncpg."""

    async def fetch(self, query: str, *args: object, timeout: float | None = ...) -> list[Sequence[Any]]: ...  # noqa: ASYNC109

    async def execute(self, query: str, *args: object, timeout: float | None = ...) -> str: ...  # noqa: ASYNC109

    async def executemany(
        self,
        command: str,
        args: Sequence[Sequence[object]],
        *,
        timeout: float | None = ...,  # noqa: ASYNC109
    ) -> None: ...

    def is_closed(self) -> bool: ...

    def terminate(self) -> None: ...

    async def close(self, *, timeout: float | None = ...) -> None: ...  # noqa: ASYNC109


STEPS = tuple(read_statements(Path(__file__).with_name("tables.sql")).values())
"""Step n makes version n, counted from 1."""
VERSION = len(STEPS)
NEEDS = 1
"""The lowest version that can use the tables after the last step. It is raised with a step that older ones cannot live
with; they refuse to start then."""

STATEMENTS = Statements(
    {
        "journal": "toolwire.journal",
        "response": "response",
        "no_bytes": "''::bytea",
        "ids": "unnest(:ids::text[]) AS given (id)",
        "whole_id": "i.whole_id",
        "next_place": "c.places",
        "add_places": ", places = c.places + :count::bigint",
        "item_columns": "whole_id, call",
        "item_values": ":whole_id, :call",
        "item_updates": "whole_id = excluded.whole_id, call = excluded.call",
        "is_answered": "i.call = ANY (:answered::text[])",
        "key_columns": "digest, key",
        "key_values": ":digest, :key",
        "key_index": "digest",
        "by_share": "",
        "next_epoch": "nextval('toolwire.epochs')",
        **read_statements(Path(__file__).with_name("statements.sql")),
    },
    is_sqlite=False,
)
"""All statements, with what differs in PostgreSQL's tables."""

_FOUND = """
SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = 'toolwire'),
    EXISTS (SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'toolwire' AND c.relname = 'schema_version')
"""
"""Read from the catalogue: the answer of to_regclass may be older than the lock that was waited for."""
_CURRENT = "SELECT version, needs FROM toolwire.schema_version"
_CREATE_VERSION = """
CREATE TABLE toolwire.schema_version (version int NOT NULL, needs int NOT NULL);
INSERT INTO toolwire.schema_version VALUES (0, 0);
"""


async def prepare(connection: Connection) -> None:
    """Create the tables or migrate them to this version; those of a later version stay if they can be used."""
    if await version_of(connection) < VERSION:
        await _migrate(connection)


async def version_of(connection: Connection) -> int:
    """The version of the tables, 0 if there are none; raises if this Toolwire cannot use them."""
    version, needs = await _version(connection)
    if needs > VERSION:
        raise NotUsable("newer", f"its tables are of version {version}, and this Toolwire knows those of {VERSION}")
    return version


async def _version(connection: Connection) -> tuple[int, int]:
    [[_, has_tables]] = await connection.fetch(_FOUND)
    if not has_tables:
        return 0, 0
    [[version, needs]] = await connection.fetch(_CURRENT)
    return version, needs


async def _migrate(connection: Connection) -> None:
    """Make the missing steps in one transaction. Of several processes that start at once, one makes them."""
    await connection.execute("BEGIN")
    try:
        await connection.execute("SET LOCAL statement_timeout = 0")
        await connection.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
        [[has_schema, has_tables]] = await connection.fetch(_FOUND)
        if not has_schema:
            await connection.execute("CREATE SCHEMA toolwire")
        if not has_tables:
            await connection.execute(_CREATE_VERSION)
        version, _ = await _version(connection)
        for step in STEPS[version:]:
            await connection.execute(step)
        change = "UPDATE toolwire.schema_version SET version = greatest(version, $1), needs = greatest(needs, $2)"
        await connection.fetch(change, len(STEPS), NEEDS)
    except BaseException:
        if not connection.is_closed():
            await connection.execute("ROLLBACK")
        raise
    await connection.execute("COMMIT")
