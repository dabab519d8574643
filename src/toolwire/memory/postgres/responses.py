"""Responses, conversations and their items in PostgreSQL: one statement for each operation.

What may be too large is weighed where it is: the bytes come along only if there are not too many of them.
"""

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from contextlib import suppress

from toolwire.memory.postgres.database import Database, Row
from toolwire.memory.postgres.saving import ADD_ITEMS, ADD_TURN, Save, values_of
from toolwire.memory.postgres.statements import Statement
from toolwire.memory.postgres.values import RECORD, id_of, items_of, key_of, record_of
from toolwire.memory.store import (
    NO_BOUND,
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
    OwnedRecord,
    Page,
    Raw,
    Record,
    StoreFailed,
    TooLarge,
)

TOUCH_AFTER = 3600.0
"""Seconds after which reading something marks it as used anew: each mark is a write."""
ATTEMPTS = 100
"""How often items are added to a conversation that changes meanwhile."""

_BEFORE = Statement(
    """
    SELECT h.owner = :owner AND h.status = ANY (:unfinished::text[]),
        (SELECT r.epoch FROM toolwire.runs r WHERE r.id = h.id)
    FROM toolwire.holders h WHERE h.id = :id
    """
)
"""What was there before a save that saved nothing."""

_LOAD = Statement(
    f"""
    SELECT {RECORD} FROM toolwire.holders h
    WHERE id = :id AND owner = :owner AND kind = :kind AND used >= now() - :max_age * interval '1 second'
    """
)

_RECENT = {
    is_one: Statement(
        f"""
        WITH latest AS (
            SELECT *, sum(length(body)) OVER (ORDER BY used DESC, id DESC) AS total FROM (
                SELECT * FROM toolwire.holders WHERE kind = 'response' {"AND owner = :owner" if is_one else ""}
                    AND used >= now() - :max_age * interval '1 second' ORDER BY used DESC, id DESC LIMIT :limit
            ) h
        )
        SELECT owner, id, created, status, ''::bytea, CASE WHEN total <= :most THEN body ELSE '' END, previous,
            conversation, continuation FROM latest ORDER BY used DESC, id DESC
        """
    )
    for is_one in (True, False)
}
"""The responses of one owner, or of everybody."""

_SIDE = Statement(
    """
    WITH found AS (
        SELECT place, item, sum(length(item)) OVER () AS total FROM toolwire.items i
        WHERE holder = :holder AND owner = :owner AND made = :made
            AND EXISTS (SELECT 1 FROM toolwire.holders h WHERE h.id = i.holder AND h.kind <> 'deleted')
    )
    SELECT total::bigint, CASE WHEN total <= :most THEN item END FROM found ORDER BY place
    """
)

_LINKS = """
RECURSIVE chain (id, previous, conversation, used, depth) AS (
    SELECT id, previous, conversation, used, 0 FROM toolwire.holders
    WHERE id = :id AND owner = :owner AND kind = 'response'
    UNION ALL
    SELECT h.id, h.previous, h.conversation, h.used, depth + 1 FROM chain JOIN toolwire.holders h
        ON h.id = chain.previous AND h.owner = :owner AND h.kind IN ('response', 'deleted') WHERE depth < 100000
)
"""
"""A response and all it continues."""

_CHAIN = Statement(
    f"""
    WITH {_LINKS},
    oldest AS (SELECT * FROM chain ORDER BY depth DESC LIMIT 1),
    place AS (
        SELECT min(i.place) AS first FROM oldest
        JOIN toolwire.items own ON own.holder = oldest.id
        JOIN toolwire.items i ON i.holder = oldest.conversation AND i.id = own.id
    ),
    said AS (
        SELECT 1000000 AS depth, 0 AS made, i.place, i.item FROM oldest, place, toolwire.items i
        WHERE i.holder = oldest.conversation AND i.made = 0 AND i.place < place.first
        UNION ALL
        SELECT depth, i.made, i.place, i.item FROM chain JOIN toolwire.items i ON i.holder = chain.id
    ),
    weighed AS (SELECT *, sum(length(item)) OVER () AS total FROM said)
    SELECT oldest.previous, w.total::bigint, CASE WHEN w.total <= :most AND oldest.previous = '' THEN w.item END,
        (SELECT min(used) < now() - :touch_after * interval '1 second' FROM chain)
    FROM oldest LEFT JOIN weighed w ON true ORDER BY w.depth DESC, w.made, w.place
    """
)
"""What stood in its conversation before the oldest response comes first. One row at least if there is a response."""

_TOUCH = Statement(
    f"""
    WITH {_LINKS},
    old AS (
        SELECT id FROM toolwire.holders WHERE id IN (SELECT id FROM chain)
            AND used < now() - :touch_after * interval '1 second' ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE toolwire.holders h SET used = now() FROM old WHERE h.id = old.id
    """
)

