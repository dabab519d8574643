"""A recorded turn served again, as the backend it was recorded from."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from toolwire.backends import chat, codex, messages, responses
from toolwire.core.backend import ContextWindow, Script
from toolwire.core.backend import Conversation as AnyConversation
from toolwire.core.errors import Failure
from toolwire.core.events import Event
from toolwire.core.recording import Recording
from toolwire.core.request import Request
from toolwire.core.sse import Frame

KINDS: dict[str, Callable[[Request, str], AnyConversation]] = {
    "responses": responses.Conversation,
    "chat": chat.Conversation,
    "messages": messages.Conversation,
    "codex": codex.Conversation,
    "demo": responses.Conversation,
}
"""The backends whose recordings can be read."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a recording is played: at once, or with its original timing."""

    timing: Literal["none", "original"] = "none"


class Conversation:
    """Any request, answered with the recording."""

    def __init__(self, request: Request, seed: str, recording: Recording, profile: Profile) -> None:
        self._inner = KINDS[recording.head.kind](request, seed)
        self._recording = recording
        self._profile = profile

    def start(self) -> Script:
        return self._recording.script(timed=self._profile.timing == "original")

    @property
    def delta_fields(self) -> Sequence[bytes]:
        return self._inner.delta_fields

    def feed(self, frame: Frame) -> Sequence[Event]:
        return self._inner.feed(frame)

    @property
    def context_window(self) -> ContextWindow:
        return self._inner.context_window

    @property
    def ended(self) -> bool:
        return self._inner.ended

    @property
    def finishing(self) -> int:
        return self._inner.finishing

    def end(self) -> Sequence[Event]:
        return self._inner.end()

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        return self._inner.feed_plain(body)

    def stand_in(self, call: str, delivered: str) -> None:
        self._inner.stand_in(call, delivered)

    def reasoning(self) -> str:
        return self._inner.reasoning()

    def refused(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        return self._inner.refused(status, headers, body)
