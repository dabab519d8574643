"""What part of a request a server refuses, where it says so and the request makes sense without that part."""

import re

import msgspec

from toolwire.core.errors import Failure
from toolwire.core.request import Omission

_STATUS = (400, 422)
_INCLUDE = re.compile(r"""['"`]include\b|\binclude\[|encrypted content is not supported""")
_FIELD = re.compile(r"""\breasoning_(?:content|details)\b|\bmessages?\b.*[.'"`\]]reasoning\b""", re.DOTALL)
"""A field of a message. `reasoning` alone is also a field of a request."""
_REFUSES = re.compile(r"not (?:supported|permitted|allowed)|unsupported|unexpected|unknown|unrecogni|extra|forbidden")
_WANTS = re.compile(r"missing|required|passed back|must be (?:passed|provided|included|present|set)")


class Refused(msgspec.Struct, frozen=True):
    """A part that a server refuses; `always`, or only what this request has of it."""

    part: Omission
    always: bool


def refused(failure: Failure) -> Refused | None:
    """The part that is refused, if the failure is about one."""
    if failure.status not in _STATUS:
        return None
    message = failure.message.lower()
    if failure.code == "invalid_encrypted_content" or ("signature" in message and "thinking" in message):
        return Refused("reasoning", always=False)  # OpenAI's words for a signature that it cannot read, and Anthropic's
    if (failure.param or "").startswith("include") or _INCLUDE.search(message):
        return Refused("include", always=True)
    if not _FIELD.search(f"{message} {failure.param}"):
        return None
    # DeepSeek and Kimi name the field where they miss it.
    is_wanted = _WANTS.search(message) and not _REFUSES.search(message)
    return None if is_wanted else Refused("reasoning", always=True)
