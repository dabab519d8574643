"""Texts and items as the tables have them, and what several statements say alike.

A text column cannot hold NUL or half a character, and an index no more than some 2,700 bytes. An id that is not fit for
both is known by its digest; where it has to come back, it is kept beside it as bytes.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from toolwire.memory.store import KeptItem, Record

LONGEST = 500
"""Bytes of an id that is kept as it is."""
_DIGEST = "#"
"""Begins what stands for an id; an id that begins with it is digested too, so that the two are never the same."""


def key_of(id: str) -> str:
    """What an id is known by in an index."""
    if len(id) <= LONGEST // 4 and id.isascii() and "\0" not in id and not id.startswith(_DIGEST):
        return id
    encoded = id.encode("utf-8", "surrogatepass")
    is_fit = len(encoded) <= LONGEST and b"\0" not in encoded and not id.startswith(_DIGEST)
    if is_fit and encoded == id.encode("utf-8", "replace"):
        return id
    return _DIGEST + blake2b(encoded, digest_size=32).hexdigest()


def whole_of(id: str, key: str) -> bytes | None:
    """An id as bytes, if its key does not say it."""
    return None if id == key else id.encode("utf-8", "surrogatepass")


def id_of(key: str, whole: bytes | None) -> str:
    return key if whole is None else whole.decode("utf-8", "surrogatepass")


def digest_of(key: bytes) -> bytes:
    """What a key of bytes is known by in an index."""
    return key if len(key) < 64 else blake2b(key, digest_size=64).digest()


class Items(NamedTuple):
    """Columns of items, in their order."""

    made: list[int]
    place: list[int]
    id: list[str]
    whole_id: list[bytes | None]
    call: list[str | None]
    item: list[bytes]

    @property
    def size(self) -> int:
        return sum(map(len, self.item))


def items_of(given: Sequence[KeptItem], made: Sequence[KeptItem] = (), *, with_calls: bool = False) -> Items:
    """Columns for input and output; `with_calls`: the output can be found by the calls in it."""
    both = [*given, *made]
    keys = [key_of(each.id) for each in both]
    raws = [bytes(each.raw) for each in both]
    count = len(given)
    return Items(
        [0] * count + [1] * len(made),
        [*range(count), *range(len(made))],
        keys,
        [whole_of(each.id, key) for each, key in zip(both, keys, strict=True)],
        [None] * count + [call_of(raw) if with_calls else None for raw in raws[count:]],
        raws,
    )


class _Call(msgspec.Struct):
    call_id: str = ""


_decode_call = msgspec.json.Decoder(_Call).decode


def call_of(raw: bytes) -> str | None:
    """The id of the call that an item makes, as its key."""
    if b'"call_id"' not in raw:
        return None
    try:
        found = _decode_call(raw).call_id
    except msgspec.DecodeError:
        return None
    return key_of(found) if found else None


ALIVE = "greatest(m.until, pg_postmaster_start_time() + m.lasts * interval '1 second') > now()"
"""A member that beats in time. While the database was away nobody could: after its start all have their time again."""

JUDGE = "j.id = :member AND j.until > now() + j.lasts / 2 * interval '1 second'"
"""The member that asks, if it did not miss a beat: since `j.since` it could use the database without a break.

A beat begins this time anew if the one before it is more than half a lease old: members beat four times in a lease.
"""

DEAD = f"NOT {ALIVE} AND j.since <= now() - m.lasts * interval '1 second'"
"""A member that did not beat for a lease, although `j` could all the while."""

RECORD = "h.id, h.created, h.status, h.fields, h.body, h.previous, h.conversation, h.continuation"


def record_of(row: Sequence[Any]) -> Record:
    """A record from columns in the order of `RECORD`."""
    return Record(*row)
