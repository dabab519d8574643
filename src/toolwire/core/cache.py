"""Caches the results of functions by their argument. The arguments are clients' data, so caches are bounded in bytes.

    @Cache
    def _tools(data: bytes) -> tuple[Tool, ...]: ...

    tools = _tools[data]

A hit costs one lookup in a dict. An entry that was not used while half of the bytes were replaced is evicted.
"""

from collections.abc import Callable, Hashable
from sys import getsizeof
from typing import Any, TypeVar, cast

import msgspec

MAX_ENTRY_BYTES = 512 * 1024
"""Maximum bytes of a key and its result. A larger result is computed each time."""

MAX_CACHE_BYTES = 4 * 1024 * 1024
"""Maximum bytes of all entries of one cache."""

ENTRY_OVERHEAD = 256
"""Bytes that an entry costs beside its key and value."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedDict(dict[Key, Value]):
    """A dict that is bounded in bytes. Read it with `find` and write it with `keep`."""

    def __init__(self, size: Callable[[Key, Value], int]) -> None:
        super().__init__()
        self._size_of = size
        self._size = 0
        self._earlier: dict[Key, Value] = {}  # the older half: entries that were not used since

    def find(self, key: Key) -> Value | None:
        """The value under a key, or None."""
        value = self.get(key)
        if value is None and key in self._earlier:
            value = self._earlier.pop(key)
            self.keep(key, value)
        return value

    def keep(self, key: Key, value: Value) -> None:
        """Store a value, unless it is too large."""
        size = self._size_of(key, value)
        if size > MAX_ENTRY_BYTES:
            return
        self._size += size + ENTRY_OVERHEAD
        if self._size > MAX_CACHE_BYTES // 2:
            self._earlier = dict(self)
            self.clear()
            self._size = size + ENTRY_OVERHEAD
        self[key] = value


class Cache(BoundedDict[Key, Value]):
    """The results of a function of one argument: text, bytes, or a tuple or set of them."""

    def __init__(self, make: Callable[[Key], Value]) -> None:
        super().__init__(_entry_size)
        self._make = make

    def __missing__(self, key: Key) -> Value:
        if key in self._earlier:
            return cast("Value", self.find(key))
        value = self._make(key)
        self.keep(key, value)
        return value


def _entry_size(key: object, value: object) -> int:
    """The bytes of an entry, or of its key if that alone is too large."""
    size = size_of(key)
    return size if size > MAX_ENTRY_BYTES else size + size_of(value)


_FLAT, _COLLECTIONS = (str, bytes, int), (tuple, frozenset)


def size_of(thing: object) -> int:
    """The bytes of a value made of text, tuples and structs."""
    if isinstance(thing, _FLAT):
        return getsizeof(thing)
    if isinstance(thing, msgspec.Raw):
        return len(bytes(thing))
    if isinstance(thing, _COLLECTIONS):
        parts = cast("tuple[Any, ...]", thing)
        return sum(map(size_of, parts), getsizeof(parts))
    if isinstance(thing, msgspec.Struct):
        return sum((size_of(getattr(thing, name)) for name in thing.__struct_fields__), getsizeof(thing))
    return getsizeof(thing)
