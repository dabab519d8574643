"""How a response is written: everything that a save changes, in one statement.

All parts of a statement see the tables as they were when it began, whatever it had to wait for. So what decides is
always in the row that is written or locked: the guard of the writer, whether the response is over, the next place in a
conversation. A row is written by one part at most; PostgreSQL would leave out what a second one does to it.

The function `count_runs` is the exception: a query in a volatile function sees what was committed before that query.
So runs are counted after the wait for the lock, and no other run is added until this statement is committed.
"""

import secrets
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

from toolwire.memory.postgres.statements import Statement
from toolwire.memory.postgres.values import items_of, key_of
from toolwire.memory.store import UNFINISHED, Effects, EventChunk, Fence, Guard, KeptItem, Lease, Record, RunLimits

GuardKind: TypeAlias = Literal["none", "fence", "lease"]

GUARDS: dict[GuardKind, str] = {
    "none": "SELECT 1 AS held WHERE true {room}",
    "fence": """
        UPDATE toolwire.runs SET is_over = :is_over, plan = CASE WHEN :is_over THEN '' ELSE plan END
        WHERE id = :guard AND epoch = :epoch AND NOT is_over {room} RETURNING 1 AS held
    """,
    "lease": """
        SELECT 1 AS held FROM toolwire.leases WHERE name = :guard AND member = :member AND epoch = :epoch {room}
        FOR SHARE
    """,
}
"""One row if the writer may write. Who wants to take the guard waits until the writer is done, and the other way."""

SAVE_TEXT = """
WITH {count} guard AS ({guard}),
given AS (
    SELECT * FROM unnest(:made::smallint[], :place::bigint[], :item_id::text[], :whole_id::bytea[], :call::text[],
        :item::bytea[]) WITH ORDINALITY AS given (made, place, id, whole_id, call, item, number)
),
saved AS (
    INSERT INTO toolwire.holders AS h
        (id, owner, kind, created, size, status, previous, conversation, continuation, fields, body, written_by)
    SELECT :id, :owner, 'response', :created, :size::bigint{journal_size},
        :status, :previous, :conversation, :continuation, :fields, :body, :token FROM guard
    ON CONFLICT (id) {known}
    RETURNING 1
),
kept AS (
    INSERT INTO toolwire.items (holder, made, place, id, whole_id, owner, call, item)
    SELECT :id, given.made, given.place, given.id, given.whole_id, :owner, given.call, given.item FROM given, saved
    ON CONFLICT (holder, made, place) DO UPDATE
        SET id = excluded.id, whole_id = excluded.whole_id, call = excluded.call, item = excluded.item
)
{more}
SELECT {result}
"""

_COUNT = "runs AS MATERIALIZED (SELECT in_all, owned FROM toolwire.count_runs(:owner)),"
_ROOM = "AND (SELECT in_all < :most_in_all AND owned < :most_owned FROM runs)"
"""A condition of the guard, so that its row is locked after the runs are counted."""

_UPDATE = """
DO UPDATE SET used = now(), status = excluded.status, body = excluded.body, written_by = excluded.written_by,
    size = h.size + excluded.size - length(h.fields) - length(h.body)
WHERE h.owner = excluded.owner AND h.kind = 'response' AND h.status = ANY (:unfinished::text[])
    AND h.written_by <> excluded.written_by {unfenced}
"""
"""Made again, a save finds its own token, and changes nothing."""

_UNFENCED = "AND NOT EXISTS (SELECT 1 FROM toolwire.runs r WHERE r.id = h.id)"
"""A response with a run is written with the fence of that alone."""

_JOURNAL_SIZE = """
    + (SELECT coalesce(sum(length(frames)), 0)::bigint FROM toolwire.journal WHERE response = :id)
"""

_LAST = """,
journaled AS (
    INSERT INTO toolwire.journal (response, first, count, epoch, frames)
    SELECT :id, :first, :count, :epoch, :frames FROM guard, saved ON CONFLICT DO NOTHING
)
"""

_RUN = """,
queued AS (
    INSERT INTO toolwire.runs (id, owner, member, epoch, plan) SELECT :id, :owner, :runner, 1, :plan FROM saved
)
"""

_CONVERSATION = """,
conversation AS (
    UPDATE toolwire.holders c SET used = now(), places = c.places + :places, size = c.size + (
        SELECT coalesce(sum(length(item)), 0) FROM given) {set}
    FROM {after} WHERE c.id = :into AND c.owner = :owner AND c.kind = 'conversation' {condition}
    RETURNING c.places - :places AS first
),
added AS (
    INSERT INTO toolwire.items (holder, made, place, id, whole_id, owner, item)
    SELECT :into, 0, first + number - 1, id, whole_id, :owner, item FROM given, conversation
)
"""

_LINKS = """,
callers AS (
    SELECT :link AS id, :link_to AS continuation FROM saved WHERE :link <> ''
    UNION ALL
    SELECT DISTINCT i.holder, :id FROM saved, toolwire.items i JOIN toolwire.holders h ON h.id = i.holder
    WHERE i.owner = :owner AND i.call = ANY (:answered::text[]) AND i.made = 1
        AND h.owner = :owner AND h.conversation = :into AND h.id <> :id
),
linked AS (
    UPDATE toolwire.holders h SET continuation = c.continuation
    FROM (SELECT id, max(continuation) AS continuation FROM callers GROUP BY id ORDER BY id) c
    WHERE h.id = c.id AND h.owner = :owner
)
"""


