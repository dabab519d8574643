"""What WebSocket connections remember of their latest responses, though nothing is stored."""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from toolwire.core.shares import Shares

Raw = msgspec.Raw

LANES = 32
"""Lanes whose latest response one connection remembers."""
ITEM = 128
"""Bytes that an item costs beside its own."""

Remembered: TypeAlias = Shares["tuple[Memory, str]", "tuple[str, Sequence[Raw]]"]
"""The latest responses of all connections, by connection and lane: the id and all items up to it."""


class Memory:
    """The latest response of each lane of one connection, with everything before it, in at most so many bytes."""

    def __init__(self, remembered: Remembered, owner: str, most: int) -> None:
        self.lane = ""
        self._remembered = remembered
        self._owner = owner
        self._most = most
        self._sizes: dict[str, int] = {}  # of lanes, the one used last at the end

    def get(self, id: str) -> Sequence[Raw] | None:
        found = (self._remembered.get((self, lane)) for lane in self._sizes)
        return next((each[1] for each in found if each is not None and each[0] == id), None)

    def put(self, id: str, items: Sequence[Raw]) -> None:
        """Remember a response, and forget the oldest ones beyond the bounds; one that is too large is forgotten too."""
        size = sum(map(len, items)) + ITEM * len(items)
        self._sizes.pop(self.lane, None)
        self._sizes[self.lane] = size
        self._remembered.put(self._owner, (self, self.lane), (id, items), size)
        while len(self._sizes) > LANES or sum(self._sizes.values()) > self._most:
            self._forget(next(iter(self._sizes)))

    def evict(self, id: str) -> None:
        for lane in tuple(self._sizes):
            found = self._remembered.get((self, lane))
            if found is None or found[0] == id:
                self._forget(lane)

    def close(self) -> None:
        """The connection is over: everything is given back."""
        for lane in tuple(self._sizes):
            self._forget(lane)

    def _forget(self, lane: str) -> None:
        del self._sizes[lane]
        self._remembered.pop((self, lane))
