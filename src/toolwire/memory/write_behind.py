"""Write-behind tables: cached in memory, persisted in the store.

A value is written in the background, before its turn ends. A value that is not in memory is read from the store each
time, because another process may have written it meanwhile.
"""

import asyncio
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from toolwire.core.cache import TenantCache
from toolwire.memory.sql.store import Store
from toolwire.memory.store import KeyValue, StoreFailed

STORE_TIMEOUT = 1.0
"""Seconds for which a turn waits for the store, then goes on without it."""
MAX_UNWRITTEN_BYTES = 32 * 1024 * 1024
"""Maximum bytes that wait to be written; further values stay in memory only."""
ENTRY_OVERHEAD = 512
"""Bytes that an entry takes in memory besides its JSON."""

_encode = msgspec.json.Encoder().encode

Key = TypeVar("Key", bound="tuple[Hashable, ...]")
Value = TypeVar("Value")


class WriteBehind:
    """Writes rows to a store in the background, all pending rows in one transaction."""

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        self._rows: dict[tuple[str, str, bytes], KeyValue] = {}
        self._size = 0
        self._pending = asyncio.Event()  # set once the rows that are pending now are written
        self._written = self._pending
        self._task: asyncio.Task[None] | None = None

    def put(self, owner: str, kind: str, key: bytes, value: bytes) -> None:
        """Enqueue a value. It replaces a pending one with the same key."""
        if self._store is None or self._size > MAX_UNWRITTEN_BYTES:
            return
        replaced = self._rows.get((owner, kind, key))
        self._rows[owner, kind, key] = KeyValue(owner, kind, key, value)
        self._size += len(value) - (len(replaced.value) if replaced is not None else 0)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write(self._store))

    async def flush(self) -> None:
        """Wait until all values put so far are written or have failed, within a timeout."""
        if self._task is None:
            return
        written = self._pending if self._rows else self._written
        with suppress(TimeoutError):
            async with asyncio.timeout(STORE_TIMEOUT):
                await written.wait()

    async def _write(self, store: Store) -> None:
        try:
            while self._rows:
                rows, self._rows, self._size = self._rows, {}, 0
                self._written, self._pending = self._pending, asyncio.Event()
                with suppress(StoreFailed):
                    await store.put_values(list(rows.values()))
                self._written.set()
        finally:
            self._task = None


class CachedTable(Generic[Key, Value]):
    """Values of one kind by keys that begin with their owner. The cache is bounded in bytes."""

    def __init__(self, kind: str, type: Any, max_bytes: int, behind: WriteBehind) -> None:
        self.kind = kind
        self._decode = msgspec.json.Decoder(type).decode
        self._values: TenantCache[Key, Value] = TenantCache(max_bytes)
        self._behind = behind

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Cache a value and write it to the store. A value that JSON cannot hold (a lone surrogate) is dropped."""
        with suppress(UnicodeEncodeError):
            name, encoded = encode_key(key), _encode(value)
            self._cache(key, value, len(name) + len(encoded))
            self._behind.put(str(key[0]), self.kind, name, encoded)

    def hold(self, key: Key, value: Value) -> None:
        """Cache a value without writing it."""
        with suppress(UnicodeEncodeError):
            self._cache(key, value, len(encode_key(key)) + len(_encode(value)))

    def _cache(self, key: Key, value: Value, size: int) -> None:
        self._values.put(str(key[0]), key, value, size + ENTRY_OVERHEAD)

    def forget(self, key: Key) -> None:
        """Drop a value from the cache; the next lookup asks the store."""
        self._values.pop(key)

    def take(self, key: Key, found: bytes | None) -> None:
        """Cache what the store returned, unless a newer value was put meanwhile.

        A value that cannot be decoded counts as missing: another version may have written it.
        """
        if found is not None and self._values.get(key) is None:
            with suppress(msgspec.DecodeError):
                self._cache(key, self._decode(found), len(encode_key(key)) + len(found))


Wanted: TypeAlias = tuple[CachedTable[Any, Any], "tuple[Any, ...]"]
"""A table and a key to look up in it."""


async def load(store: Store, owner: str, wanted: Sequence[Wanted]) -> Sequence[Wanted]:
    """Load what is not cached; returns what was found: nothing if the store fails or takes too long."""
    unknown = [(table, key) for table, key in wanted if table.get(key) is None]
    if not unknown:
        return ()
    try:
        async with asyncio.timeout(STORE_TIMEOUT):
            found = await store.get_values(owner, [(table.kind, encode_key(key)) for table, key in unknown])
    except (StoreFailed, TimeoutError):
        return ()
    for (table, key), value in zip(unknown, found, strict=True):
        table.take(key, value)
    return [each for each, value in zip(unknown, found, strict=True) if value is not None]


def encode_key(key: "tuple[Any, ...]") -> bytes:
    """A key in its stored form, without its owner."""
    return _encode(key[1:])
