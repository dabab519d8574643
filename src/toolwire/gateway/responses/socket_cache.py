"""The latest responses of WebSocket connections, cached so that a chain works even if nothing is stored.

A lane is one stream of a connection: the requests with one `stream_id`.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from toolwire.core.cache import TenantCache

Raw = msgspec.Raw

MAX_LANES = 32
"""Maximum lanes of one connection whose latest response is cached."""
ITEM_OVERHEAD = 128
"""Bytes counted for an item besides its own."""

SocketResponses: TypeAlias = TenantCache["tuple[SocketCache, str]", "tuple[str, Sequence[Raw]]"]
"""The latest responses of all connections, by connection and lane: the id, and all items up to it."""


class SocketCache:
    """The latest response of each lane of one connection, with everything before it, within `max_bytes`."""

    def __init__(self, responses: SocketResponses, owner: str, max_bytes: int) -> None:
        self.lane = ""
        """The lane of the turn that is being answered."""
        self._responses = responses
        self._owner = owner
        self._max_bytes = max_bytes
        self._sizes: dict[str, int] = {}  # by lane, the one used last at the end

    def get(self, id: str) -> Sequence[Raw] | None:
        """The items up to a response, if it is the latest of a lane."""
        found = (self._responses.get((self, lane)) for lane in self._sizes)
        return next((each[1] for each in found if each is not None and each[0] == id), None)

    def put(self, id: str, items: Sequence[Raw]) -> None:
        """Cache a response, and evict the oldest beyond the limits. A response that is too large is evicted too."""
        size = sum(map(len, items)) + ITEM_OVERHEAD * len(items)
        self._sizes.pop(self.lane, None)
        self._sizes[self.lane] = size
        self._responses.put(self._owner, (self, self.lane), (id, items), size)
        while len(self._sizes) > MAX_LANES or sum(self._sizes.values()) > self._max_bytes:
            self._evict_lane(next(iter(self._sizes)))

    def evict(self, id: str) -> None:
        """Evict a response."""
        for lane in tuple(self._sizes):
            found = self._responses.get((self, lane))
            if found is None or found[0] == id:
                self._evict_lane(lane)

    def close(self) -> None:
        """Evict everything: the connection is closed."""
        for lane in tuple(self._sizes):
            self._evict_lane(lane)

    def _evict_lane(self, lane: str) -> None:
        del self._sizes[lane]
        self._responses.pop((self, lane))
