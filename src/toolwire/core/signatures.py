"""Packs reasoning signatures for clients whose dialect is not that of the server that made them.

A signature can only be read by its origin and must return unchanged. A client of the origin's dialect carries it as it
is; any other carries a package that names the origin and holds everything that the origin needs back.
"""

import base64
from typing import Any

import msgspec

from toolwire.core.events import UNSIGNED_ORIGIN, Origin

PREFIX = "toolwire.signature.1."


class PackedSignature(msgspec.Struct, frozen=True, array_like=True):
    """A signature, its origin, and the reasoning that belongs to it."""

    origin: Origin
    id: str
    text: tuple[str, ...]
    signature: str
    redacted: bool = False


def pack(signature: PackedSignature) -> str:
    """The signature as text for a client of another dialect."""
    return PREFIX + base64.urlsafe_b64encode(msgspec.json.encode(signature)).decode().rstrip("=")


def is_packed(text: str) -> bool:
    """Whether a text begins like a package, even if it is damaged."""
    return text.startswith(PREFIX)


def unpack(text: str) -> PackedSignature | None:
    """The signature in a package, or None if the text is not a valid package."""
    if not text.startswith(PREFIX):
        return None
    packed = text.removeprefix(PREFIX)
    try:
        data = base64.b64decode(packed + "=" * (-len(packed) % 4), b"-_", validate=True)
        signature = msgspec.json.decode(data, type=PackedSignature)
    except (ValueError, RecursionError, msgspec.DecodeError):
        return None
    # Plain reasoning is never packed: a forged package could put any field into the request to a server.
    return signature if signature.origin not in ("", UNSIGNED_ORIGIN) else None


UNKNOWN_THOUGHT_SIGNATURE = "skip_thought_signature_validator"
"""Google's word for the signature of a call that another model made."""


def wrap_thought_signature(signature: str) -> str:
    """Gemini's signature as the signature of a call: the JSON that Google's Chat Completions endpoint puts on a call.

    Some clients return the other alphabet of Base64, so every signature is written in the standard one.
    """
    return msgspec.json.encode({"google": {"thought_signature": normalise_base64(signature)}}).decode()


def unwrap_thought_signature(signature: str) -> str:
    """Gemini's signature in the signature of a call; empty if another server made it."""
    try:
        google: Any = msgspec.json.decode(signature)["google"]
        found: Any = google["thought_signature"]
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def decode_base64(text: str) -> bytes | None:
    """The bytes of Base64 in either alphabet, padded or not; None if it is invalid."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), b"-_" if "-" in text or "_" in text else None, True)
    except ValueError:
        return None


def normalise_base64(text: str) -> str:
    """Base64 in the standard alphabet, padded; an invalid text as it is."""
    data = decode_base64(text)
    return text if data is None else base64.b64encode(data).decode()
