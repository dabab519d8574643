"""Names and ids within the limits of a server: reversible by a table, the same in every turn, and never twice the same.

What fits goes as it is. Anything else is cleaned and gets a piece of its own hash, so `a.b` and `a_b` stay apart.
"""

import re
from functools import lru_cache
from hashlib import sha256

import msgspec

_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Limits(msgspec.Struct, frozen=True):
    """What a server takes for the names of tools and the ids of calls. A length of 0 is no limit."""

    name_length: int = 64
    name_letters: str = "A-Za-z0-9_-"
    id_length: int = 0
    id_letters: str = ""
    id_exact: int = 0
    """Ids have exactly this many letters and digits."""

    def name(self, name: str) -> str:
        return fitted(name, self.name_letters, self.name_length, "tool")

    def id(self, id: str) -> str:
        if self.id_exact:
            return exact(id, self.id_exact)
        if not self.id_letters and not self.id_length:
            return id
        return fitted(id, self.id_letters or "\\s\\S", self.id_length, "call")


@lru_cache(maxsize=4096)
def fitted(text: str, letters: str, length: int, empty: str) -> str:
    """The text if it fits, else a clean and short one that stands for it alone."""
    clean = re.sub(f"[^{letters}]", "_", text)
    if clean == text and text and (not length or len(text) <= length):
        return text
    mark = "_" + sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    head = clean if clean.strip("_") else empty
    return (head[: length - len(mark)] if length else head) + mark


@lru_cache(maxsize=4096)
def exact(text: str, length: int) -> str:
    """The text if it has just this many letters and digits, else as many that stand for it."""
    if len(text) == length and text.isascii() and text.isalnum():
        return text
    number = int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest(), "big")
    out = ""
    while len(out) < length:
        number, digit = divmod(number, len(_LETTERS))
        out += _LETTERS[digit]
    return out
