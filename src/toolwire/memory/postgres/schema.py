"""The tables of the PostgreSQL store, their migrations, and the fragments of shared statements.

Every step is made once, by the first process that comes, and only adds: processes of the previous version go on beside
those of the new one. A step that they cannot live with raises `needs`, and they refuse to start.

All names are in the schema `toolwire`, which every statement names: a pooler may give each to another connection.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from toolwire.memory.postgres.faults import NotUsable

LOCK = 7_306_084_411
"""Advisory lock of the process that migrates the tables."""
RUNS_LOCK = LOCK + 1
"""Advisory lock of a statement that counts runs and adds one, taken before any row: a waiting one locks no row."""


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


class Step(NamedTuple):
    statements: str
    needs: int
    """The lowest version that can use the tables afterwards."""


STEPS = (
    Step(
        """
        CREATE TABLE toolwire.holders (
            id text COLLATE "C" PRIMARY KEY,
            owner text COLLATE "C" NOT NULL,
            kind text NOT NULL,
            created float8 NOT NULL,
            used timestamptz NOT NULL DEFAULT now(),
            size bigint NOT NULL,
            status text NOT NULL,
            previous text COLLATE "C" NOT NULL,
            conversation text COLLATE "C" NOT NULL,
            continuation text COLLATE "C" NOT NULL,
            fields bytea NOT NULL,
            body bytea NOT NULL,
            places bigint NOT NULL DEFAULT 0,
            written_by text NOT NULL DEFAULT ''
        );
        CREATE INDEX holders_by_use ON toolwire.holders (used);
        CREATE INDEX holders_by_owner ON toolwire.holders (owner, used) INCLUDE (size);

        CREATE TABLE toolwire.items (
            holder text COLLATE "C" NOT NULL,
            made smallint NOT NULL,
            place bigint NOT NULL,
            id text COLLATE "C" NOT NULL,
            whole_id bytea,
            owner text COLLATE "C" NOT NULL,
            call text COLLATE "C",
            item bytea NOT NULL,
            PRIMARY KEY (holder, made, place)
        );
        CREATE INDEX items_by_id ON toolwire.items (owner, id);
        CREATE INDEX items_by_call ON toolwire.items (owner, call) WHERE call IS NOT NULL;

        CREATE TABLE toolwire.runs (
            id text COLLATE "C" PRIMARY KEY,
            owner text COLLATE "C" NOT NULL,
            member text COLLATE "C" NOT NULL,
            epoch bigint NOT NULL,
            is_over boolean NOT NULL DEFAULT false,
            is_started boolean NOT NULL DEFAULT false,
            is_cancelled boolean NOT NULL DEFAULT false,
            claimed text NOT NULL DEFAULT '',
            plan bytea NOT NULL
        ) WITH (fillfactor = 50);
        CREATE INDEX runs_by_member ON toolwire.runs (member) WHERE NOT is_over;
        CREATE INDEX runs_cancelled ON toolwire.runs (member) WHERE is_cancelled AND NOT is_over;

        CREATE TABLE toolwire.journal (
            response text COLLATE "C" NOT NULL,
            first bigint NOT NULL,
            count bigint NOT NULL,
            epoch bigint NOT NULL,
            frames bytea NOT NULL,
            PRIMARY KEY (response, first)
        );

        CREATE TABLE toolwire.members (
            id text COLLATE "C" PRIMARY KEY,
            host text NOT NULL,
            socket text NOT NULL,
            lasts float8 NOT NULL,
            until timestamptz NOT NULL,
            since timestamptz NOT NULL DEFAULT now()
        ) WITH (fillfactor = 50);

        CREATE SEQUENCE toolwire.epochs;
        CREATE TABLE toolwire.leases (
            name text COLLATE "C" PRIMARY KEY,
            member text COLLATE "C" NOT NULL,
            epoch bigint NOT NULL,
            step bigint NOT NULL DEFAULT 0,
            moved_by text NOT NULL DEFAULT ''
        ) WITH (fillfactor = 50);
        CREATE INDEX leases_by_member ON toolwire.leases (member);

        CREATE TABLE toolwire.kept (
            owner text COLLATE "C" NOT NULL,
            kind text COLLATE "C" NOT NULL,
            digest bytea NOT NULL,
            key bytea NOT NULL,
            value bytea NOT NULL,
            size bigint NOT NULL,
            used timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (owner, kind, digest)
        );
        CREATE INDEX kept_by_use ON toolwire.kept (used);
        CREATE INDEX kept_by_owner ON toolwire.kept (owner, used) INCLUDE (size);

        CREATE TABLE toolwire.dropped (
            holder text COLLATE "C" PRIMARY KEY,
            dropped_by text NOT NULL
        );
        CREATE TABLE toolwire.probes (id text PRIMARY KEY, data bytea NOT NULL);
        """,
        needs=1,
    ),
    Step("CREATE INDEX holders_by_previous ON toolwire.holders (previous) WHERE previous <> '';", needs=1),
    Step(
        f"""
        CREATE FUNCTION toolwire.count_runs(of_owner text, OUT in_all bigint, OUT owned bigint)
        LANGUAGE plpgsql VOLATILE AS $$
        BEGIN
            PERFORM pg_advisory_xact_lock({RUNS_LOCK});
            SELECT count(*), count(*) FILTER (WHERE r.owner = of_owner) INTO in_all, owned
            FROM toolwire.runs r WHERE NOT r.is_over;
        END
        $$;
        """,
        needs=1,
    ),
)
"""Step n makes version n, counted from 1."""

VERSION = len(STEPS)

FRAGMENTS = {
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
    "alive": "greatest(m.until, pg_postmaster_start_time() + m.lasts * interval '1 second') > now()",
    "judge": "j.id = :judge AND j.until > now() + j.lasts / 2 * interval '1 second'",
    "dead": "NOT {alive} AND j.since <= now() - m.lasts * interval '1 second'",
    "join": """
        INSERT INTO toolwire.members (id, host, socket, lasts, until)
        VALUES (:id, :host, '', :lease, now() + :lease * interval '1 second')
        ON CONFLICT (id) DO UPDATE SET host = excluded.host, lasts = excluded.lasts, until = excluded.until,
            since = excluded.since
    """,
    "beat": """
        UPDATE toolwire.members SET until = now() + lasts * interval '1 second',
            since = CASE WHEN until < now() + lasts / 2 * interval '1 second' THEN now() ELSE since END
        WHERE id = :member RETURNING 1
    """,
    "restore_item": """
        WITH holder AS (
            UPDATE toolwire.holders SET places = greatest(places, :place::bigint + 1)
            WHERE id = :holder AND owner = :owner RETURNING 1
        )
        INSERT INTO toolwire.items (holder, owner, made, place, id, whole_id, call, item)
        SELECT :holder, :owner, :made, :place, :id, :whole_id, :call, :item FROM holder ON CONFLICT DO NOTHING
    """,
    "restore_events": """
        INSERT INTO toolwire.journal (response, first, count, epoch, frames)
        SELECT :holder, :first, :count, 0, :frames FROM toolwire.holders WHERE id = :holder AND owner = :owner
        ON CONFLICT DO NOTHING
    """,
}
"""What `{name}` stands for in a shared statement.

A member is `alive` until its lease ends. While the database was away no member could extend it: after a start of the
database each has a whole lease again. `judge` is a member that has sent its heartbeats in time since `since`: one more
than half a lease late begins that time anew, and members send four in a lease. `dead` is a member that sent none for a
lease in which the judge could.
"""

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
        for number, step in enumerate(STEPS[version:], version + 1):
            await connection.execute(step.statements)
            change = "UPDATE toolwire.schema_version SET version = $1, needs = greatest(needs, $2)"
            await connection.fetch(change, number, step.needs)
    except BaseException:
        if not connection.is_closed():
            await connection.execute("ROLLBACK")
        raise
    await connection.execute("COMMIT")