_MISSING_LINK = Statement(f"WITH {_LINKS} SELECT previous FROM chain ORDER BY depth DESC LIMIT 1")

_DELETE = Statement(
    """
    WITH run AS (DELETE FROM toolwire.runs WHERE id = :id AND owner = :owner AND :kind = 'response' RETURNING 1),
    follower AS (
        SELECT 1 FROM toolwire.holders
        WHERE previous = :id AND previous <> '' AND owner = :owner AND :kind <> 'conversation' LIMIT 1
    ),
    hidden AS (
        UPDATE toolwire.holders h SET kind = 'deleted', status = '', fields = '', body = '', written_by = :token,
            size = (SELECT coalesce(sum(length(item)), 0) FROM toolwire.items WHERE holder = :id)
        WHERE id = :id AND owner = :owner AND kind = :kind AND kind = 'response'
            AND (SELECT count(*) FROM run) >= 0 AND EXISTS (SELECT 1 FROM follower) RETURNING id
    ),
    journal AS (DELETE FROM toolwire.journal WHERE response IN (SELECT id FROM hidden)),
    gone AS (
        DELETE FROM toolwire.holders
        WHERE id = :id AND owner = :owner AND kind = :kind AND (SELECT count(*) FROM run) >= 0
            AND NOT EXISTS (SELECT 1 FROM follower) RETURNING id, previous
    ),
    dropped AS (
        INSERT INTO toolwire.dropped (holder, dropped_by) SELECT id, :token FROM gone
        ON CONFLICT (holder) DO UPDATE SET dropped_by = excluded.dropped_by
    )
    SELECT EXISTS (SELECT 1 FROM gone) OR EXISTS (SELECT 1 FROM hidden)
        OR EXISTS (SELECT 1 FROM toolwire.holders WHERE id = :id AND kind = 'deleted' AND written_by = :token)
        OR EXISTS (SELECT 1 FROM toolwire.dropped WHERE holder = :id AND dropped_by = :token),
        coalesce((SELECT previous FROM gone), '')
    """
)
"""A run is always locked before its response. Made again, it knows by the token what it did before.

A response that others continue leaves its items to them.
"""

CLEAR = Statement(
    """
    WITH gone AS (
        SELECT holder FROM toolwire.dropped d WHERE (:id::text IS NULL OR holder = :id)
            AND NOT EXISTS (SELECT 1 FROM toolwire.holders h WHERE h.id = d.holder)
        ORDER BY holder LIMIT 64 FOR UPDATE SKIP LOCKED
    ),
    items AS (DELETE FROM toolwire.items WHERE holder IN (SELECT holder FROM gone)),
    journal AS (DELETE FROM toolwire.journal WHERE response IN (SELECT holder FROM gone)),
    done AS (DELETE FROM toolwire.dropped WHERE holder IN (SELECT holder FROM gone) RETURNING 1)
    SELECT count(*) FROM done
    """
)
"""Takes away what belonged to deleted responses: in a statement of its own, which sees all that was written before."""

_PAGE_WAYS = {"asc": (">", "ASC"), "desc": ("<", "DESC")}
_PAGES = {
    order: Statement(
        f"""
        WITH start AS (
            SELECT place FROM toolwire.items
            WHERE holder = :holder AND owner = :owner AND made = 0 AND id = :after ORDER BY place LIMIT 1
        ),
        part AS (
            SELECT id, whole_id, item, place, row_number() OVER places AS number, sum(length(item)) OVER places AS total
            FROM toolwire.items i WHERE holder = :holder AND owner = :owner AND made = 0
                AND (:after = '' OR place {sign} (SELECT place FROM start))
                AND EXISTS (SELECT 1 FROM toolwire.holders h WHERE h.id = i.holder)
            WINDOW places AS (ORDER BY place {way}) ORDER BY place {way} LIMIT :limit + 1
        ),
        page AS (
            SELECT *, number <= :limit AND (number = 1 OR total <= :most) AS is_in FROM part
        )
        SELECT :after = '' OR EXISTS (SELECT 1 FROM start), p.is_in, p.id, p.whole_id, CASE WHEN p.is_in THEN p.item END
        FROM (SELECT 1) one LEFT JOIN page p ON true ORDER BY p.number
        """
    )
    for order, (sign, way) in _PAGE_WAYS.items()
}

