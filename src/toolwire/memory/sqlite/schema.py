"""The tables of the SQLite store, the migrations of older files, and the statements.

Table `schema` has one row: the version of the file, and the oldest version whose programs can still use it. Migrations
only add, so that processes of two versions can use one file during an upgrade. A program opens a file of a newer
version if that row permits it. Version 1, of Toolwire 0.1.0, had no such row and was for one process.
"""

import sqlite3
import time
from pathlib import Path

from toolwire.memory.sql.responses import call_id_of
from toolwire.memory.sql.statements import Statements, read_statements
from toolwire.memory.store import UNFINISHED, StoreFailed

VERSION = 6
"""The version of a file that this program creates."""
COMPATIBLE = 2
"""The oldest version whose programs can use such a file."""

_TABLES = read_statements(Path(__file__).with_name("tables.sql"))

STATEMENTS = Statements(
    {
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
        **read_statements(Path(__file__).with_name("statements.sql")),
    },
    is_sqlite=True,
)
"""All statements, with what differs in SQLite's tables."""


def version_of(database: sqlite3.Connection) -> int:
    """The version of a file; 0 if it has no tables. Raises if this program cannot use it."""
    if _has_table(database, "schema"):
        version, compatible = database.execute("SELECT version, compatible FROM schema").fetchone()
        if compatible > VERSION:
            raise StoreFailed(
                "newer",
                f"its schema has version {version} and needs a program that knows at least version {compatible}; "
                f"this one knows version {VERSION}. Use a newer toolwire, or another file",
            )
        return version
    return 1 if _has_table(database, "items") else 0


def migrate(database: sqlite3.Connection, timeout: float) -> None:
    """Migrate a file to this version, once, even if several processes try at the same time."""
    use_log(database, timeout)
    if version_of(database) >= VERSION:
        return
    database.execute("BEGIN IMMEDIATE")
    try:
        version = version_of(database)
        if version < 2:
            _execute_all(database, "version_1", "version_2")
            _complete_rows(database)
        for step in range(max(version, 2) + 1, VERSION + 1):
            _execute_all(database, f"version_{step}")
        database.execute("COMMIT")
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def _execute_all(database: sqlite3.Connection, *names: str) -> None:
    for name in names:
        for statement in _TABLES[name].split(";"):
            database.execute(statement)


def use_log(database: sqlite3.Connection, timeout: float) -> None:
    """Switch to a write-ahead log.

    SQLite does not apply its timeout here: if two processes switch at once, one gets an error immediately. So retry.
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
    database.execute(  # marked as started: what they did is unknown, so they are never run again
        "INSERT INTO runs SELECT id, owner, '', 0, 0, 1, 0, x'' FROM holders WHERE kind = 'response' "
        "AND status IN (?, ?)",
        UNFINISHED,
    )


def _has_table(database: sqlite3.Connection, name: str) -> bool:
    return database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None
