"""Keys that were issued to clients, under their names."""

from typing import NamedTuple

import msgspec

from toolwire.memory.sql.operation import SqlStore, Transaction, reading, transaction
from toolwire.memory.store import IssuedKey, StoreFailed

KEYS_PER_READ = 1_000

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(IssuedKey)


def _decode(facts: bytes) -> IssuedKey:
    try:
        return _decoder.decode(facts)
    except msgspec.DecodeError as error:
        raise StoreFailed("corrupt", f"an issued key cannot be read: {error}") from None


class KeyChanges(NamedTuple):
    """Keys that were issued or changed."""

    keys: list[IssuedKey]
    last: int
    """The number of the last of these changes."""
    latest: int
    """The number of the latest change of all. It is lower than one that was seen before if the store was replaced."""


class IssuedKeys(SqlStore):
    """Keys that were issued to clients."""

    @transaction
    async def put_key(self, tx: Transaction, key: IssuedKey, before: IssuedKey | None) -> bool:
        """Put a key in place of the one that was read, or of none; False if another one is there now."""
        [[change]] = await tx.fetch("next_key_change")
        row = await tx.fetch_one("issued_key", name=key.name)
        if (_decode(row[0]) if row is not None else None) != before:
            return False
        await tx.fetch("put_issued_key", name=key.name, facts=_encode(key), change=change)
        return True

    @reading
    async def find_key(self, tx: Transaction, name: str) -> IssuedKey | None:
        """The key of this name."""
        row = await tx.fetch_one("issued_key", name=name)
        return _decode(row[0]) if row is not None else None

    @reading
    async def list_changed_keys(self, tx: Transaction, after: int) -> KeyChanges:
        """The first keys that changed after the change of this number, in the order of their changes."""
        rows = await tx.fetch("changed_keys", after=after, most=KEYS_PER_READ)
        keys = [_decode(facts) for _, _, facts in rows if facts is not None]
        return KeyChanges(keys, rows[-1][1] or after, rows[-1][0])
