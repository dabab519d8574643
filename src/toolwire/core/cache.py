"""Caches that are bounded in bytes, because they hold clients' data.

`Cache` stores the results of a function by its argument:

    @Cache
    def _tools(data: bytes) -> tuple[Tool, ...]: ...

    tools = _tools[data]

A hit costs one lookup in a dict. An entry that stays unused while half of the bytes are replaced is evicted.
`TenantCache` divides its bytes fairly between tenants.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from sys import getsizeof
from threading import RLock
from typing import Any, Generic, TypeVar, cast

import msgspec

MAX_ENTRY_BYTES = 512 * 1024
"""Maximum bytes of a key and its result. A larger result is computed each time."""

MAX_CACHE_BYTES = 4 * 1024 * 1024
"""Maximum bytes of all entries of one cache."""

ENTRY_OVERHEAD = 256
"""Bytes of an entry in addition to its value."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedDict(dict[Key, Value]):
    """A dict that is bounded in bytes. Read it with `find` and write it with `keep`."""

    def __init__(self, size: Callable[[Key, Value], int]) -> None:
        super().__init__()
        self._size_of = size
        self._size = 0
        self._earlier: dict[Key, Value] = {}  # the older half: entries not used since the last swap

    def find(self, key: Key) -> Value | None:
        """The value under a key, or None."""
        value = self.get(key)
        if value is None and (value := self._earlier.pop(key, None)) is not None:
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

    def __init__(self, make: Callable[[Key], Value], size: Callable[[Key, Value], int] | None = None) -> None:
        super().__init__(size or (lambda key, value: size_of(key) + size_of(value)))
        self._make = make

    def __missing__(self, key: Key) -> Value:
        value = self._earlier.pop(key, None)
        value = self._make(key) if value is None else value
        self.keep(key, value)
        return value


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


class TenantCache(Generic[Key, Value]):
    """A cache that, beyond `max_bytes`, evicts the oldest value of the tenant with the most bytes.

    So a tenant loses nothing to others while it uses no more than an equal share. Threads may share it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._tenants: dict[Key, str] = {}
        self._tables: dict[str, OrderedDict[Key, tuple[Value, int]]] = {}
        self._sizes: dict[str, int] = {}
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self._tenants)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._tenants)

    def get(self, key: Key) -> Value | None:
        """The value under a key, unless it was evicted."""
        with self._lock:
            tenant = self._tenants.get(key)
            return self._tables[tenant][key][0] if tenant is not None else None

    def put(self, tenant: str, key: Key, value: Value, size: int) -> None:
        """Store a value of `size` bytes as the tenant's newest; one that is larger than the cache is not stored."""
        with self._lock:
            self.pop(key)
            if size + ENTRY_OVERHEAD > self._max_bytes:
                return
            self._tenants[key] = tenant
            self._tables.setdefault(tenant, OrderedDict())[key] = value, size + ENTRY_OVERHEAD
            self._grow(tenant, size + ENTRY_OVERHEAD)
            while self._size > self._max_bytes:
                largest = max(self._sizes, key=self._sizes.__getitem__)
                self.pop(next(iter(self._tables[largest])))

    def pop(self, key: Key) -> None:
        """Remove a value, if it is there."""
        with self._lock:
            tenant = self._tenants.pop(key, None)
            if tenant is None:
                return
            _, size = self._tables[tenant].pop(key)
            self._grow(tenant, -size)
            if not self._tables[tenant]:
                del self._tables[tenant], self._sizes[tenant]

    def _grow(self, tenant: str, size: int) -> None:
        self._size += size
        self._sizes[tenant] = self._sizes.get(tenant, 0) + size