@cache
def statement(guard: GuardKind, *, has_last: bool, is_over: bool, is_run: bool, into: bool, links: bool) -> Statement:
    more = (
        (_LAST if has_last else "")
        + (_RUN if is_run else "")
        + (_CONVERSATION.format(after="saved", set="", condition="") if into else "")
        + (_LINKS if links else "")
    )
    journal_size = _JOURNAL_SIZE if guard == "fence" and is_over else ""
    known = "DO NOTHING" if is_run else _UPDATE.format(unfenced="" if guard == "fence" else _UNFENCED)
    return Statement(
        SAVE_TEXT.format(
            count=_COUNT if is_run else "",
            guard=GUARDS[guard].format(room=_ROOM if is_run else ""),
            journal_size=journal_size,
            known=known,
            more=more,
            result="(SELECT count(*) FROM saved), in_all, owned FROM runs" if is_run else "count(*) FROM saved",
        )
    )


class NewRun(NamedTuple):
    """A background run that a save begins."""

    member: str
    plan: bytes
    limits: RunLimits


class Save:
    """One save as a statement and its values."""

    def __init__(
        self,
        owner: str,
        record: Record,
        given: Sequence[KeptItem] | None,
        made: Sequence[KeptItem],
        effects: Effects,
        guard: Guard | None,
        last: EventChunk | None = None,
        run: NewRun | None = None,
    ) -> None:
        items = items_of(given or (), made, with_calls=bool(record.conversation))
        link, link_to = effects.link or ("", "")
        self.statement = statement(
            _kind_of(guard),
            has_last=last is not None and isinstance(guard, Fence),
            is_over=record.is_over,
            is_run=run is not None,
            into=bool(effects.conversation and items.id),
            links=bool(link or (effects.conversation and effects.answered)),
        )
        self.values: dict[str, object] = {
            "id": key_of(record.id),
            "owner": owner,
            "created": record.created,
            "status": record.status,
            "previous": key_of(record.previous),
            "conversation": key_of(record.conversation),
            "continuation": key_of(record.continuation),
            "fields": record.fields,
            "body": record.response,
            "size": items.size + len(record.fields) + len(record.response) + (len(last.frames) if last else 0),
            "token": secrets.token_hex(8),
            "unfinished": UNFINISHED,
            "is_over": record.is_over,
            "made": items.made,
            "place": items.place,
            "item_id": items.id,
            "whole_id": items.whole_id,
            "call": items.call,
            "item": items.item,
            "into": key_of(effects.conversation),
            "places": len(items.id),
            "answered": [key_of(call) for call in effects.answered],
            "link": key_of(link),
            "link_to": key_of(link_to),
            **values_of(guard),
        }
        if last is not None:
            self.values |= {"first": last.first, "count": last.count, "frames": last.frames}
        if run is not None:
            limits = {"most_in_all": run.limits.in_all, "most_owned": run.limits.per_owner}
            self.values |= {"runner": run.member, "plan": run.plan, **limits}


def _kind_of(guard: Guard | None) -> GuardKind:
    match guard:
        case None:
            return "none"
        case Fence():
            return "fence"
        case Lease():
            return "lease"


def values_of(guard: Guard | None) -> dict[str, object]:
    match guard:
        case None:
            return {}
        case Fence(id, epoch):
            return {"guard": key_of(id), "epoch": epoch}
        case Lease(name, member, epoch):
            return {"guard": key_of(name), "member": member, "epoch": epoch}


ADD_ITEMS = Statement(
    """
    WITH seen AS (
        SELECT places, written_by FROM toolwire.holders
        WHERE id = :into AND owner = :owner AND kind = 'conversation'
    ),
    given AS (
        SELECT * FROM unnest(:item_id::text[], :whole_id::bytea[], :item::bytea[])
            WITH ORDINALITY AS given (id, whole_id, item, number)
        WHERE id = '' OR NOT EXISTS (
            SELECT 1 FROM toolwire.items i
            WHERE i.holder = :into AND i.owner = :owner AND i.made = 0 AND i.id = given.id
        )
    )
    """
    + _CONVERSATION.format(
        after="seen", set=", written_by = :token", condition="AND c.places = seen.places AND c.written_by <> :token"
    )
    + "SELECT count(*) FROM seen WHERE written_by <> :token AND NOT EXISTS (SELECT 1 FROM conversation)"
)
"""Adds items to a conversation that is there. Made again, it finds its own token, and changes nothing.

Which items are there already is known as of when the statement began. If others were added since, nothing is written
and the count is 1: then it has to be made again.
"""

ADD_TURN = Statement(
    f"WITH guard AS ({GUARDS['lease'].format(room='')}),"
    """
    given AS (
        SELECT * FROM unnest(:item_id::text[], :whole_id::bytea[], :item::bytea[])
            WITH ORDINALITY AS given (id, whole_id, item, number)
    )
    """
    + _CONVERSATION.format(after="guard", set=", written_by = :token", condition="AND c.written_by <> :token")
    + """,
    callers AS (
        SELECT DISTINCT i.holder FROM conversation, toolwire.items i JOIN toolwire.holders h ON h.id = i.holder
        WHERE i.owner = :owner AND i.call = ANY (:answered::text[]) AND i.made = 1
            AND h.owner = :owner AND h.conversation = :into
    ),
    linked AS (
        UPDATE toolwire.holders h SET continuation = :id
        WHERE h.id IN (SELECT holder FROM callers) AND h.owner = :owner
    )
    SELECT count(*) FROM guard
    """
)
"""Adds all items of a turn. The count is 0 if the guard is lost. Made again, it finds its own token."""
