"""How responses and conversations are read: a chain, a page of items and a reference to one item are each one query."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from toolwire.memory.sqlite.engine import Engine
from toolwire.memory.sqlite.writing import GIVEN, IDS_AT_ONCE, MADE
from toolwire.memory.store import NO_BOUND, Conversation, KeptItem, Kind, OwnedRecord, Page, Record, TooLarge

Raw = msgspec.Raw

TOUCH_AFTER = 3600.0
"""Seconds after which what is in use is marked as used again; less if things are kept for less than a day."""

RECORD = "id, created, status, fields, body, previous, conversation, continuation"

_CHAIN = """
WITH RECURSIVE chain (id, previous, used, depth) AS (
    SELECT id, previous, used, 0 FROM holders WHERE id = ? AND owner = ? AND kind = 'response'
    UNION ALL
    SELECT h.id, h.previous, h.used, depth + 1 FROM chain JOIN holders h
    ON h.id = chain.previous AND h.owner = ? AND h.kind IN ('response', 'deleted') WHERE depth < 100000
)
"""
"""A response and all it continues; three values: its id, and its owner twice."""

_NOT_DELETED = "NOT EXISTS (SELECT 1 FROM holders WHERE id = holder AND kind = 'deleted')"
"""That the holder of an item may be seen."""

_SIZES = "(SELECT COALESCE(SUM(LENGTH(item)), 0) FROM items WHERE holder = chain.id)"

_BEFORE = """
FROM items JOIN holders h ON h.id = :id AND holder = h.conversation
WHERE place < (SELECT MIN(place) FROM items WHERE holder = h.conversation AND id IN
    (SELECT id FROM items WHERE holder = :id)) ORDER BY place
"""
"""What stood in the conversation of a response before it."""

_LATEST = """
SELECT items.id, holder, made, place, LENGTH(item), MAX(used) FROM items JOIN holders ON holders.id = holder
WHERE items.owner = ? AND items.id IN ({marks}) AND kind != 'deleted' GROUP BY items.id
"""
"""Where items with these ids are kept; of two with one id, the one used last."""


_RECENT = """
WITH latest AS (
    SELECT *, SUM(LENGTH(body)) OVER (ORDER BY used DESC, id DESC) AS total FROM (
        SELECT * FROM holders WHERE kind = 'response' AND used >= :oldest {whose}
        ORDER BY used DESC, id DESC LIMIT :limit
    )
)
SELECT owner, id, created, status, x'', CASE WHEN total <= :most THEN body ELSE x'' END, previous, conversation,
    continuation FROM latest ORDER BY used DESC, id DESC
