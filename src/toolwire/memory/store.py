"""What the gateway needs of a store, and how a store says that it fails. Everything in it belongs to an owner."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from toolwire.core.errors import Failure, ToolwireError
from toolwire.pauses import retry_after

Raw = msgspec.Raw
Kind: TypeAlias = Literal["response", "conversation"]
Reason: TypeAlias = Literal["full", "busy", "readonly", "corrupt", "missing", "in_use", "io"]


class KeptItem(msgspec.Struct, frozen=True):
    """An item with the id it is known by."""

    id: str
    raw: Raw


class Record(msgspec.Struct, frozen=True):
    """A response as it is kept. `response` has no output: that is in the items."""

    id: str
    created: float
    status: str
    fields: bytes
    """What was asked, as JSON, but for the items."""
    response: bytes
    previous: str = ""
    conversation: str = ""
    continuation: str = ""
    """The response that its tool outputs led to, once they were submitted."""


class EventChunk(NamedTuple):
    """Some events of a background run, one after the other as they were sent."""

    first: int
    """The number of the first one."""
    frames: bytes


class Effects(msgspec.Struct, frozen=True):
    """What a response that is kept changes elsewhere, in the same transaction."""

    link: tuple[str, str] | None = None
    """A response, and what its tool outputs have led to."""
    conversation: str = ""
    """The conversation that the items of the response are added to."""
    answered: tuple[str, ...] = ()
    """Calls in that conversation that the response brought results for."""


class Page(msgspec.Struct, frozen=True):
    items: list[KeptItem]
    has_more: bool


class Conversation(msgspec.Struct, frozen=True):
    id: str
    created: float
    metadata: bytes


class KeptRow(msgspec.Struct, frozen=True):
    """A value of some kind that is kept between turns."""

    owner: str
    kind: str
    key: bytes
    value: bytes


class StoreFailed(ToolwireError):
    """The store cannot be read or written now."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason

    @property
    def failure(self) -> Failure:
        message = f"The store of responses and conversations cannot be used now ({_SAID[self.reason]})."
        return Failure(503, "store_unavailable", message, retry_after=retry_after(5), retryable=True)


_SAID: dict[Reason, str] = {
    "full": "no room is left on its disk",
    "busy": "another program has locked it",
    "readonly": "it cannot be written to",
    "corrupt": "its file is damaged",
    "missing": "its file has gone",
    "in_use": "another gateway uses its file",
    "io": "its disk reports an error",
}


class TooLarge(Exception):
    """What was asked for has more bytes than whoever asks may take; nothing of it was loaded."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class Store(Protocol):
    """What the gateway needs of a store. Every call is about one owner's things."""

    @property
    def failing(self) -> Reason | None:
        """Why the latest attempt failed, if it did."""
        ...

    async def save(
        self,
        owner: str,
        record: Record,
        given: Sequence[KeptItem] | None,
        made: Sequence[KeptItem],
        effects: Effects = ...,
        events: Iterable[EventChunk] = ...,
    ) -> None: ...

    async def load(self, owner: str, id: str) -> Record | None: ...

    async def events(self, owner: str, id: str, number: int) -> EventChunk | None: ...

    async def input(self, owner: str, holder: str, most: int = ...) -> list[Raw]: ...

    async def output(self, owner: str, id: str) -> list[Raw]: ...

    async def chain(self, owner: str, id: str, most: int = ...) -> list[Raw] | None: ...

    async def missing_link(self, owner: str, id: str) -> str: ...

    async def delete(self, owner: str, id: str, kind: Kind = "response") -> bool: ...

    async def page(
        self, owner: str, holder: str, after: str, limit: int, order: str, most: int = ...
    ) -> Page | None: ...

    async def find(self, owner: str, ids: Sequence[str], most: int = ...) -> dict[str, Raw]: ...

    async def put_conversation(self, owner: str, conversation: Conversation) -> None: ...

    async def conversation(self, owner: str, id: str) -> Conversation | None: ...

    async def add_items(self, owner: str, holder: str, items: Sequence[KeptItem]) -> None: ...

    async def item(self, owner: str, holder: str, id: str) -> Raw | None: ...

    async def delete_item(self, owner: str, holder: str, id: str) -> bool: ...

    async def put_kept(self, rows: Sequence[KeptRow]) -> None: ...

    async def get_kept(self, owner: str, keys: Sequence[tuple[str, bytes]], most: int = ...) -> list[bytes | None]: ...

    async def probe(self) -> bool: ...
