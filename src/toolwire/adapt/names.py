"""Names and ids within the limits of a server: unique, the same in every turn, and reversible by a table.

A valid name does not change. Any other is cleaned and gets part of its hash, so that `a.b` and `a_b` stay distinct.
"""

import re
from hashlib import sha256

import msgspec

from toolwire.adapt.schemas import Need
from toolwire.core.cache import Cache
from toolwire.core.events import Origin

_MINTED_ITEM = re.compile(r"[a-z]+_[0-9a-f]{24}i?[0-9]{2,4}")


def is_minted_item_id(id: str) -> bool:
    """Whether we made this item id: a prefix, the seed of a turn and a number."""
    return _MINTED_ITEM.fullmatch(id) is not None


_ALPHANUMERIC = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Limits(msgspec.Struct, frozen=True):
    """The limits of a server for tools and calls. A length of 0 means no limit."""

    name_length: int = 64
    name_chars: str = "A-Za-z0-9_-"
    reserved: tuple[str, ...] = ()
    """Tool names that clients may not use."""
    reserved_start: str = ""
    """A prefix that clients may not use."""
    id_length: int = 0
    id_chars: str = ""
    id_exact: int = 0
    """Ids have exactly this many alphanumeric characters."""
    custom: bool = False
    """It supports custom tools."""
    namespaces: bool = False
    """It supports tools in namespaces."""
    additional_tools: bool = False
    """It supports tools that are declared inside the history."""
    search: Origin = ""
    """The dialect whose tool search it supports: search tools, deferred tools and references to found ones."""
    strict: bool = True
    """It supports `strict` on a tool."""
    unique_ids: bool = False
    """No two calls of a conversation may have the same id, not even in different turns."""
    schema: tuple[Need, ...] = ()
    """The changes that a schema needs."""
    schema_field: str = "parameters"
    """The name of the field that holds a tool's schema."""

    def fit_name(self, name: str) -> str:
        """The name of a tool at the server."""
        reserved = name in self.reserved or (self.reserved_start and name.startswith(self.reserved_start))
        return self.make_other_name(name) if reserved else _fitted_texts[name, *self._name]

    def make_other_name(self, name: str) -> str:
        """Another name that stands for this one."""
        prefix = "_" if self.reserved_start and name.startswith(self.reserved_start) else ""
        return _hashed_texts[prefix + name, *self._name]

    def fit_id(self, id: str) -> str:
        """The id of a call at the server."""
        if self.id_exact:
            return _alphanumeric_ids[id, self.id_exact]
        if not self.id_chars and (not self.id_length or 0 < len(id) <= self.id_length):
            return id
        return _fitted_texts[id, self.id_chars or "\\s\\S", self.id_length, "call"]

    @property
    def _name(self) -> tuple[str, int, str]:
        return self.name_chars, self.name_length, "tool"


@Cache
def _fitted_texts(key: tuple[str, str, int, str]) -> str:
    """The text if it is valid, else a clean and short one that stands for it."""
    text, chars, length, _ = key
    is_valid = bool(text) and not re.search(f"[^{chars}]", text) and (not length or len(text) <= length)
    return text if is_valid else _hashed_texts[key]


@Cache
def _hashed_texts(key: tuple[str, str, int, str]) -> str:
    """The text, cleaned and cut, with a part of its hash."""
    text, chars, length, empty = key
    mark = "_" + sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    clean = re.sub(f"[^{chars}]", "_", text)
    head = clean if clean.strip("_") else empty
    return (head[: length - len(mark)] if length else head) + mark


@Cache
def _alphanumeric_ids(key: tuple[str, int]) -> str:
    """The text if it has exactly this many alphanumeric characters, else that many from its hash."""
    text, length = key
    if len(text) == length and text.isascii() and text.isalnum():
        return text
    number = int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest(), "big")
    out = ""
    while len(out) < length:
        number, digit = divmod(number, len(_ALPHANUMERIC))
        out += _ALPHANUMERIC[digit]
    return out


SEPARATOR = "__"


class Naming:
    """The names that the tools of one request have at a server, all distinct.

    `declared` are the namespaces and names that the client uses.
    """

    def __init__(self, declared: list[tuple[str, str]], limits: Limits) -> None:
        self._limits = limits
        self._names: dict[tuple[str, str], str] = {}
        self._taken = {
            (namespace, name)
            for namespace, name in declared
            if (limits.namespaces or not namespace) and limits.fit_name(name) == name
        }
        for namespace, name in declared:
            fitted = self._names[namespace, name] = self.name_of(namespace, name)
            self._taken.add((namespace if limits.namespaces else "", fitted))

    def name_of(self, namespace: str, name: str) -> str:
        """The server's name of a tool, declared in this request or only called in its history."""
        known = self._names.get((namespace, name))
        if known:
            return known
        limits = self._limits
        scope, flat = (namespace, name) if limits.namespaces else ("", flatten_name(namespace, name))
        fitted = limits.fit_name(flat)
        if fitted == name and scope == namespace:
            return fitted
        while (scope, fitted) in self._taken:
            fitted = limits.make_other_name(flat)
            flat += "."
        return fitted


def flatten_name(namespace: str, name: str) -> str:
    """A name that includes the namespace."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name
