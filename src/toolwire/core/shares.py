"""A table that is bounded in bytes and shared by several owners."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

ENTRY = 256
"""Bytes that an entry costs beside its value."""


class Shares(Generic[Key, Value]):
    """Values of several owners. Beyond the bound the owner with most bytes loses their oldest value.

    So no owner loses anything to others while they use no more than an equal share.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._owners: dict[Key, str] = {}
        self._tables: dict[str, OrderedDict[Key, tuple[Value, int]]] = {}
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._owners)

    def get(self, key: Key) -> Value | None:
        """The value under a key, if it is still there."""
        owner = self._owners.get(key)
        return self._tables[owner][key][0] if owner is not None else None

    def put(self, owner: str, key: Key, value: Value, size: int) -> None:
        """Store a value of `size` bytes as the owner's newest; one that is too large for the table is not kept."""
        self.pop(key)
        self._owners[key] = owner
        self._tables.setdefault(owner, OrderedDict())[key] = value, size + ENTRY
        self._grow(owner, size + ENTRY)
        while self._size > self._most:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self.pop(next(iter(self._tables[largest])))

    def pop(self, key: Key) -> None:
        """Remove a value, if it is there."""
        owner = self._owners.pop(key, None)
        if owner is None:
            return
        _, size = self._tables[owner].pop(key)
        self._grow(owner, -size)
        if not self._tables[owner]:
            del self._tables[owner], self._sizes[owner]

    def _grow(self, owner: str, size: int) -> None:
        self._size += size
        self._sizes[owner] = self._sizes.get(owner, 0) + size