_FIND = Statement(
    """
    WITH wanted AS (SELECT id, count(*) AS times FROM unnest(:ids::text[]) AS wanted (id) GROUP BY id),
    latest AS (
        SELECT DISTINCT ON (i.id) i.id, i.item, wanted.times FROM wanted
        JOIN toolwire.items i ON i.owner = :owner AND i.id = wanted.id
        JOIN toolwire.holders h ON h.id = i.holder AND h.kind <> 'deleted'
        ORDER BY i.id, h.used DESC, i.holder, i.made, i.place
    ),
    weighed AS (SELECT id, item, sum(length(item) * times) OVER () AS total FROM latest)
    SELECT total::bigint, id, CASE WHEN total <= :most THEN item END FROM weighed
    """
)
"""Of two items with one id, the one whose holder was used last."""

_PUT_CONVERSATION = Statement(
    """
    INSERT INTO toolwire.holders AS h
        (id, owner, kind, created, size, status, previous, conversation, continuation, fields, body)
    VALUES (:id, :owner, 'conversation', :created, length(:body::bytea), '', '', '', '', '', :body)
    ON CONFLICT (id) DO UPDATE SET used = now(), body = excluded.body, size = h.size + excluded.size - length(h.body)
    WHERE h.owner = excluded.owner AND h.kind = 'conversation'
    """
)

_ITEM = Statement(
    """
    SELECT item FROM toolwire.items i WHERE holder = :holder AND owner = :owner AND made = 0 AND id = :id
        AND EXISTS (SELECT 1 FROM toolwire.holders h WHERE h.id = i.holder) ORDER BY place LIMIT 1
    """
)

_DELETE_ITEM = Statement(
    """
    WITH gone AS (
        DELETE FROM toolwire.items WHERE holder = :holder AND owner = :owner AND made = 0 AND id = :id
        RETURNING length(item) AS size
    ),
    resized AS (
        UPDATE toolwire.holders SET size = size - (SELECT sum(size) FROM gone)
        WHERE id = :holder AND EXISTS (SELECT 1 FROM gone)
    )
    SELECT count(*) FROM gone
    """
)


