"""A cache that is bounded in bytes and shared fairly by several tenants."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

ENTRY_OVERHEAD = 256
"""Bytes that an entry costs beside its value."""


class TenantCache(Generic[Key, Value]):
    """Beyond `max_bytes`, the oldest value of the tenant with the most bytes is evicted.

    So a tenant loses nothing to others while it uses no more than an equal share.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._tenants: dict[Key, str] = {}
        self._tables: dict[str, OrderedDict[Key, tuple[Value, int]]] = {}
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._tenants)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._tenants)

    def get(self, key: Key) -> Value | None:
        """The value under a key, unless it was evicted."""
        tenant = self._tenants.get(key)
        return self._tables[tenant][key][0] if tenant is not None else None

    def put(self, tenant: str, key: Key, value: Value, size: int) -> None:
        """Store a value of `size` bytes as the tenant's newest; one that is larger than the cache is not stored."""
        self.pop(key)
        self._tenants[key] = tenant
        self._tables.setdefault(tenant, OrderedDict())[key] = value, size + ENTRY_OVERHEAD
        self._grow(tenant, size + ENTRY_OVERHEAD)
        while self._size > self._max_bytes:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self.pop(next(iter(self._tables[largest])))

    def pop(self, key: Key) -> None:
        """Remove a value, if it is there."""
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
