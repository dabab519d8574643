"""Responses, conversations and their items.

Both are rows of `holders`, because they hold items: input has `made` 0, as have the items of a conversation, and output
has `made` 1. A read that may be too large computes the size first, in the same query, and loads the items only if they
fit. A response that others continue is not deleted: it becomes a holder of kind `deleted`, of which only the items are
left.
"""

from abc import abstractmethod
from collections.abc import Sequence

import msgspec

from toolwire.memory.sql.members import MemberOperations
from toolwire.memory.sql.operation import Row, Transaction, reading, transaction, writing
from toolwire.memory.store import (
    NO_BOUND,
    Conversation,
    Effects,
    KeptItem,
    Kind,
    Lease,
    OwnedRecord,
    Page,
    Raw,
    Record,
    TooLarge,
)

TOUCH_AFTER = 3600.0
"""Seconds after which reading a chain marks it as used again; less if rows are kept for less than a day."""

RECORD = "h.id, h.created, h.status, h.fields, h.body, h.previous, h.conversation, h.continuation"

_LOAD = f"""
SELECT {RECORD} FROM toolwire.holders h
WHERE id = :id AND owner = :owner AND kind = :kind AND used >= now() - :max_age * interval '1 second'
"""

_RECENT = """
WITH latest AS (
    SELECT h.*, sum(length(body)) OVER (ORDER BY used DESC, id DESC) AS total FROM (
        SELECT * FROM toolwire.holders
        WHERE kind = 'response' AND used >= now() - :max_age * interval '1 second' AND %s
        ORDER BY used DESC, id DESC LIMIT :limit
    ) h
)
SELECT owner, id, created, status, {no_bytes}, CASE WHEN total <= :most THEN body ELSE {no_bytes} END, previous,
    conversation, continuation FROM latest ORDER BY used DESC, id DESC
"""
_RECENT_OF_OWNER, _RECENT_OF_ALL = _RECENT % "owner = :owner", _RECENT % "true"

_SIDE = """
WITH total AS MATERIALIZED (
    SELECT sum(length(item)) AS size FROM toolwire.items WHERE holder = :holder AND owner = :owner AND made = :made
)
SELECT (SELECT size FROM total), CASE WHEN (SELECT size FROM total) <= :most THEN i.item END FROM toolwire.items i
WHERE i.holder = :holder AND i.owner = :owner AND i.made = :made
    AND EXISTS (SELECT 1 FROM toolwire.holders h WHERE h.id = :holder AND h.kind <> 'deleted')
ORDER BY i.place
"""

LINKS = """
WITH RECURSIVE chain (id, previous, conversation, used, depth) AS (
    SELECT id, previous, conversation, used, 0 FROM toolwire.holders
    WHERE id = :id AND owner = :owner AND kind = 'response'
    UNION ALL
    SELECT h.id, h.previous, h.conversation, h.used, depth + 1 FROM chain JOIN toolwire.holders h
        ON h.id = chain.previous AND h.owner = :owner AND h.kind IN ('response', 'deleted') WHERE depth < 100000
)
"""
"""A response and all that it continues."""

_TOUCH = f"""
{LINKS},
old AS (
    SELECT h.id FROM toolwire.holders h WHERE h.id IN (SELECT id FROM chain)
        AND h.used < now() - :touch_after * interval '1 second' ORDER BY h.id FOR UPDATE SKIP LOCKED
)
UPDATE toolwire.holders SET used = now() WHERE id IN (SELECT id FROM old)
"""

_MISSING_LINK = f"{LINKS} SELECT previous FROM chain ORDER BY depth DESC LIMIT 1"

_PAGE = """
WITH start AS (
    SELECT place FROM toolwire.items
    WHERE holder = :holder AND owner = :owner AND made = 0 AND id = :after ORDER BY place LIMIT 1
),
part AS (
    SELECT i.id, {whole_id} AS whole_id, i.place, length(i.item) AS size FROM toolwire.items i
    WHERE i.holder = :holder AND i.owner = :owner AND i.made = 0
        AND (:after = '' OR i.place %(sign)s (SELECT place FROM start))
        AND EXISTS (SELECT 1 FROM toolwire.holders h WHERE h.id = i.holder)
    ORDER BY i.place %(way)s LIMIT :limit + 1
),
page AS (
    SELECT part.*, row_number() OVER places AS number, sum(size) OVER places AS total
    FROM part WINDOW places AS (ORDER BY place %(way)s)
)
SELECT :after = '' OR EXISTS (SELECT 1 FROM start), p.number, p.id, p.whole_id, i.item
FROM (SELECT 1 AS one) one LEFT JOIN page p ON true
LEFT JOIN toolwire.items i ON i.holder = :holder AND i.made = 0 AND i.place = p.place
    AND p.number <= :limit AND (p.number = 1 OR p.total <= :most)
ORDER BY p.number
"""
_PAGE_UP, _PAGE_DOWN = _PAGE % {"sign": ">", "way": "ASC"}, _PAGE % {"sign": "<", "way": "DESC"}

