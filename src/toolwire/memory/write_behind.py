"""Tables of what is kept between turns: at hand in memory, and in the store for other processes and later ones.

What is put is written in the background, before its turn ends. What memory does not have is asked for each time: other
processes may have put it meanwhile.
"""

import asyncio
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from toolwire.core.shares import Shares
from toolwire.memory.store import KeyValue, Store, StoreFailed

PATIENCE = 1.0
"""Seconds for which a turn waits for the store. It can do without."""
UNWRITTEN_BYTES = 32 * 1024 * 1024
"""Most bytes that wait to be written; what comes beyond is at hand in memory only."""

OBJECTS = 512
"""Bytes that a key and a value take in memory beside those of their JSON."""

_encode = msgspec.json.Encoder().encode

Key = TypeVar("Key", bound="tuple[Hashable, ...]")
Value = TypeVar("Value")


class WriteBehind:
    """Writes rows to a store in the background, all that have gathered in one transaction."""

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        self._rows: dict[tuple[str, str, bytes], KeyValue] = {}
        self._size = 0
        self._gathered = asyncio.Event()  # set once the rows that gather now are written
        self._written = self._gathered
        self._task: asyncio.Task[None] | None = None

    def put(self, owner: str, kind: str, key: bytes, value: bytes) -> None:
        """Write a value by and by. The later of two with one key counts."""
        if self._store is None or self._size > UNWRITTEN_BYTES:
            return
        self._rows[owner, kind, key] = KeyValue(owner, kind, key, value)
        self._size += len(value)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write(self._store))

    async def flush(self) -> None:
        """Wait until what was put so far is written, or cannot be, but not for long."""
        if self._task is None:
            return
        written = self._gathered if self._rows else self._written
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await written.wait()

    async def _write(self, store: Store) -> None:
        try:
            while self._rows:
                rows, self._rows, self._size = self._rows, {}, 0
                self._written, self._gathered = self._gathered, asyncio.Event()
                with suppress(StoreFailed):
                    await store.put_values(list(rows.values()))
                self._written.set()
        finally:
            self._task = None


class CachedTable(Generic[Key, Value]):
    """Values of one kind by keys that begin with their owner, bounded in memory."""

    def __init__(self, kind: str, type: Any, most: int, behind: WriteBehind) -> None:
        self.kind = kind
        self._decode = msgspec.json.Decoder(type).decode
        self._values: Shares[Key, Value] = Shares(most)
        self._behind = behind

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Keep a value, also in the store. One with half a character, which no file of text can hold, is not kept."""
        with suppress(UnicodeEncodeError):
            name, encoded = encode_key(key), _encode(value)
            self._hold(key, value, len(name) + len(encoded))
            self._behind.put(str(key[0]), self.kind, name, encoded)

    def hold(self, key: Key, value: Value) -> None:
        """Keep a value in memory only."""
        with suppress(UnicodeEncodeError):
            self._hold(key, value, len(encode_key(key)) + len(_encode(value)))

    def _hold(self, key: Key, value: Value, size: int) -> None:
        self._values.put(str(key[0]), key, value, size + OBJECTS)

    def forget(self, key: Key) -> None:
        """A value is out of date; the store is asked the next time."""
        self._values.pop(key)

    def take(self, key: Key, found: bytes | None) -> None:
        """Use what the store answered, unless a newer value was put while it was asked.

        A value that cannot be read counts as absent: another version may have written it.
        """
        if found is not None and self._values.get(key) is None:
            with suppress(msgspec.DecodeError):
                self._hold(key, self._decode(found), len(encode_key(key)) + len(found))


Wanted: TypeAlias = tuple[CachedTable[Any, Any], "tuple[Any, ...]"]
"""A key that is looked for in a table."""


async def load(store: Store, owner: str, wanted: Sequence[Wanted]) -> Sequence[Wanted]:
    """Ask the store for what is not at hand; returns what it had. One that fails or takes long has nothing."""
    unknown = [(table, key) for table, key in wanted if table.get(key) is None]
    if not unknown:
        return ()
    try:
        async with asyncio.timeout(PATIENCE):
            found = await store.get_values(owner, [(table.kind, encode_key(key)) for table, key in unknown])
    except (StoreFailed, TimeoutError):
        return ()
    for (table, key), value in zip(unknown, found, strict=True):
        table.take(key, value)
    return [each for each, value in zip(unknown, found, strict=True) if value is not None]


def encode_key(key: "tuple[Any, ...]") -> bytes:
    """A key as the store has it, without its owner."""
    return _encode(key[1:])
