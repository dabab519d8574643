"""How a conversation with a backend starts, and the messages that it exchanges with the upstream.

An HTTP backend's conversation starts with a `Post`, a built-in model's with a `Script` that is played in this process,
a worker's with a `Dialogue`, in which both sides send messages until the turn is over.
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeAlias

import msgspec


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
    """A request to a worker. The id of its response ends in this `name`."""

    name: str
    method: str
    params: Any


class PendingTurn(msgspec.Struct, frozen=True):
    """A worker's thread whose turn waits for the results of calls. Only its backend can read the `state`."""

    thread: str
    calls: tuple[Hashable, ...]
    """Their keys (`memory/call_keys.py`)."""
    state: Any = None


class Dialogue:
    """Shared by a conversation and a worker's pipe: the conversation fills the outbox, and the pipe sends it.

    `owner` is the tenant of the conversation; `resume` is the pending turn that it continues, instead of a new thread.
    """

    def __init__(
        self, model: str, owner: str, resume: PendingTurn | None, pending: Callable[[], PendingTurn | None]
    ) -> None:
        self.model = model
        self.owner = owner
        self.resume = resume
        self.outbox: list[Ask | bytes] = []
        """Messages to send: requests, and responses as lines."""
        self.is_over = False
        """The turn is over for the client: nothing more will be read."""
        self._pending = pending

    @property
    def waiting(self) -> PendingTurn | None:
        """The turn, if it ended for the client because its thread waits for results."""
        return self._pending()


class ContextWindow(msgspec.Struct, frozen=True):
    """The model's context window as a reply reported it: its size in tokens, and whether it is full."""

    tokens: int = 0
    """0 if the reply did not say."""
    is_full: bool = False
    """The model stopped because the window is full."""


Opening: TypeAlias = Post | Script | Dialogue
"""How a conversation begins."""
