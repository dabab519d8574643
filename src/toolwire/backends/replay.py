"""A recorded turn served again, as the backend it was recorded from."""

from functools import partial
from typing import Literal, TypeAlias

import msgspec

from toolwire.backends.lowered import LoweredConversation
from toolwire.core.recording import Recording

Timing: TypeAlias = Literal["none", "original"]


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a recording is played: at once, or with its original timing."""

    timing: Timing = "none"


def answer_with(
    conversation: LoweredConversation, recording: Recording, timing: Timing = "none"
) -> LoweredConversation:
    """The conversation with the backend that was recorded, in which any request is answered with the recording."""
    conversation.start = partial(recording.script, timed=timing == "original")
    return conversation
