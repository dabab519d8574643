"""The tables of the SQLite store, the migrations of older files, and the fragments of shared statements.

Table `schema` has one row: the version of the file, and the oldest version of the program's schema that can still use
it. Migrations only add, so that processes of two versions can use one file during an upgrade. A program opens a file of
a newer version if that row permits it. Version 1, of Toolwire 0.1.0, had no such row and was for one process.
"""

import sqlite3
import time

from toolwire.memory.sql.responses import call_id_of
from toolwire.memory.store import UNFINISHED, StoreFailed

VERSION = 3
"""The version of a file that this program creates."""
COMPATIBLE = 2
"""The oldest version whose programs can use such a file."""

_VERSION_1 = """
CREATE TABLE IF NOT EXISTS kept (
    id INTEGER PRIMARY KEY, owner TEXT NOT NULL, kind TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
    size INTEGER NOT NULL, used REAL NOT NULL, UNIQUE (owner, kind, key)
);
CREATE INDEX IF NOT EXISTS kept_by_use ON kept (used);
CREATE INDEX IF NOT EXISTS kept_by_owner ON kept (owner, used, size);
CREATE TABLE IF NOT EXISTS holders (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, kind TEXT NOT NULL, created REAL NOT NULL, used REAL NOT NULL,
    size INTEGER NOT NULL, status TEXT NOT NULL, previous TEXT NOT NULL, conversation TEXT NOT NULL,
    continuation TEXT NOT NULL, fields BLOB NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS holders_by_use ON holders (used);
CREATE TABLE IF NOT EXISTS items (
    holder TEXT NOT NULL, place INTEGER NOT NULL, made INTEGER NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL,
    item BLOB NOT NULL, PRIMARY KEY (holder, made, place)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS items_by_id ON items (owner, id);
CREATE TABLE IF NOT EXISTS events (
    holder TEXT NOT NULL, first INTEGER NOT NULL, owner TEXT NOT NULL, frames BLOB NOT NULL, PRIMARY KEY (holder, first)
) WITHOUT ROWID
"""

_VERSION_2 = """
DROP INDEX IF EXISTS holders_by_owner;
CREATE INDEX holders_shares ON holders (owner, used, size, kind);
ALTER TABLE items ADD COLUMN call_id TEXT NOT NULL DEFAULT '';
CREATE INDEX items_by_call ON items (owner, call_id) WHERE call_id != '';
ALTER TABLE events ADD COLUMN count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
CREATE TABLE runs (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, member TEXT NOT NULL, epoch INTEGER NOT NULL, is_over INTEGER NOT NULL,
    is_started INTEGER NOT NULL, is_cancelled INTEGER NOT NULL, plan BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX runs_by_member ON runs (member, is_cancelled) WHERE is_over = 0;
CREATE TABLE members (
    id TEXT PRIMARY KEY, host TEXT NOT NULL, socket TEXT NOT NULL, boot TEXT NOT NULL, beat REAL NOT NULL,
    lease REAL NOT NULL, since REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE leases (
    name TEXT PRIMARY KEY, member TEXT NOT NULL, epoch INTEGER NOT NULL, step INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX leases_by_member ON leases (member);
CREATE TABLE epochs (latest INTEGER NOT NULL);
INSERT INTO epochs VALUES (0);
CREATE TABLE schema (version INTEGER NOT NULL, compatible INTEGER NOT NULL);
INSERT INTO schema VALUES (2, 2)
"""

_VERSION_3 = """
CREATE INDEX holders_by_previous ON holders (previous) WHERE previous != '';
UPDATE schema SET version = 3
"""