_FIND = """
WITH wanted AS (SELECT id, count(*) AS times FROM {ids} GROUP BY id),
found AS (
    SELECT w.id, w.times, i.holder, i.made, i.place, length(i.item) AS size,
        row_number() OVER (PARTITION BY w.id ORDER BY h.used DESC, i.holder, i.made, i.place) AS number
    FROM wanted w CROSS JOIN toolwire.items i JOIN toolwire.holders h ON h.id = i.holder
    WHERE i.owner = :owner AND i.id = w.id AND h.kind <> 'deleted'
),
latest AS (SELECT * FROM found WHERE number = 1),
total AS (SELECT sum(size * times)::bigint AS size FROM latest)
SELECT total.size, latest.id, i.item FROM latest CROSS JOIN total LEFT JOIN toolwire.items i
    ON i.holder = latest.holder AND i.made = latest.made AND i.place = latest.place AND total.size <= :most
ORDER BY latest.id
"""
"""Of two items with one id, the one whose holder was used last. SQLite joins in the order of a CROSS JOIN."""

_ITEM = """
SELECT item FROM toolwire.items i WHERE holder = :holder AND owner = :owner AND made = 0 AND id = :id
    AND EXISTS (SELECT 1 FROM toolwire.holders h WHERE h.id = i.holder) ORDER BY place LIMIT 1
"""
_DELETE_ITEM = """
DELETE FROM toolwire.items WHERE holder = :holder AND owner = :owner AND made = 0 AND id = :id RETURNING length(item)
"""
_SHRINK = "UPDATE toolwire.holders SET size = size - :size::bigint WHERE id = :holder"

_PUT_CONVERSATION = """
INSERT INTO toolwire.holders AS h
    (id, owner, kind, created, used, size, status, previous, conversation, continuation, fields, body)
VALUES (:id, :owner, 'conversation', :created, now(), length(:body::bytea), '', '', '', '', {no_bytes}, :body)
ON CONFLICT (id) DO UPDATE SET used = now(), body = excluded.body, size = h.size + excluded.size - length(h.body)
WHERE h.owner = excluded.owner AND h.kind = 'conversation'
"""
_NEXT_PLACE = """
SELECT {next_place} FROM toolwire.holders c WHERE c.id = :into AND c.owner = :owner AND c.kind = 'conversation'
FOR UPDATE
"""
_KNOWN_ITEMS = """
SELECT id FROM toolwire.items WHERE holder = :into AND owner = :owner AND made = 0 AND id = ANY (:ids::text[])
"""
_GROW = "UPDATE toolwire.holders AS c SET used = now(), size = c.size + :size::bigint{add_places} WHERE c.id = :into"
PUT_ITEM = """
INSERT INTO toolwire.items (holder, made, place, id, owner, item, {item_columns})
VALUES (:holder, :made, :place, :id, :owner, :item, {item_values})
ON CONFLICT (holder, made, place) DO UPDATE SET id = excluded.id, item = excluded.item, {item_updates}
"""
_LINK_CALLERS = """
UPDATE toolwire.holders AS h SET continuation = :id WHERE h.owner = :owner AND h.conversation = :into AND h.id <> :id
    AND h.id IN (SELECT i.holder FROM toolwire.items i WHERE i.owner = :owner AND i.made = 1 AND {is_answered})
"""

_DELETE_RUN = "DELETE FROM toolwire.runs WHERE id = :id AND owner = :owner"
_LOCK = "SELECT previous FROM toolwire.holders WHERE id = :id AND owner = :owner AND kind = :kind FOR UPDATE"
_CONTINUED = "SELECT 1 FROM toolwire.holders WHERE previous = :id AND previous <> '' AND owner = :owner LIMIT 1"
_HIDE = """
UPDATE toolwire.holders SET kind = 'deleted', status = '', fields = {no_bytes}, body = {no_bytes},
    size = (SELECT coalesce(sum(length(item)), 0) FROM toolwire.items WHERE holder = :id) WHERE id = :id
"""
_DELETE_EVENTS = "DELETE FROM {journal} WHERE {response} = ANY (:ids::text[])"
_FORGET = (
    "DELETE FROM toolwire.runs WHERE id = ANY (:ids::text[])",
    "DELETE FROM toolwire.holders WHERE id = ANY (:ids::text[])",
    "DELETE FROM toolwire.items WHERE holder = ANY (:ids::text[])",
    _DELETE_EVENTS,
)
"""A run is always locked before its response. Items and events go last: by then none can be added."""