"""


class Reading(Engine):
    """The part of the store that reads responses and conversations."""

    async def load(self, owner: str, id: str) -> Record | None:
        return await self._read(self._load, owner, id)

    async def recent(self, owner: str | None, limit: int, most: int) -> list[OwnedRecord]:
        """Responses of an owner, or of everybody, those used last first."""
        return await self._read(self._recent, owner, limit, most)

    async def input(self, owner: str, holder: str, most: int = NO_BOUND) -> list[Raw]:
        """The input of a response, or a whole conversation."""
        return await self._read(self._side, owner, holder, GIVEN, most)

    async def output(self, owner: str, id: str) -> list[Raw]:
        """The output of a response."""
        return await self._read(self._side, owner, id, MADE)

    async def chain(self, owner: str, id: str, most: int = NO_BOUND) -> list[Raw] | None:
        """Everything said up to and with this response, oldest first; None if a link of the chain is missing."""
        found = await self._read(self._chain, owner, id, most)
        if found is None:
            return None
        items, used = found
        now = self._clock()
        if now - used > self._touch_after():
            # Marked as used by and by: reading must not wait for a write, nor fail with it.
            self._submit_unheard(self._touch, owner, id, now)
        return items

    async def missing_link(self, owner: str, id: str) -> str:
        """The latest response of a chain that is not there; nothing if the chain is whole."""
        return await self._read(self._missing_link, owner, id)

    async def page(
        self, owner: str, holder: str, after: str, limit: int, order: str, most: int = NO_BOUND
    ) -> Page | None:
        """Some of the input of a response, or of a conversation; None if `after` is none of its items.

        A page ends before `most` bytes; its first item is there whatever its size.
        """
        return await self._read(self._page, owner, holder, after, limit, order, most)

    async def find(self, owner: str, ids: Sequence[str], most: int = NO_BOUND) -> dict[str, Raw]:
        """Items by their ids, wherever they are kept; an id counts as often as it is given."""
        return await self._read(self._find, owner, ids, most)

    async def conversation(self, owner: str, id: str) -> Conversation | None:
        record = await self._read(self._load, owner, id, "conversation")
        return None if record is None else Conversation(record.id, record.created, record.response)

    async def item(self, owner: str, holder: str, id: str) -> Raw | None:
        """One item of a conversation."""
        return await self._read(self._item, owner, holder, id)

    def _touch_after(self) -> float:
        return min(TOUCH_AFTER, self._max_age / 24) if self._max_age else TOUCH_AFTER

    def _touch(self, database: sqlite3.Connection, owner: str, id: str, now: float) -> None:
        change = _CHAIN + "UPDATE holders SET used = ? WHERE id IN (SELECT id FROM chain WHERE used < ?)"
        database.execute(change, (id, owner, owner, now, now - self._touch_after()))

    def _load(self, database: sqlite3.Connection, owner: str, id: str, kind: Kind = "response") -> Record | None:
        query = f"SELECT {RECORD} FROM holders WHERE id = ? AND owner = ? AND kind = ? AND used >= ?"
        row = database.execute(query, (id, owner, kind, self._oldest())).fetchone()
        return Record(*row) if row is not None else None

    def _recent(self, database: sqlite3.Connection, owner: str | None, limit: int, most: int) -> list[OwnedRecord]:
        query = _RECENT.format(whose="" if owner is None else "AND owner = :owner")
        given = {"owner": owner, "oldest": self._oldest(), "limit": limit, "most": most}
        return [OwnedRecord(row[0], Record(*row[1:])) for row in database.execute(query, given)]

    def _side(
        self, database: sqlite3.Connection, owner: str, holder: str, side: int, most: int = NO_BOUND
    ) -> list[Raw]:
        where = f"FROM items WHERE holder = ? AND owner = ? AND made = ? AND {_NOT_DELETED}"
        given = (holder, owner, side)
        if most < NO_BOUND:
            _check_size(database.execute(f"SELECT COALESCE(SUM(LENGTH(item)), 0) {where}", given).fetchone()[0], most)
        return _raws(database, f"SELECT item {where} ORDER BY place", given)

    def _chain(self, database: sqlite3.Connection, owner: str, id: str, most: int) -> tuple[list[Raw], float] | None:
        """The items, and when the link of them that was used longest ago was used."""
        given = (id, owner, owner)
        query = _CHAIN + f"SELECT id, previous, {_SIZES}, used FROM chain ORDER BY depth"
        links = database.execute(query, given).fetchall()
        if not links or links[-1][1]:  # the oldest one still points at an earlier one
            return None
        oldest = {"id": links[-1][0]}
        before = database.execute(f"SELECT COALESCE(SUM(size), 0) FROM (SELECT LENGTH(item) size {_BEFORE})", oldest)
        _check_size(before.fetchone()[0] + sum(link[2] for link in links), most)
        query = _CHAIN + "SELECT item FROM chain JOIN items ON holder = chain.id ORDER BY depth DESC, made, place"
        items = [*_raws(database, f"SELECT item {_BEFORE}", oldest), *_raws(database, query, given)]
        return items, min(link[3] for link in links)

    def _missing_link(self, database: sqlite3.Connection, owner: str, id: str) -> str:
        query = _CHAIN + "SELECT previous FROM chain ORDER BY depth DESC LIMIT 1"
        oldest = database.execute(query, (id, owner, owner)).fetchone()
        return oldest[0] if oldest is not None else id

    def _page(
        self, database: sqlite3.Connection, owner: str, holder: str, after: str, limit: int, order: str, most: int
    ) -> Page | None:
        place = None
        if after:
            found = database.execute(
                "SELECT place FROM items WHERE holder = ? AND owner = ? AND made = 0 AND id = ?", (holder, owner, after)
            ).fetchone()
            if found is None:
                return None
            place = found[0]
        sign, way = (">", "ASC") if order == "asc" else ("<", "DESC")
        beyond = f"AND place {sign} ?" if place is not None else "AND ? IS NULL"
        rows = database.execute(
            f"SELECT id, item FROM items WHERE holder = ? AND owner = ? AND made = 0 {beyond} "
            f"ORDER BY place {way} LIMIT ?",
            (holder, owner, place, limit + 1),
        )
        items: list[KeptItem] = []
        for id, item in rows:
            most -= len(item)
            if len(items) == limit or (items and most < 0):
                rows.close()
                return Page(items, has_more=True)
            items.append(KeptItem(id, Raw(item)))
        return Page(items, has_more=False)

    def _find(self, database: sqlite3.Connection, owner: str, ids: Sequence[str], most: int) -> dict[str, Raw]:
        places: dict[str, tuple[Any, ...]] = {}
        for start in range(0, len(ids), IDS_AT_ONCE):
            some = ids[start : start + IDS_AT_ONCE]
            query = _LATEST.format(marks=",".join("?" * len(some)))
            places |= {row[0]: row[1:5] for row in database.execute(query, (owner, *some))}
        _check_size(sum(places[id][3] for id in ids if id in places), most)
        one = "SELECT item FROM items WHERE holder = ? AND made = ? AND place = ?"
        found = {id: _raws(database, one, place[:3]) for id, place in places.items()}
        return {id: items[0] for id, items in found.items() if items}

    def _item(self, database: sqlite3.Connection, owner: str, holder: str, id: str) -> Raw | None:
        query = "SELECT item FROM items WHERE holder = ? AND owner = ? AND made = 0 AND id = ? LIMIT 1"
        return next(iter(_raws(database, query, (holder, owner, id))), None)


def _raws(database: sqlite3.Connection, query: str, given: tuple[Any, ...] | dict[str, Any]) -> list[Raw]:
    return [Raw(row[0]) for row in database.execute(query, given)]


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise TooLarge(size)
