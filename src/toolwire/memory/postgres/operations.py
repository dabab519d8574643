"""PostgreSQL's own versions of the busiest operations, one statement each (`statements.sql`)."""

import secrets
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from typing import Literal, NamedTuple, TypeAlias

from toolwire.memory.postgres.database import Engine
from toolwire.memory.postgres.schema import STATEMENTS
from toolwire.memory.sql.operation import Row, Transaction, urgent
from toolwire.memory.sql.responses import NO_EFFECTS
from toolwire.memory.sql.runs import NO_LIMITS
from toolwire.memory.sql.values import MAX_BYTES_PER_READ
from toolwire.memory.store import (
    NO_BOUND,
    UNFINISHED,
    Append,
    Appended,
    Effects,
    EventChunk,
    Fence,
    Follow,
    Followed,
    KeptItem,
    Lease,
    Overtaken,
    Record,
    RunLimits,
    TurnBounds,
    WriteGuard,
)

MAX_CHUNKS_PER_READ = 512
"""Maximum chunks that one follower gets at a time."""
MAX_KEY_BYTES = 500
"""Maximum bytes of an id that is stored as it is; an index accepts about 2,700."""
_DIGEST = "#"
"""Marks the digest of an id. An id that begins with it is digested too, so that the two never collide."""

GuardKind: TypeAlias = Literal["none", "fence", "lease"]


@cache
def compose_save(guard: GuardKind, *, has_last: bool, is_over: bool, is_run: bool, into: bool, links: bool) -> str:
    """The statement of a save, with only the parts that it needs."""
    texts = STATEMENTS.texts
    more = {"put_last_events": has_last, "put_run": is_run, "extend_conversation": into, "put_links": links}
    unless_fenced = "" if guard == "fence" else texts["is_unfenced"]
    parts = {
        "runs": texts["counted_runs"] if is_run else "",
        "room": texts["has_room"] if is_run else "",
        "guard": texts[f"guard_{guard}"],
        "journal_size": texts["size_of_events"] if guard == "fence" and is_over else "",
        "known": "DO NOTHING" if is_run else texts["update_response"] + "\n" + unless_fenced,
        "more": "".join(f",\n{texts[name]}" for name, is_needed in more.items() if is_needed),
        "result": "(SELECT count(*) FROM saved), in_all, owned FROM runs" if is_run else "count(*) FROM saved",
    }
    return STATEMENTS.compose("save", parts)


class NewRun(NamedTuple):
    """A background run to queue together with its response."""

    member: str
    plan: bytes
    limits: RunLimits


