"""Things to keep."""

from typing import Any

import msgspec

from tests.store.place import Users
from toolwire.memory.store import Append, Effects, EventChunk, Fence, KeptItem, Lease, Member, Record

Raw = msgspec.Raw
ANN, BEN = "ann", "ben"


def item(id: str, size: int = 0, **fields: Any) -> KeptItem:
    """An item, of about this many bytes."""
    return KeptItem(id, Raw(msgspec.json.encode({"id": id, **fields, "text": "x" * size})))


def items(*ids: str) -> list[KeptItem]:
    return [item(id) for id in ids]


def find_member(store: Any, id: str) -> Member | None:
    """The member with this id, if it is alive."""
    return next((member for member in store.list_members(1000) if member.id == id), None)


def ids_of(raws: list[Raw]) -> list[str]:
    return [msgspec.json.decode(raw)["id"] for raw in raws]


def record(id: str, previous: str = "", **fields: Any) -> Record:
    given: dict[str, Any] = {"status": "completed", "fields": b'{"model":"m"}', "response": b'{"id":"r"}', **fields}
    return Record(id, 1.5, previous=previous, **given)


def put(store: Users, id: str, previous: str = "", owner: str = ANN, size: int = 0) -> None:
    """A response with one item of input and one of output."""
    store.save(owner, record(id, previous), [item(f"{id}-in", size)], [item(f"{id}-out")])


def present(store: Users, *ids: str, owner: str = ANN) -> list[str]:
    return [id for id in ids if store.load(owner, id) is not None]


def joined(store: Users, *ids: str) -> None:
    for id in ids:
        store.join(Member(id))


def queued(store: Users, id: str, member: str, owner: str = ANN, plan: bytes = b"plan") -> Fence:
    """A run of this member."""
    waiting = record(id, status="queued")
    return store.queue(owner, waiting, items(f"{id}-in"), Effects(), plan=plan, member=member)


def events(first: int, *names: str) -> EventChunk:
    return EventChunk(first, len(names), b"".join(b"event: %s\n\n" % name.encode() for name in names))


def appended(store: Users, fence: Fence, chunk: EventChunk, owner: str = ANN) -> bool:
    """Whether the run was still that of the fence."""
    return not store.append([Append(owner, fence, chunk)]).lost


def held(store: Users, name: str, member: str) -> Lease:
    """A lease that must be free."""
    lease = store.take_lease(name, member)
    assert lease is not None
    return lease