class PostgresResponses:
    """The part of the store for responses and conversations."""

    _database: Database
    _max_age: float
    _tasks: set[asyncio.Task[None]]

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
        save = Save(owner, record, given, made, effects, guard, last)
        if not await self._saved(save):
            await self._check_unsaved(owner, record.id, guard)

    async def _saved(self, save: Save) -> bool:
        """Whether anything was saved: the guard was still there, and so was something to save."""
        [[is_saved]] = await self._database.write(save.statement, **save.values)
        return bool(is_saved)

    async def _check_unsaved(self, owner: str, id: str, guard: Guard | None) -> None:
        """Raise, unless nothing had to be saved: an earlier attempt may have done it, and nobody heard of it."""
        rows = await self._database.read(_BEFORE, id=key_of(id), owner=owner, unfinished=UNFINISHED)
        is_unfinished, epoch = rows[0] if rows else (False, None)
        if isinstance(guard, Fence):
            if epoch != guard.epoch:
                raise Overtaken(guard)
        elif guard is not None and (is_unfinished or not rows):
            raise Overtaken(guard)
        elif is_unfinished and epoch is not None:
            raise Overtaken(Fence(id, 0))

    async def load(self, owner: str, id: str) -> Record | None:
        return await self._record(owner, id, "response")

    async def _record(self, owner: str, id: str, kind: Kind) -> Record | None:
        age = self._max_age or NO_AGE
        rows = await self._database.read(_LOAD, id=key_of(id), owner=owner, kind=kind, max_age=age)
        return record_of(rows[0]) if rows else None

    async def recent(self, owner: str | None, limit: int, most: int) -> list[OwnedRecord]:
        age = self._max_age or NO_AGE
        statement = _RECENT[owner is not None]
        rows = await self._database.read(statement, owner=owner, limit=limit, most=most, max_age=age)
        return [OwnedRecord(row[0], record_of(row[1:])) for row in rows]

    async def input(self, owner: str, holder: str, most: int = NO_BOUND) -> list[Raw]:
        return await self._side(owner, holder, 0, most)

    async def output(self, owner: str, id: str) -> list[Raw]:
        return await self._side(owner, id, 1, NO_BOUND)

    async def _side(self, owner: str, holder: str, made: int, most: int) -> list[Raw]:
        rows = await self._database.read(_SIDE, holder=key_of(holder), owner=owner, made=made, most=most)
        return _weighed(rows, most, 1)

    async def chain(self, owner: str, id: str, most: int = NO_BOUND) -> list[Raw] | None:
        rows = await self._database.read(_CHAIN, id=key_of(id), owner=owner, most=most, touch_after=self._touch_after)
        if not rows or rows[0][0]:  # the oldest one still points at an earlier one
            return None
        if rows[0][3]:
            # Marked as used by and by: reading must not wait for a write, nor fail with it.
            self._later(self._touch(owner, id))
        said = [row for row in rows if row[1] is not None]
        return _weighed([row[1:] for row in said], most, 1)

    async def _touch(self, owner: str, id: str) -> None:
        with suppress(StoreFailed):  # told to whoever watches the store
            await self._database.write(_TOUCH, id=key_of(id), owner=owner, touch_after=self._touch_after)

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def _touch_after(self) -> float:
        return min(TOUCH_AFTER, self._max_age / 24) if self._max_age else TOUCH_AFTER

    async def missing_link(self, owner: str, id: str) -> str:
        rows = await self._database.read(_MISSING_LINK, id=key_of(id), owner=owner)
        return rows[0][0] if rows else id

    async def delete(self, owner: str, id: str, kind: Kind = "response") -> bool:
        is_gone, previous = await self._drop(owner, key_of(id), kind)
        with suppress(StoreFailed):  # these cannot be seen any more; otherwise the sweep takes them away
            while kind == "response" and previous:  # deleted before, and kept for this one alone
                _, previous = await self._drop(owner, previous, "deleted")
        return is_gone

    async def _drop(self, owner: str, key: str, kind: Kind) -> tuple[bool, str]:
        """Whether there was something to delete, and what it continued if all of it is gone."""
        token = secrets.token_hex(8)
        [[is_gone, previous]] = await self._database.write(_DELETE, id=key, owner=owner, kind=kind, token=token)
        if is_gone:
            with suppress(StoreFailed):
                await self._database.write(CLEAR, id=key)
        return is_gone, previous

    async def page(
        self, owner: str, holder: str, after: str, limit: int, order: str, most: int = NO_BOUND
    ) -> Page | None:
        statement = _PAGES["asc" if order == "asc" else "desc"]
        rows = await self._database.read(
            statement, holder=key_of(holder), owner=owner, after=key_of(after), limit=limit, most=most
        )
        if not rows[0][0]:
            return None
        found = [row for row in rows if row[1] is not None]
        items = [KeptItem(id_of(row[2], row[3]), Raw(row[4])) for row in found if row[1]]
        return Page(items, has_more=len(found) > len(items))

    async def find(self, owner: str, ids: Sequence[str], most: int = NO_BOUND) -> dict[str, Raw]:
        keys = {key_of(id): id for id in ids}
        rows = await self._database.read(_FIND, owner=owner, ids=[key_of(id) for id in ids], most=most)
        if rows and rows[0][0] > most:
            raise TooLarge(rows[0][0])
        return {keys[row[1]]: Raw(row[2]) for row in rows}

    async def put_conversation(self, owner: str, conversation: Conversation) -> None:
        await self._database.write(
            _PUT_CONVERSATION,
            id=key_of(conversation.id),
            owner=owner,
            created=conversation.created,
            body=conversation.metadata,
        )

    async def conversation(self, owner: str, id: str) -> Conversation | None:
        record = await self._record(owner, id, "conversation")
        return None if record is None else Conversation(record.id, record.created, record.response)

    async def add_items(self, owner: str, holder: str, items: Sequence[KeptItem]) -> None:
        values = _added(owner, holder, items)
        for _ in range(ATTEMPTS):
            [[is_changed]] = await self._database.write(ADD_ITEMS, **values)
            if not is_changed:
                return
        raise StoreFailed("busy", "others add to the same conversation all the time")

    async def add_turn(self, owner: str, id: str, items: Sequence[KeptItem], effects: Effects, guard: Lease) -> None:
        values = {**_added(owner, effects.conversation, items), **values_of(guard)}
        answered = [key_of(call) for call in effects.answered]
        [[is_held]] = await self._database.write(ADD_TURN, id=key_of(id), answered=answered, **values)
        if not is_held:
            raise Overtaken(guard)

    async def item(self, owner: str, holder: str, id: str) -> Raw | None:
        rows = await self._database.read(_ITEM, holder=key_of(holder), owner=owner, id=key_of(id))
        return Raw(rows[0][0]) if rows else None

    async def delete_item(self, owner: str, holder: str, id: str) -> bool:
        [[count]] = await self._database.write(_DELETE_ITEM, holder=key_of(holder), owner=owner, id=key_of(id))
        return bool(count)


NO_AGE = 100 * 365.0 * 86_400
"""Seconds for which things are kept that have no age."""


def _added(owner: str, holder: str, items: Sequence[KeptItem]) -> dict[str, object]:
    """The values of a statement that adds items to a conversation."""
    columns = items_of(items)
    return {
        "owner": owner,
        "into": key_of(holder),
        "places": len(items),
        "item_id": columns.id,
        "whole_id": columns.whole_id,
        "item": columns.item,
        "token": secrets.token_hex(8),
    }


def _weighed(rows: Sequence[Row], most: int, column: int) -> list[Raw]:
    """The items of rows that begin with the bytes of all of them."""
    if rows and rows[0][0] > most:
        raise TooLarge(rows[0][0])
    return [Raw(row[column]) for row in rows]
