"""A recorded turn served again, as the backend it was recorded from."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec

from toolwire.backends import chat, codex, messages, responses
from toolwire.backends.lowered import LoweredConversation
from toolwire.core.recording import Recording
from toolwire.core.request import Request

KINDS: dict[str, Callable[[Request, str], LoweredConversation]] = {
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


def conversation(request: Request, seed: str, recording: Recording, profile: Profile) -> LoweredConversation:
    """A conversation with the backend that was recorded, in which any request is answered with the recording."""
    made = KINDS[recording.head.kind](request, seed)
    made.start = partial(recording.script, timed=profile.timing == "original")
    return made
