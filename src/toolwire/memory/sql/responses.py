"""Responses, conversations and their items.

Both are rows of `holders`, because they hold items. `made` is 1 for output, and 0 for input and the items of a
conversation. A response that others continue is not deleted: it becomes a holder of kind `deleted` that keeps only its
items.
"""

from abc import abstractmethod
from collections.abc import Sequence

import msgspec

from toolwire.memory.sql.members import Members
from toolwire.memory.sql.operation import Row, Transaction, reading, transaction, writing
from toolwire.memory.store import (
    NO_BOUND,
    Conversation,
    Effects,
    EventChunk,
    KeptItem,
    Kind,
    Lease,
    OwnedRecord,
    Page,
    Raw,
    Record,
    TooLarge,
    WriteGuard,
)

TOUCH_AFTER = 3600.0
"""Seconds after which reading a chain marks it as used again; fewer if rows are kept for less than a day."""

NO_EFFECTS = Effects()


class Responses(Members):
    """Responses, conversations and their items."""

    @abstractmethod
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
        """Save a response or its new state.

        `given` is its input, None if that is saved already; `made` is its output. A finished response never changes:
        saving it again has no effect, so a save may be retried. A response of another owner is left alone. A response
        with a run can be saved only with the run's fence; `last` is then the chunk of its last events, and a finished
        record ends the run. Raises `Overtaken`.
        """

    @reading
    async def load(self, tx: Transaction, owner: str, id: str) -> Record | None:
        """The record of a response."""
        return await self._load(tx, owner, id, "response")

    @reading
    async def load_conversation(self, tx: Transaction, owner: str, id: str) -> Conversation | None:
        """A conversation, without its items."""
        record = await self._load(tx, owner, id, "conversation")
        return None if record is None else Conversation(record.id, record.created, record.response)

    async def _load(self, tx: Transaction, owner: str, id: str, kind: Kind) -> Record | None:
        row = await tx.fetch_one("load", id=self.key(id), owner=owner, kind=kind, max_age=self.age_limit)
        return Record(*row) if row is not None else None

    @reading
    async def list_recent(self, tx: Transaction, owner: str | None, limit: int, most: int) -> list[OwnedRecord]:
        """The most recently used responses of one owner, or of all.

        Bodies that would exceed `most` bytes in total are left empty.
        """
        query = "recent_of_all" if owner is None else "recent_of_owner"
        rows = await tx.fetch(query, owner=owner, limit=limit, most=most, max_age=self.age_limit)
        return [OwnedRecord(row[0], Record(*row[1:])) for row in rows]

    @reading
    async def load_input(self, tx: Transaction, owner: str, holder: str, most: int = NO_BOUND) -> list[Raw]:
        """The input of a response, or all items of a conversation. Raises `TooLarge`."""
        rows = await tx.fetch("items", holder=self.key(holder), owner=owner, made=0, most=most)
        return _read_items(rows, most)

    @reading
    async def load_output(self, tx: Transaction, owner: str, id: str) -> list[Raw]:
        """The output of a response."""
        rows = await tx.fetch("items", holder=self.key(id), owner=owner, made=1, most=NO_BOUND)
        return _read_items(rows, NO_BOUND)

    async def load_chain(self, owner: str, id: str, most: int = NO_BOUND) -> list[Raw] | None:
        """All items of this response and those it continues, oldest first; None if one of the responses is missing.

        Raises `TooLarge`. Reading a chain keeps it from expiring.
        """
        rows = await self._read_chain(owner, id, most)
        if not rows or rows[0][0]:  # the oldest response continues one that is missing
            return None
        if rows[0][3]:
            self.write_later(type(self)._touch, owner, id)  # a read must not wait for a write or fail with it
        return _read_items([row[1:] for row in rows], most)

    @reading
    async def _read_chain(self, tx: Transaction, owner: str, id: str, most: int) -> Sequence[Row]:
        return await tx.fetch("chain", id=self.key(id), owner=owner, most=most, touch_after=self._touch_after)

    async def _touch(self, tx: Transaction, owner: str, id: str) -> None:
        await tx.fetch("touch_chain", id=self.key(id), owner=owner, touch_after=self._touch_after)

    @property
    def _touch_after(self) -> float:
        """Seconds after which reading a chain marks it as used again."""
        return min(TOUCH_AFTER, self._max_age / 24) if self._max_age else TOUCH_AFTER

    @reading
    async def find_missing_link(self, tx: Transaction, owner: str, id: str) -> str:
        """The id of the response at which a chain is broken; empty if the chain is complete."""
        row = await tx.fetch_one("missing_link", id=self.key(id), owner=owner)
        return row[0] if row is not None else id

    @reading
    async def load_page(
        self, tx: Transaction, owner: str, holder: str, after: str, limit: int, order: str, most: int = NO_BOUND
    ) -> Page | None:
        """A page of the items of a conversation, or of a response's input; None if `after` is not one of them.

        A page has at most `most` bytes, but at least one item if any exists.
        """
        query = "page_up" if order == "asc" else "page_down"
        values = {"holder": self.key(holder), "owner": owner, "after": self.key(after), "limit": limit, "most": most}
        rows = await tx.fetch(query, **values)
        if not rows[0][0]:
            return None
        found = [row for row in rows if row[1] is not None]
        items = [KeptItem(decode_id(id, whole), Raw(item)) for *_, id, whole, item in found if item is not None]
        return Page(items, has_more=len(found) > len(items))

    @reading
    async def find_items(self, tx: Transaction, owner: str, ids: Sequence[str], most: int = NO_BOUND) -> dict[str, Raw]:
        """Items by id, from any response or conversation. Raises `TooLarge`; an id given twice counts twice."""
        keys = {self.key(id): id for id in ids}
        rows = await tx.fetch("find_items", owner=owner, ids=[self.key(id) for id in ids], most=most)
        if rows and rows[0][0] > most:
            raise TooLarge(rows[0][0])
        return {keys[key]: Raw(item) for _, key, item in rows}

    @reading
    async def load_item(self, tx: Transaction, owner: str, holder: str, id: str) -> Raw | None:
        """One item of a conversation."""
        row = await tx.fetch_one("item", holder=self.key(holder), owner=owner, id=self.key(id))
        return Raw(row[0]) if row is not None else None

    @writing
    async def put_conversation(self, tx: Transaction, owner: str, conversation: Conversation) -> None:
        """Save a conversation, or its new metadata."""
        id, created, body = self.key(conversation.id), conversation.created, conversation.metadata
        await tx.fetch("put_conversation", id=id, owner=owner, created=created, body=body)

    @transaction
    async def add_items(self, tx: Transaction, owner: str, holder: str, items: Sequence[KeptItem]) -> None:
        """Add items to a conversation, if it exists, except those whose id it already has."""
        await self._extend_conversation(tx, owner, holder, items, are_unique=True)

    @transaction
    async def add_turn(
        self, tx: Transaction, owner: str, id: str, items: Sequence[KeptItem], effects: Effects, guard: Lease
    ) -> None:
        """Add all items of a turn to its conversation, if it exists; the response itself, `id`, is not saved."""
        await self._check_lease(tx, guard)
        if await self._extend_conversation(tx, owner, effects.conversation, items):
            await self._link_callers(tx, owner, id, effects)

    async def _extend_conversation(
        self, tx: Transaction, owner: str, holder: str, items: Sequence[KeptItem], *, are_unique: bool = False
    ) -> bool:
        """Append items to a conversation; returns whether it exists. `are_unique` skips ids that it already has."""
        into = self.key(holder)
        found = await tx.fetch_one("next_place_in_conversation", into=into, owner=owner)
        if found is None:
            return False
        if are_unique:
            ids = [self.key(item.id) for item in items if item.id]
            known = {row[0] for row in await tx.fetch("known_items", into=into, owner=owner, ids=ids)}
            items = [item for item in items if self.key(item.id) not in known]
        rows = [self._make_item_row(owner, into, 0, place, item) for place, item in enumerate(items, found[0])]
        await tx.fetch("grow_conversation", into=into, size=sum(len(item.raw) for item in items), count=len(rows))
        await tx.execute_many("put_item", rows)
        return True

    async def _link_callers(self, tx: Transaction, owner: str, id: str, effects: Effects) -> None:
        """In the conversation, link the responses that made the answered calls to the response that answers them."""
        if effects.answered:
            answered = [self.key(call) for call in effects.answered]
            into = self.key(effects.conversation)
            await tx.fetch("link_callers", id=self.key(id), owner=owner, into=into, answered=answered)

    def _make_item_rows(
        self, owner: str, record: Record, given: Sequence[KeptItem], made: Sequence[KeptItem]
    ) -> list[dict[str, object]]:
        """The values of `put_item` for the items of a response. Calls are looked up only in conversations."""
        holder = self.key(record.id)
        rows = [self._make_item_row(owner, holder, 0, place, item) for place, item in enumerate(given)]
        for place, item in enumerate(made):
            call = call_id_of(bytes(item.raw)) if record.conversation else ""
            rows.append(self._make_item_row(owner, holder, 1, place, item, call))
        return rows

    def _make_item_row(
        self, owner: str, holder: str, made: int, place: int, item: KeptItem, call: str = ""
    ) -> dict[str, object]:
        """The values of `put_item`."""
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
        """Delete an item of a conversation; returns whether it existed."""
        key = self.key(holder)
        deleted = await tx.fetch("delete_item", holder=key, owner=owner, id=self.key(id))
        await tx.fetch("shrink_holder", holder=key, size=sum(row[0] for row in deleted))
        return bool(deleted)

    @transaction
    async def delete(self, tx: Transaction, owner: str, id: str, kind: Kind = "response") -> bool:
        """Delete a response or a conversation; returns whether it existed. A process that runs it loses the run.

        The items of a response that others continue stay in their chains, and are visible nowhere else.
        """
        key = self.key(id)
        if kind == "response":
            await tx.fetch("delete_run", id=key, owner=owner)
        found = await tx.fetch_one("lock_holder", id=key, owner=owner, kind=kind)
        if found is None:
            return False
        if kind == "response" and await tx.fetch_one("is_continued", id=key, owner=owner) is not None:
            await tx.fetch("delete_events", ids=[key])
            await tx.fetch("hide_response", id=key)
            return True
        await delete_holders(tx, [key])
        previous = found[0] if kind == "response" else ""
        while previous:  # it may have been deleted before, and kept only for this one
            found = await tx.fetch_one("lock_holder", id=previous, owner=owner, kind="deleted")
            if found is None or await tx.fetch_one("is_continued", id=previous, owner=owner) is not None:
                break
            await delete_holders(tx, [previous])
            previous = found[0]
        return True


async def delete_holders(tx: Transaction, keys: Sequence[str]) -> None:
    """Delete holders with everything that belongs to them.

    A run is always locked before its response. Items and events are deleted last, when none can be added any more.
    """
    for statement in ("delete_runs", "delete_holders", "delete_items", "delete_events"):
        await tx.fetch(statement, ids=keys)


def encode_id(id: str, key: str) -> bytes | None:
    """An id as bytes if its key in the tables is a digest, else None."""
    return None if id == key else id.encode("utf-8", "surrogatepass")


def decode_id(key: str, whole: bytes | None) -> str:
    return key if whole is None else whole.decode("utf-8", "surrogatepass")


def _read_items(rows: Sequence[Row], most: int) -> list[Raw]:
    """The items of rows whose first column is their total size. Raises `TooLarge`."""
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
