"""The tables of the SQLite store, and how a file of an earlier version gets them.

Table `schema` has one row: the version of the file, and the oldest version of the program's schema that can still use
it. Changes only add, so that processes of two versions can use one file while they are being replaced. A program opens
a file with a newer version if that says that it can; otherwise it says which version it would need. Version 1, of
before there was such a row, was for one process.
"""

import sqlite3
import time
from typing import Any

import msgspec

from toolwire.memory.store import UNFINISHED, StoreFailed

VERSION = 3
"""The version that this program makes of a file."""
COMPATIBLE = 2
"""The oldest version of the schema whose programs can use such a file."""

_BASE = """
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
"""Version 1."""

_FOR_MANY = """
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
"""From version 1 to 2."""

_BY_PREVIOUS = """
CREATE INDEX holders_by_previous ON holders (previous) WHERE previous != '';
UPDATE schema SET version = 3
"""
"""From version 2 to 3."""


class _Call(msgspec.Struct):
    call_id: Any = None


_decode_call = msgspec.json.Decoder(_Call).decode


def call_id_of(item: bytes) -> str:
    """The call that an item of an output is, if it is one."""
    if b'"call_id"' not in item:
        return ""
    try:
        found = _decode_call(item).call_id
    except msgspec.DecodeError:
        return ""
    return found if isinstance(found, str) else ""


def version_of(database: sqlite3.Connection) -> int:
    """The version of a file; 0 if it has no tables. Raises if it is of a version that this program cannot use."""
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


def migrate(database: sqlite3.Connection, patience: float) -> None:
    """Bring a file to this version, once, whoever else tries the same."""
    use_log(database, patience)
    if version_of(database) >= VERSION:
        return
    database.execute("BEGIN IMMEDIATE")
    try:
        version = version_of(database)
        if version < 2:
            _execute_all(database, _BASE + ";" + _FOR_MANY)
            _fill_in(database)
        if version < VERSION:
            _execute_all(database, _BY_PREVIOUS)
        database.execute("COMMIT")
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def _execute_all(database: sqlite3.Connection, statements: str) -> None:
    for statement in statements.split(";"):
        database.execute(statement)


def use_log(database: sqlite3.Connection, patience: float) -> None:
    """Switch to a write-ahead log. Two that do so at once get an error at once, whatever their patience; so wait."""
    deadline = time.monotonic() + patience
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


def _fill_in(database: sqlite3.Connection) -> None:
    """What rows of version 1 did not say: how many events they hold, which calls items are, and what is to be run."""
    database.create_function("frames_in", 1, _frames_in, deterministic=True)
    database.execute("UPDATE events SET count = frames_in(frames)")
    database.create_function("call_id_of", 1, call_id_of, deterministic=True)
    database.execute(
        "UPDATE items SET call_id = call_id_of(item) WHERE made = 1 "
        "AND holder IN (SELECT id FROM holders WHERE conversation != '')"
    )
    database.execute(  # whatever they had begun is not known, so they are never begun again
        "INSERT INTO runs SELECT id, owner, '', 0, 0, 1, 0, x'' FROM holders WHERE kind = 'response' "
        "AND status IN (?, ?)",
        UNFINISHED,
    )


def _frames_in(frames: bytes) -> int:
    return frames.count(b"\n\n")


def _has_table(database: sqlite3.Connection, name: str) -> bool:
    return database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None
