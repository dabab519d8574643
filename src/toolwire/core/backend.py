"""What a backend is to the rest: a conversation about one request, told apart from how bytes travel.

An HTTP backend's `start` is a `Post`; a built-in model's is a `Script` that is played in this process; a worker's is a
`Dialogue`, in which both sides go on speaking. The reply, frame by frame or as one plain body, comes back as turn
events either way.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from toolwire.core.errors import Failure
from toolwire.core.events import Event
from toolwire.core.sse import Frame


class Post(msgspec.Struct, frozen=True):
    """One HTTP request to send."""

    path: str
    body: bytes
    headers: dict[str, str] = {}


class Wait(msgspec.Struct, frozen=True):
    """A pause in a script."""

    seconds: float


class Refuse(msgspec.Struct, frozen=True):
    """The script answers with an HTTP error instead of a turn."""

    status: int
    body: bytes
    headers: dict[str, str] = {}


class Break(msgspec.Struct, frozen=True):
    """The script's connection breaks here."""


Step: TypeAlias = bytes | Wait | Refuse | Break


class Script(msgspec.Struct, frozen=True):
    """A reply that needs no network: its bytes, pauses and accidents."""

    steps: Iterator[Step]
    content_type: str = "text/event-stream"


class Ask(msgspec.Struct, frozen=True):
    """A request to a worker. Its answer comes with an id that ends in this `name`."""

    name: str
    method: str
    params: Any


class Waiting(msgspec.Struct, frozen=True):
    """A worker's thread whose turn waits for the results of calls. Only its backend can read the `facts`."""

    thread: str
    calls: tuple[str, ...]
    facts: Any = None


class Dialogue:
    """What a conversation and a worker's pipe have in common: the one fills it, the other carries it out.

    `owner` is whose conversation it is; `goes_on` is the thread that it goes on with, instead of a new one.
    """

    def __init__(self, model: str, owner: str = "", goes_on: Waiting | None = None) -> None:
        self.model = model
        self.owner = owner
        self.goes_on = goes_on
        self.outbox: list[Ask | bytes] = []
        """What is to be sent next: requests, and answers as lines."""
        self.is_over = False
        """The turn is over for the client: nothing more will be heard."""
        self.waiting: Waiting | None = None
        """It is, and its thread waits for results."""


class ContextWindow(msgspec.Struct, frozen=True):
    """What a reply said of the model's context window: how many tokens it takes, and that it is full."""

    tokens: int = 0
    """0: nothing was said."""
    is_full: bool = False
    """The model stopped for that reason."""


Opening: TypeAlias = Post | Script | Dialogue


class Conversation(Protocol):
    """One request to one backend and everything it answers."""

    @property
    def flowing(self) -> Sequence[bytes]:
        """The beginnings of the fields whose text may be read in runs of frames."""
        ...

    @property
    def context_window(self) -> ContextWindow: ...

    @property
    def ended(self) -> bool:
        """The backend has said its last word about the turn."""
        ...

    @property
    def finishing(self) -> int:
        """Frames since every choice has its finish reason, without heartbeats; 0 before that."""
        ...

    def start(self) -> Opening: ...

    def feed(self, frame: Frame) -> Sequence[Event]: ...

    def end(self) -> Sequence[Event]: ...

    def feed_plain(self, body: bytes) -> Sequence[Event]: ...

    def stand_in(self, call: str, delivered: str) -> None:
        """A call of this turn was not delivered; the result of the one that was delivered in its place answers it."""
        ...

    def reasoning(self) -> str:
        """The reasoning so far as a chat server wrote it: the fields of its message as JSON. Others have none."""
        ...

    def refused(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure: ...
