"""How responses and conversations are written: each change is one transaction, and may be tried again.

A response that is over stays as it is, so what became of a write that failed need not be known.
"""

import sqlite3
from collections.abc import Iterable, Sequence

from toolwire.memory.sqlite.engine import Engine, Transaction
from toolwire.memory.sqlite.guards import check_guard, run_epoch
from toolwire.memory.sqlite.schema import call_id_of
from toolwire.memory.store import (
    UNFINISHED,
    Conversation,
    Effects,
    EventChunk,
    Fence,
    Guard,
    KeptItem,
    Kind,
    Lease,
    Overtaken,
    Record,
)

GIVEN, MADE = 0, 1
IDS_AT_ONCE = 500
"""Ids in one query; SQLite has a limit."""

_INSERT_ITEM = (
    "INSERT OR REPLACE INTO items (holder, place, made, id, owner, item, call_id) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_SIZE = """
SELECT (SELECT COALESCE(SUM(LENGTH(item)), 0) FROM items WHERE holder = :id)
    + (SELECT COALESCE(SUM(LENGTH(frames)), 0) FROM events WHERE holder = :id)
"""
"""Bytes of the items and events of a response."""
_INSERT_HOLDER = """
INSERT INTO holders (id, owner, kind, created, used, size, status, previous, conversation, continuation, fields, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
used = excluded.used, size = excluded.size, status = excluded.status, body = excluded.body
"""
INSERT_EVENTS = """
INSERT INTO events (holder, first, owner, frames, count, epoch) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""


class Writing(Engine):
    """The part of the store that changes responses and conversations."""

    async def save(
        self,
        owner: str,
        record: Record,
        given: Sequence[KeptItem] | None,
        made: Sequence[KeptItem],
        effects: Effects = Effects(),  # noqa: B008 - frozen
        *,
        guard: Guard | None = None,
        last: EventChunk | None = None,
    ) -> None:
        """Keep a response, or its new state. `given` is None when its input is kept already."""
        await self._write(self._save, owner, record, given, made, effects, guard, last)

    async def delete(self, owner: str, id: str, kind: Kind = "response") -> bool:
        """Forget a response or a conversation; a run of it is lost to whoever has it."""
        return await self._write(self._delete, owner, id, kind)

    async def put_conversation(self, owner: str, conversation: Conversation) -> None:
        await self._write(self._put_conversation, owner, conversation)

    async def add_items(self, owner: str, holder: str, items: Sequence[KeptItem]) -> None:
        """Add items to a conversation, if it is still there. Items that are there already are not added again."""
        await self._write(self._add_items, owner, holder, items)

    async def add_turn(self, owner: str, id: str, items: Sequence[KeptItem], effects: Effects, guard: Lease) -> None:
        """Add all items of a turn to its conversation, if that is still there; the response of this id is not kept."""
        await self._write(self._add_turn, owner, id, items, effects, guard)

    async def delete_item(self, owner: str, holder: str, id: str) -> bool:
        return await self._write(self._delete_item, owner, holder, id)

    # In the thread that writes

    def _save(
        self,
        database: sqlite3.Connection,
        owner: str,
        record: Record,
        given: Sequence[KeptItem] | None,
        made: Sequence[KeptItem],
        effects: Effects,
        guard: Guard | None,
        last: EventChunk | None,
    ) -> None:
        with Transaction(database):
            taken = database.execute("SELECT owner, status FROM holders WHERE id = ?", (record.id,)).fetchone()
            if taken is not None and taken[0] != owner:
                return
            if isinstance(guard, Fence):
                self._check(database, guard)
            if taken is not None and taken[1] not in UNFINISHED:
                return
            if not isinstance(guard, Fence):
                self._check_unfenced(database, record.id, guard, is_new=taken is None)
            self._put_items(database, owner, record, given or (), made)
            if isinstance(guard, Fence):
                self._put_state(database, owner, record, guard, last)
            size = self._size_of(database, record, given or (), made, is_new=taken is None)
            self._put_holder(database, owner, record, size)
            self._apply(database, owner, record.id, effects, [*(given or ()), *made])

    def _check(self, database: sqlite3.Connection, guard: Guard) -> None:
        check_guard(database, guard)

    def _check_unfenced(self, database: sqlite3.Connection, id: str, guard: Guard | None, *, is_new: bool) -> None:
        """A response with a run is written with the fence of that alone."""
        if guard is not None:
            self._check(database, guard)
        if not is_new and run_epoch(database, id) is not None:
            raise Overtaken(Fence(id, 0))

    def _put_items(
        self,
        database: sqlite3.Connection,
        owner: str,
        record: Record,
        given: Sequence[KeptItem],
        made: Sequence[KeptItem],
    ) -> None:
        rows: list[tuple[object, ...]] = [
            (record.id, place, GIVEN, item.id, owner, item.raw, "") for place, item in enumerate(given)
        ]
        for place, item in enumerate(made):
            call = call_id_of(bytes(item.raw)) if record.conversation else ""
            rows.append((record.id, place, MADE, item.id, owner, item.raw, call))
        database.executemany(_INSERT_ITEM, rows)

    def _put_state(
        self, database: sqlite3.Connection, owner: str, record: Record, fence: Fence, last: EventChunk | None
    ) -> None:
        """The last events of a run, and its end."""
        if last is not None:
            self._put_events(database, owner, fence, last)
        if record.is_over:
            database.execute("UPDATE runs SET is_over = 1, plan = x'' WHERE id = ?", (record.id,))

    def _put_events(self, database: sqlite3.Connection, owner: str, fence: Fence, chunk: EventChunk) -> None:
        row = (fence.id, chunk.first, owner, chunk.frames, chunk.count, fence.epoch)
        database.execute(INSERT_EVENTS, row)

    def _size_of(
        self,
        database: sqlite3.Connection,
        record: Record,
        given: Sequence[KeptItem],
        made: Sequence[KeptItem],
        *,
        is_new: bool,
    ) -> int:
        own = len(record.fields) + len(record.response)
        if is_new:
            return own + _bytes_of(given) + _bytes_of(made)
        return own + database.execute(_SIZE, {"id": record.id}).fetchone()[0]

    def _put_holder(
        self, database: sqlite3.Connection, owner: str, record: Record, size: int, kind: Kind = "response"
    ) -> None:
        database.execute(
            _INSERT_HOLDER,
            (
                record.id,
                owner,
                kind,
                record.created,
                self._clock(),
                size,
                record.status,
                record.previous,
                record.conversation,
                record.continuation,
                record.fields,
                record.response,
            ),
        )

    def _apply(
        self, database: sqlite3.Connection, owner: str, id: str, effects: Effects, items: Sequence[KeptItem]
    ) -> None:
        if effects.link is not None:
            linked, continuation = effects.link
            change = "UPDATE holders SET continuation = ? WHERE id = ? AND owner = ?"
            database.execute(change, (continuation, linked, owner))
        if effects.conversation:
            self._link_callers(database, owner, id, effects)
            self._append_items(database, owner, effects.conversation, items)

    def _link_callers(self, database: sqlite3.Connection, owner: str, continuation: str, effects: Effects) -> None:
        """Link the responses of the conversation that made the answered calls."""
        change = (
            "UPDATE holders SET continuation = ? WHERE owner = ? AND conversation = ? AND id IN (SELECT holder "
            "FROM items WHERE owner = ? AND made = 1 AND call_id = ? AND call_id != '')"
        )
        for call in effects.answered:
            database.execute(change, (continuation, owner, effects.conversation, owner, call))

    def _put_conversation(self, database: sqlite3.Connection, owner: str, conversation: Conversation) -> None:
        record = Record(conversation.id, conversation.created, "", b"", conversation.metadata)
        with Transaction(database):
            taken = database.execute("SELECT owner, kind FROM holders WHERE id = ?", (conversation.id,)).fetchone()
            if taken is not None and taken != (owner, "conversation"):
                return
            size = database.execute(_SIZE, {"id": conversation.id}).fetchone()[0] + len(conversation.metadata)
            self._put_holder(database, owner, record, size, "conversation")

    def _add_turn(
        self,
        database: sqlite3.Connection,
        owner: str,
        id: str,
        items: Sequence[KeptItem],
        effects: Effects,
        guard: Lease,
    ) -> None:
        with Transaction(database):
            self._check(database, guard)
            self._apply(database, owner, id, effects, items)

    def _add_items(self, database: sqlite3.Connection, owner: str, holder: str, items: Sequence[KeptItem]) -> None:
        with Transaction(database):
            known = _known_ids(database, owner, holder, [item.id for item in items if item.id])
            self._append_items(database, owner, holder, [item for item in items if item.id not in known])

    def _append_items(self, database: sqlite3.Connection, owner: str, holder: str, items: Sequence[KeptItem]) -> None:
        """Add items behind the others of a conversation that is there."""
        change = "UPDATE holders SET used = ?, size = size + ? WHERE id = ? AND owner = ? AND kind = 'conversation'"
        if not database.execute(change, (self._clock(), _bytes_of(items), holder, owner)).rowcount:
            return
        query = "SELECT COALESCE(MAX(place), -1) + 1 FROM items WHERE holder = ? AND made = 0"
        first = database.execute(query, (holder,)).fetchone()[0]
        database.executemany(
            _INSERT_ITEM,
            [(holder, first + place, GIVEN, item.id, owner, item.raw, "") for place, item in enumerate(items)],
        )

    def _delete(self, database: sqlite3.Connection, owner: str, id: str, kind: Kind) -> bool:
        query = "SELECT previous FROM holders WHERE id = ? AND owner = ? AND kind = ?"
        with Transaction(database):
            found = database.execute(query, (id, owner, kind)).fetchone()
            if found is None:
                return False
            if kind == "response" and _is_continued(database, owner, id):
                _hide(database, id)
                return True
            forget(database, [id])
            while kind == "response" and found is not None:  # deleted before, and kept for this one alone
                [previous] = found
                found = database.execute(query, (previous, owner, "deleted")).fetchone()
                if found is None or _is_continued(database, owner, previous):
                    break
                forget(database, [previous])
        return True

    def _delete_item(self, database: sqlite3.Connection, owner: str, holder: str, id: str) -> bool:
        which = "DELETE FROM items WHERE holder = ? AND owner = ? AND made = 0 AND id = ? RETURNING LENGTH(item)"
        with Transaction(database):
            gone = database.execute(which, (holder, owner, id)).fetchall()
            size = sum(row[0] for row in gone)
            database.execute("UPDATE holders SET size = size - ? WHERE id = ?", (size, holder))
        return bool(gone)


def forget(database: sqlite3.Connection, holders: Iterable[str]) -> None:
    """Delete holders with all that belongs to them."""
    gone = [(id,) for id in holders]
    for table, column in (("holders", "id"), ("items", "holder"), ("events", "holder"), ("runs", "id")):
        database.executemany(f"DELETE FROM {table} WHERE {column} = ?", gone)


def _is_continued(database: sqlite3.Connection, owner: str, id: str) -> bool:
    query = "SELECT 1 FROM holders WHERE previous = ? AND previous != '' AND owner = ? LIMIT 1"
    return database.execute(query, (id, owner)).fetchone() is not None


def _hide(database: sqlite3.Connection, id: str) -> None:
    """Leave nothing of a response but its items, for those who continue it."""
    for table, column in (("events", "holder"), ("runs", "id")):
        database.execute(f"DELETE FROM {table} WHERE {column} = ?", (id,))
    size = database.execute(_SIZE, {"id": id}).fetchone()[0]
    change = "UPDATE holders SET kind = 'deleted', status = '', fields = x'', body = x'', size = ? WHERE id = ?"
    database.execute(change, (size, id))


def _bytes_of(items: Sequence[KeptItem]) -> int:
    return sum(len(item.raw) for item in items)


def _known_ids(database: sqlite3.Connection, owner: str, holder: str, ids: Sequence[str]) -> set[str]:
    known: set[str] = set()
    for start in range(0, len(ids), IDS_AT_ONCE):
        some = ids[start : start + IDS_AT_ONCE]
        marks = ",".join("?" * len(some))
        query = f"SELECT id FROM items WHERE owner = ? AND holder = ? AND made = 0 AND id IN ({marks})"
        known.update(row[0] for row in database.execute(query, (owner, holder, *some)))
    return known
