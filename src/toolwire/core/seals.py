"""Seals: the opaque part of reasoning, on its way through a client that speaks another dialect.

A seal is readable to its issuer alone and must come back unchanged. A client of the issuer's own dialect carries it as
it is; any other carries a package that says whose it is and holds what the issuer will want back.
"""

import base64
import binascii

import msgspec

from toolwire.core.events import Dialect

PREFIX = "toolwire.seal.1."
_ISSUERS = ("responses", "messages")
"""Whose seals are packed. A chat server's reasoning is kept here for all clients."""


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """Whose seal it is, and all that belongs to it."""

    issuer: Dialect
    id: str
    text: tuple[str, ...]
    seal: str
    redacted: bool = False


def pack(seal: Seal) -> str:
    return PREFIX + base64.urlsafe_b64encode(msgspec.json.encode(seal)).decode().rstrip("=")


def is_packed(text: str) -> bool:
    """Whether a text is, or once was, a package of ours."""
    return text.startswith(PREFIX)


def unpack(text: str) -> Seal | None:
    """The seal in a package of ours, or None if it is none."""
    if not text.startswith(PREFIX):
        return None
    packed = text.removeprefix(PREFIX)
    try:
        data = base64.b64decode(packed + "=" * (-len(packed) % 4), b"-_", validate=True)
        seal = msgspec.json.decode(data, type=Seal)
    except (binascii.Error, msgspec.DecodeError):
        return None
    return seal if seal.issuer in _ISSUERS else None