class ResponseOperations(MemberOperations):
    """Responses, conversations and their items, but for saving a response."""

    @reading
    async def load(self, tx: Transaction, owner: str, id: str) -> Record | None:
        return await self._load(tx, owner, id, "response")

    @reading
    async def conversation(self, tx: Transaction, owner: str, id: str) -> Conversation | None:
        record = await self._load(tx, owner, id, "conversation")
        return None if record is None else Conversation(record.id, record.created, record.response)

    async def _load(self, tx: Transaction, owner: str, id: str, kind: Kind) -> Record | None:
        row = await tx.fetch_one(_LOAD, id=self.key(id), owner=owner, kind=kind, max_age=self.age_limit)
        return Record(*row) if row is not None else None

    @reading
    async def recent(self, tx: Transaction, owner: str | None, limit: int, most: int) -> list[OwnedRecord]:
        query = _RECENT_OF_ALL if owner is None else _RECENT_OF_OWNER
        rows = await tx.fetch(query, owner=owner, limit=limit, most=most, max_age=self.age_limit)
        return [OwnedRecord(row[0], Record(*row[1:])) for row in rows]

    @reading
    async def input(self, tx: Transaction, owner: str, holder: str, most: int = NO_BOUND) -> list[Raw]:
        rows = await tx.fetch(_SIDE, holder=self.key(holder), owner=owner, made=0, most=most)
        return _items_within(rows, most)

    @reading
    async def output(self, tx: Transaction, owner: str, id: str) -> list[Raw]:
        rows = await tx.fetch(_SIDE, holder=self.key(id), owner=owner, made=1, most=NO_BOUND)
        return _items_within(rows, NO_BOUND)

    async def chain(self, owner: str, id: str, most: int = NO_BOUND) -> list[Raw] | None:
        rows = await self._read_chain(owner, id, most)
        if not rows or rows[0][0]:  # the oldest response continues one that is missing
            return None
        if rows[0][3]:
            self.write_later(type(self)._touch, owner, id)  # a read must not wait for a write, nor fail with it
        return _items_within([row[1:] for row in rows], most)

    @abstractmethod
    async def _read_chain(self, owner: str, id: str, most: int) -> Sequence[Row]:
        """Read a chain, oldest item first.

        A row has the response that the oldest one continues, the size of the chain, an item, and whether to touch the
        chain. There are no items if the chain is larger than `most`, and no rows if there is no such response.
        """

    async def _touch(self, tx: Transaction, owner: str, id: str) -> None:
        await tx.fetch(_TOUCH, id=self.key(id), owner=owner, touch_after=self._touch_after)

    @property
    def _touch_after(self) -> float:
        return min(TOUCH_AFTER, self._max_age / 24) if self._max_age else TOUCH_AFTER

    @reading
    async def missing_link(self, tx: Transaction, owner: str, id: str) -> str:
        row = await tx.fetch_one(_MISSING_LINK, id=self.key(id), owner=owner)
        return row[0] if row is not None else id

    @reading
    async def page(
        self, tx: Transaction, owner: str, holder: str, after: str, limit: int, order: str, most: int = NO_BOUND
    ) -> Page | None:
        query = _PAGE_UP if order == "asc" else _PAGE_DOWN
        values = {"holder": self.key(holder), "owner": owner, "after": self.key(after), "limit": limit, "most": most}
        rows = await tx.fetch(query, **values)
        if not rows[0][0]:
            return None
        found = [row for row in rows if row[1] is not None]
        items = [KeptItem(decode_id(id, whole), Raw(item)) for *_, id, whole, item in found if item is not None]
        return Page(items, has_more=len(found) > len(items))

    @reading
    async def find(self, tx: Transaction, owner: str, ids: Sequence[str], most: int = NO_BOUND) -> dict[str, Raw]:
        keys = {self.key(id): id for id in ids}
        rows = await tx.fetch(_FIND, owner=owner, ids=[self.key(id) for id in ids], most=most)
        if rows and rows[0][0] > most:
            raise TooLarge(rows[0][0])
        return {keys[key]: Raw(item) for _, key, item in rows}

    @reading
    async def item(self, tx: Transaction, owner: str, holder: str, id: str) -> Raw | None:
        row = await tx.fetch_one(_ITEM, holder=self.key(holder), owner=owner, id=self.key(id))
        return Raw(row[0]) if row is not None else None

    @writing
    async def put_conversation(self, tx: Transaction, owner: str, conversation: Conversation) -> None:
        id, created, body = self.key(conversation.id), conversation.created, conversation.metadata
        await tx.fetch(_PUT_CONVERSATION, id=id, owner=owner, created=created, body=body)

    @transaction
    async def add_items(self, tx: Transaction, owner: str, holder: str, items: Sequence[KeptItem]) -> None:
        await self._extend(tx, owner, holder, items, are_unique=True)

    @transaction
    async def add_turn(
        self, tx: Transaction, owner: str, id: str, items: Sequence[KeptItem], effects: Effects, guard: Lease
    ) -> None:
        await self.check_lease(tx, guard)
        if await self._extend(tx, owner, effects.conversation, items):
            await self._link_callers(tx, owner, id, effects)

    async def _extend(
        self, tx: Transaction, owner: str, holder: str, items: Sequence[KeptItem], *, are_unique: bool = False
    ) -> bool:
        """Add items behind the others of a conversation; whether it is there. `are_unique`: known ids are left out."""
        into = self.key(holder)
        found = await tx.fetch_one(_NEXT_PLACE, into=into, owner=owner)
        if found is None:
            return False
        if are_unique:
            ids = [self.key(item.id) for item in items if item.id]
            known = {row[0] for row in await tx.fetch(_KNOWN_ITEMS, into=into, owner=owner, ids=ids)}
            items = [item for item in items if self.key(item.id) not in known]
        rows = [self.item_row(owner, into, 0, place, item) for place, item in enumerate(items, found[0])]
        await tx.fetch(_GROW, into=into, size=sum(len(item.raw) for item in items), count=len(rows))
        await tx.execute_many(PUT_ITEM, rows)
        return True

    async def _link_callers(self, tx: Transaction, owner: str, id: str, effects: Effects) -> None:
        """Link the responses of the conversation that made the answered calls to the response that answers them."""
        if effects.answered:
            answered = [self.key(call) for call in effects.answered]
            into = self.key(effects.conversation)
            await tx.fetch(_LINK_CALLERS, id=self.key(id), owner=owner, into=into, answered=answered)

    def item_row(
        self, owner: str, holder: str, made: int, place: int, item: KeptItem, call: str = ""
    ) -> dict[str, object]:
        """The values of `PUT_ITEM`."""
        key = self.key(item.id)
        return {
            "holder": holder,
            "made": made,
            "place": place,
            "id": key,
            "whole_id": encode_id(item.id, key),
            "owner": owner,
            "item": bytes(item.raw),
            "call": self.key(call) if call else None,
        }

    @transaction
    async def delete_item(self, tx: Transaction, owner: str, holder: str, id: str) -> bool:
        key = self.key(holder)
        deleted = await tx.fetch(_DELETE_ITEM, holder=key, owner=owner, id=self.key(id))
        await tx.fetch(_SHRINK, holder=key, size=sum(row[0] for row in deleted))
        return bool(deleted)

    @transaction
    async def delete(self, tx: Transaction, owner: str, id: str, kind: Kind = "response") -> bool:
        key = self.key(id)
        if kind == "response":
            await tx.fetch(_DELETE_RUN, id=key, owner=owner)
        found = await tx.fetch_one(_LOCK, id=key, owner=owner, kind=kind)
        if found is None:
            return False
        if kind == "response" and await tx.fetch_one(_CONTINUED, id=key, owner=owner) is not None:
            await tx.fetch(_DELETE_EVENTS, ids=[key])
            await tx.fetch(_HIDE, id=key)
            return True
        await forget(tx, [key])
        previous = found[0] if kind == "response" else ""
        while previous:  # it may have been deleted before, and kept only for this one
            found = await tx.fetch_one(_LOCK, id=previous, owner=owner, kind="deleted")
            if found is None or await tx.fetch_one(_CONTINUED, id=previous, owner=owner) is not None:
                break
            await forget(tx, [previous])
            previous = found[0]
        return True


async def forget(tx: Transaction, keys: Sequence[str]) -> None:
    """Delete holders with all that belongs to them."""
    for statement in _FORGET:
        await tx.fetch(statement, ids=keys)


def encode_id(id: str, key: str) -> bytes | None:
    """An id as bytes, if its key in the tables is a digest."""
    return None if id == key else id.encode("utf-8", "surrogatepass")


def decode_id(key: str, whole: bytes | None) -> str:
    return key if whole is None else whole.decode("utf-8", "surrogatepass")


def _items_within(rows: Sequence[Row], most: int) -> list[Raw]:
    """The items of rows that begin with the size of all of them; raises `TooLarge`."""
    if rows and rows[0][0] is not None and rows[0][0] > most:
        raise TooLarge(rows[0][0])
    return [Raw(row[1]) for row in rows if row[1] is not None]


class _Call(msgspec.Struct):
    call_id: object = ""


_decode_call = msgspec.json.Decoder(_Call).decode


def call_id_of(item: bytes) -> str:
    """The id of the call that an output item makes; empty if it makes none."""
    if b'"call_id"' not in item:
        return ""
    try:
        found = _decode_call(item).call_id
    except msgspec.DecodeError:
        return ""
    return found if isinstance(found, str) else ""
