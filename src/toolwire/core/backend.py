"""What a backend is to the rest: a conversation about one request, which knows nothing of how bytes travel.

An HTTP backend's `start` is a `Post`; a built-in model's is a `Script` that is played in this process; a worker's is a
`Dialogue`, in which both sides send messages until the turn is over. The reply, frame by frame or as one plain body,
comes back as turn events either way.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
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
    """A reply that needs no network: its bytes, pauses and failures."""

    steps: Iterator[Step]
    content_type: str = "text/event-stream"


class Ask(msgspec.Struct, frozen=True):
    """A request to a worker. Its answer comes with an id that ends in this `name`."""

    name: str
    method: str
    params: Any


class PendingTurn(msgspec.Struct, frozen=True):
    """A worker's thread whose turn waits for the results of calls. Only its backend can read the `state`."""

    thread: str
    calls: tuple[Hashable, ...]
    """Their keys (`memory/keys.py`)."""
    state: Any = None


class Dialogue:
    """What a conversation and a worker's pipe share: the conversation fills it, and the pipe sends what is in it.

    `owner` is whose conversation it is; `resume` is the pending turn that it continues, instead of a new thread.
    """

    def __init__(
        self, model: str, owner: str, resume: PendingTurn | None, pending: Callable[[], PendingTurn | None]
    ) -> None:
        self.model = model
        self.owner = owner
        self.resume = resume
        self.outbox: list[Ask | bytes] = []
        """What to send next: requests, and responses as lines."""
        self.is_over = False
        """The turn is over for the client: nothing more will be read."""
        self._pending = pending

    @property
    def waiting(self) -> PendingTurn | None:
        """The turn, if it is over for the client because its thread waits for results."""
        return self._pending()


class ContextWindow(msgspec.Struct, frozen=True):
    """What a reply reported about the model's context window: its size in tokens, and whether it is full."""

    tokens: int = 0
    """0 if the reply did not say."""
    is_full: bool = False
    """The model stopped because the window is full."""


Opening: TypeAlias = Post | Script | Dialogue
"""How a conversation begins."""


class Conversation(Protocol):
    """One request to one backend and everything it answers."""

    @property
    def delta_fields(self) -> Sequence[bytes]:
        """The opening bytes of the fields whose text may be read in batches of frames."""
        ...

    @property
    def context_window(self) -> ContextWindow:
        """What the reply reported about the model's context window."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the backend's stream has ended the turn."""
        ...

    @property
    def finishing(self) -> int:
        """Frames since every choice has its finish reason, without heartbeats; 0 before that."""
        ...

    def start(self) -> Opening:
        """What to send to the backend."""
        ...

    def feed(self, frame: Frame) -> Sequence[Event]:
        """The events of one frame of a streamed reply."""
        ...

    def end(self) -> Sequence[Event]:
        """The events caused by the end of the stream."""
        ...

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        """The events of a reply that is not streamed."""
        ...

    def stand_in(self, call: str, delivered: str) -> None:
        """Answer a call that was not delivered with the result of the call that was delivered in its place."""
        ...

    def reasoning(self) -> str:
        """The reasoning so far as a chat server wrote it: the fields of its message as JSON. Others have none."""
        ...

    def refused(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        """The failure that an HTTP error of the backend means."""
        ...