FRAGMENTS = {
    "journal": "events",
    "response": "holder",
    "no_bytes": "x''",
    "ids": "(SELECT value AS id FROM json_each(:ids)) AS given",
    "whole_id": "NULL",
    "next_place": "(SELECT coalesce(max(place), -1) + 1 FROM items WHERE holder = c.id AND made = 0)",
    "add_places": "",
    "item_columns": "call_id",
    "item_values": "coalesce(:call, '')",
    "item_updates": "call_id = excluded.call_id",
    "is_answered": "i.call_id <> '' AND i.call_id = ANY (:answered)",
    "key_columns": "key",
    "key_values": ":key",
    "key_index": "key",
    "by_share": " INDEXED BY holders_shares",
    "next_epoch": "(SELECT latest + 1 FROM epochs)",
    "alive": "m.boot = :boot AND m.beat <= :uptime AND m.beat + m.lease >= :uptime",
    "judge": "j.id = :judge AND j.boot = :boot AND j.beat <= :uptime AND j.beat + j.lease / 2 >= :uptime",
    "dead": """
        m.boot = :boot AND m.beat <= :uptime AND m.beat + m.lease < :uptime AND j.since + m.lease <= :uptime
    """,
    "join": """
        INSERT OR REPLACE INTO members (id, host, socket, boot, beat, lease, since)
        VALUES (:id, :host, '', :boot, :uptime, :lease, :uptime)
    """,
    "beat": """
        UPDATE members SET beat = :uptime, since = CASE WHEN beat + lease / 2 < :uptime THEN :uptime ELSE since END
        WHERE id = :member AND boot = :boot AND beat <= :uptime RETURNING 1
    """,
    "restore_item": """
        INSERT INTO items (holder, made, place, id, owner, item, call_id)
        SELECT :holder, :made, :place, :id, :owner, :item, coalesce(:call, '')
        FROM holders WHERE id = :holder AND owner = :owner ON CONFLICT DO NOTHING
    """,
    "restore_events": """
        INSERT INTO events (holder, first, owner, frames, count)
        SELECT :holder, :first, :owner, :frames, :count
        FROM holders WHERE id = :holder AND owner = :owner ON CONFLICT DO NOTHING
    """,
}
"""What `{name}` stands for in a shared statement.

A member is `alive` if its latest heartbeat is at most a lease old; times are those since the start of the machine, by
its id. `judge` is a member that has sent its heartbeats in time since `since`: a heartbeat more than half a lease late
begins that time anew, and members send four in a lease. `dead` is a member that sent none for a lease in which the
judge could.
"""


def version_of(database: sqlite3.Connection) -> int:
    """The version of a file; 0 if it has no tables. Raises if this program cannot use it."""
    if _has_table(database, "schema"):
        version, compatible = database.execute("SELECT version, compatible FROM schema").fetchone()
        if compatible > VERSION:
            raise StoreFailed(
                "newer",
                f"it has version {version} of the schema, for programs that know version {compatible}; "
                f"this one knows version {VERSION}. Use a newer toolwire, or another file",
            )
        return version
    return 1 if _has_table(database, "items") else 0


def migrate(database: sqlite3.Connection, timeout: float) -> None:
    """Bring a file to this version, once, even if several processes try at the same time."""
    use_log(database, timeout)
    if version_of(database) >= VERSION:
        return
    database.execute("BEGIN IMMEDIATE")
    try:
        version = version_of(database)
        if version < 2:
            _execute_all(database, _VERSION_1 + ";" + _VERSION_2)
            _complete_rows(database)
        if version < VERSION:
            _execute_all(database, _VERSION_3)
        database.execute("COMMIT")
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def _execute_all(database: sqlite3.Connection, statements: str) -> None:
    for statement in statements.split(";"):
        database.execute(statement)


def use_log(database: sqlite3.Connection, timeout: float) -> None:
    """Switch to a write-ahead log.

    SQLite does not apply its timeout here: two processes that switch at once get an error at once. So retry.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            if database.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                database.execute("PRAGMA auto_vacuum = INCREMENTAL")
                database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _complete_rows(database: sqlite3.Connection) -> None:
    """Fill in what rows of version 1 lack: counts of events, the calls of items, and unfinished runs."""

    def count_frames(frames: bytes) -> int:
        return frames.count(b"\n\n")

    database.create_function("count_frames", 1, count_frames, deterministic=True)
    database.execute("UPDATE events SET count = count_frames(frames)")
    database.create_function("call_id_of", 1, call_id_of, deterministic=True)
    database.execute(
        "UPDATE items SET call_id = call_id_of(item) WHERE made = 1 "
        "AND holder IN (SELECT id FROM holders WHERE conversation != '')"
    )
    database.execute(  # marked as started: it is not known what they did, so they are never run again
        "INSERT INTO runs SELECT id, owner, '', 0, 0, 1, 0, x'' FROM holders WHERE kind = 'response' "
        "AND status IN (?, ?)",
        UNFINISHED,
    )


def _has_table(database: sqlite3.Connection, name: str) -> bool:
    return database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None
