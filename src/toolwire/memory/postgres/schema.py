"""The tables of the PostgreSQL store, their migrations, and the statements.

Every step is run once, by the first process that starts, and only adds, so that processes of the previous version can
run beside those of the new one.

All names are in the schema `toolwire`, which every statement names: a pooler may use another connection for each.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from toolwire.memory.postgres.faults import NotUsable
from toolwire.memory.sql.statements import Statements, read_statements

LOCK = 7_306_084_411
"""Advisory lock of the process that migrates the tables. The next number locks the counting of runs (`tables.sql`)."""


class Connection(Protocol):
    """The part of asyncpg's connection that is used."""

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
"""The lowest version that can use the tables after the last step. Raise it with a step that breaks older versions: they
then refuse to start."""

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
"""Read from the catalogue, because the result of to_regclass may predate the wait for the lock."""
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
        raise NotUsable("newer", f"its tables have version {version}; this Toolwire knows version {VERSION}")
    return version


async def _version(connection: Connection) -> tuple[int, int]:
    [[_, has_tables]] = await connection.fetch(_FOUND)
    if not has_tables:
        return 0, 0
    [[version, needs]] = await connection.fetch(_CURRENT)
    return version, needs


async def _migrate(connection: Connection) -> None:
    """Run the missing steps in one transaction. If several processes start at once, one of them runs the steps."""
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