class PostgresStore(Engine):
    """A store in one database, whose tables are created on first use. `pooler` is for PgBouncer and the like."""

    def key(self, id: str) -> str:
        """The id, or a digest: text cannot hold NUL or a lone surrogate, and an index cannot hold a very long id."""
        if len(id) <= MAX_KEY_BYTES // 4 and id.isascii() and "\0" not in id and not id.startswith(_DIGEST):
            return id
        encoded = id.encode("utf-8", "surrogatepass")
        is_fit = len(encoded) <= MAX_KEY_BYTES and b"\0" not in encoded and not id.startswith(_DIGEST)
        if is_fit and encoded == id.encode("utf-8", "replace"):
            return id
        return _DIGEST + blake2b(encoded, digest_size=32).hexdigest()

    def _digest(self, key: bytes) -> bytes:
        return key if len(key) < 64 else blake2b(key, digest_size=64).digest()

    async def save(
        self,
        owner: str,
        record: Record,
        given: Sequence[KeptItem] | None,
        made: Sequence[KeptItem],
        effects: Effects = NO_EFFECTS,
        *,
        guard: WriteGuard | None = None,
        last: EventChunk | None = None,
    ) -> None:
        [[is_saved]] = await self._save(owner, record, given or (), made, effects, guard, last=last)
        if not is_saved:
            await self._check_unsaved(owner, record.id, guard)

    async def queue(
        self,
        owner: str,
        record: Record,
        given: Sequence[KeptItem],
        effects: Effects,
        *,
        plan: bytes,
        member: str,
        guard: WriteGuard | None = None,
        limits: RunLimits = NO_LIMITS,
    ) -> Fence:
        run = NewRun(member, plan, limits)
        [[is_saved, in_all, owned]] = await self._save(owner, record, given, (), effects, guard, run=run)
        if is_saved:
            return Fence(record.id, 1)
        rows = await self.query("own_run", id=self.key(record.id), owner=owner, member=member)
        if not rows:
            limits.check(in_all, owned)
            raise Overtaken(guard or Fence(record.id, 0))
        return Fence(record.id, rows[0][0])

    async def _save(
        self,
        owner: str,
        record: Record,
        given: Sequence[KeptItem],
        made: Sequence[KeptItem],
        effects: Effects,
        guard: WriteGuard | None,
        *,
        last: EventChunk | None = None,
        run: NewRun | None = None,
    ) -> Sequence[Row]:
        """Save a response with its effects, in one statement; the first column is 0 if nothing was saved."""
        rows = self._make_item_rows(owner, record, given, made)
        size = sum(len(item.raw) for item in (*given, *made)) + len(record.fields) + len(record.response)
        link, link_to = effects.link or ("", "")
        statement = compose_save(
            "none" if guard is None else "fence" if isinstance(guard, Fence) else "lease",
            has_last=last is not None and isinstance(guard, Fence),
            is_over=record.is_over,
            is_run=run is not None,
            into=bool(effects.conversation and rows),
            links=bool(link or (effects.conversation and effects.answered)),
        )
        values: dict[str, object] = {
            "id": self.key(record.id),
            "owner": owner,
            "created": record.created,
            "status": record.status,
            "previous": self.key(record.previous),
            "conversation": self.key(record.conversation),
            "continuation": self.key(record.continuation),
            "fields": record.fields,
            "body": record.response,
            "size": size + (len(last.frames) if last is not None else 0),
            "token": secrets.token_hex(8),
            "unfinished": UNFINISHED,
            "is_over": record.is_over,
            "item_id": [row["id"] for row in rows],
            "into": self.key(effects.conversation),
            "places": len(rows),
            "answered": [self.key(call) for call in effects.answered],
            "link": self.key(link),
            "link_to": self.key(link_to),
        }
        values |= {name: [row[name] for row in rows] for name in ("made", "place", "whole_id", "call", "item")}
        match guard:
            case Fence(id, epoch):
                values |= {"guard": self.key(id), "epoch": epoch}
            case Lease(name, member, epoch):
                values |= {"guard": self.key(name), "member": member, "epoch": epoch}
            case None:
                pass
        if last is not None:
            values |= {"first": last.first, "count": last.count, "frames": last.frames}
        if run is not None:
            values |= {"runner": run.member, "plan": run.plan}
            values |= {"most_in_all": run.limits.in_all, "most_owned": run.limits.per_owner}
        return await self.change(statement, **values)

    async def _check_unsaved(self, owner: str, id: str, guard: WriteGuard | None) -> None:
        """Raise `Overtaken`, unless nothing had to be saved: an earlier attempt may have saved it."""
        rows = await self.query("state", id=self.key(id), owner=owner, unfinished=UNFINISHED)
        is_unfinished, epoch = rows[0] if rows else (False, None)
        if isinstance(guard, Fence):
            if epoch != guard.epoch:
                raise Overtaken(guard)
        elif guard is not None and (is_unfinished or not rows):
            raise Overtaken(guard)
        elif is_unfinished and epoch is not None:
            raise Overtaken(Fence(id, 0))

    @urgent
    async def append(self, tx: Transaction, appends: Sequence[Append]) -> Appended:
        rows = await tx.fetch(
            "append",
            ids=[self.key(each.fence.id) for each in appends],
            owners=[each.owner for each in appends],
            epochs=[each.fence.epoch for each in appends],
            firsts=[each.chunk.first for each in appends],
            counts=[each.chunk.count for each in appends],
            frames=[each.chunk.frames for each in appends],
        )
        mine = {(row[0], row[1]): row[2] for row in rows}
        found = [(each.fence, mine.get((self.key(each.fence.id), each.fence.epoch))) for each in appends]
        return Appended(
            frozenset(fence for fence, is_cancelled in found if is_cancelled is None),
            frozenset(fence for fence, is_cancelled in found if is_cancelled),
        )

    async def follow(self, wanted: Sequence[Follow], most: int = NO_BOUND) -> list[Followed]:
        rows = await self.query(
            "follow",
            ids=[self.key(each.id) for each in wanted],
            owners=[each.owner for each in wanted],
            nexts=[each.next for each in wanted],
            chunks=MAX_CHUNKS_PER_READ,
            most=most,
        )
        chunks: dict[int, list[EventChunk]] = {}
        over: dict[int, bool] = {}
        for number, is_over, *chunk in rows:
            over[number] = is_over
            if chunk[0] is not None:
                chunks.setdefault(number, []).append(EventChunk(*chunk))
        return [
            Followed(tuple(chunks.get(number, ())), over.get(number, False)) for number in range(1, len(wanted) + 1)
        ]

    async def get_values(
        self, owner: str, keys: Sequence[tuple[str, bytes]], most: int = MAX_BYTES_PER_READ
    ) -> list[bytes | None]:
        kinds, digests = [kind for kind, _ in keys], [self._digest(key) for _, key in keys]
        values = {"owner": owner, "kinds": kinds, "digests": digests, "max_age": self.age_limit, "most": most}
        found = {row[0]: row[1] for row in await self.query("get_values", **values)}
        return [found.get(number) for number in range(1, len(keys) + 1)]

    async def _sweep(self, lease: Lease, turns: TurnBounds) -> None:
        await super()._sweep(lease, turns)
        await self.change("forget_commits")
        while (await self.change("clear_dropped"))[0][0]:
            pass
