"""Thought signatures for Gemini clients that hold what other servers want back.

Every client returns the `thoughtSignature` of a part, and some of them nothing else: neither the id of a call nor a
thought. So the first part behind the reasoning of another server carries its signatures, and a call its own id:

    {"functionCall": {…}, "thoughtSignature": BASE64("toolwire.signature.1." JSON)}

Python clients refuse a whole reply if a signature is no Base64, and return it in the other alphabet.
"""

import base64

import msgspec

from toolwire.core.events import UNSIGNED_ORIGIN
from toolwire.core.raw import fields_of
from toolwire.core.signatures import PREFIX, UNKNOWN_THOUGHT_SIGNATURE, PackedSignature, decode_base64, normalise_base64

_PREFIX = PREFIX.encode()
_WORDS = (UNKNOWN_THOUGHT_SIGNATURE, "context_engineering_is_the_way_to_go")
_SENTINELS = frozenset(
    normalise_base64(form) for word in _WORDS for form in (word, base64.b64encode(word.encode()).decode())
)
"""What clients send to Google instead of a signature that they do not have."""


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """What one thought signature carries."""

    call: str = ""
    """The id of the call."""
    signature: str = ""
    """The signature of the call, as a JSON object."""
    reasoning: tuple[PackedSignature, ...] = ()
    """The signatures of the reasoning before the part."""


def pack_carried(carried: Carried) -> str:
    """A thought signature that carries this."""
    return base64.b64encode(_PREFIX + msgspec.json.encode(carried)).decode()


def read_thought_signature(signature: str) -> Carried | str:
    """What a thought signature carries, or Gemini's own signature; empty if it is a placeholder."""
    data = decode_base64(signature)
    if data is None or not data.startswith(_PREFIX):
        normal = normalise_base64(signature)
        return "" if normal in _SENTINELS else normal
    try:
        carried = msgspec.json.decode(data[len(_PREFIX) :], type=Carried)
        if carried.signature:
            fields_of(carried.signature)
    except (ValueError, RecursionError, msgspec.DecodeError):
        return Carried()  # damaged
    # Plain reasoning is never packed: a forged package could put any field into the request to a server.
    kept = tuple(each for each in carried.reasoning if each.origin not in ("", UNSIGNED_ORIGIN))
    return msgspec.structs.replace(carried, reasoning=kept)
