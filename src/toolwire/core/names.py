"""Names and ids within the limits of a server: reversible by a table, the same in every turn, and never twice the same.

What fits goes as it is. Anything else is cleaned and gets a piece of its own hash, so `a.b` and `a_b` stay apart.
"""

import re
from hashlib import sha256

import msgspec

from toolwire.core.cache import Cache
from toolwire.core.schemas import Need

_OWN_ITEM = re.compile(r"[a-z]+_[0-9a-f]{24}i?[0-9]{2,4}")


def is_own_item_id(id: str) -> bool:
    """Whether an item of a response has this id from us: a prefix, the seed of a turn and a number."""
    return _OWN_ITEM.fullmatch(id) is not None


_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Limits(msgspec.Struct, frozen=True):
    """What a server takes of tools and the calls of them. A length of 0 is no limit."""

    name_length: int = 64
    name_letters: str = "A-Za-z0-9_-"
    reserved: tuple[str, ...] = ()
    """Names that it keeps for itself."""
    reserved_start: str = ""
    """How such names begin, if they have that in common."""
    id_length: int = 0
    id_letters: str = ""
    id_exact: int = 0
    """Ids have exactly this many letters and digits."""
    custom: bool = False
    """It knows custom tools."""
    namespaces: bool = False
    """It knows tools in namespaces."""
    additional_tools: bool = False
    """It knows tools that are declared inside the history."""
    strict: bool = True
    """It knows `strict` on a tool."""
    unique_ids: bool = False
    """No two calls of a conversation may have the same id, not even in different turns."""
    schema: tuple[Need, ...] = ()
    """What it needs of a schema."""
    schema_field: str = "parameters"
    """What it calls the schema of a tool."""

    def name(self, name: str) -> str:
        reserved = name in self.reserved or (self.reserved_start and name.startswith(self.reserved_start))
        return self.other_name(name) if reserved else _fitted[name, *self._name]

    def other_name(self, name: str) -> str:
        """A name that is not this one and stands for it."""
        apart = "_" if self.reserved_start and name.startswith(self.reserved_start) else ""
        return _marked[apart + name, *self._name]

    def id(self, id: str) -> str:
        if self.id_exact:
            return _exact[id, self.id_exact]
        if not self.id_letters and (not self.id_length or 0 < len(id) <= self.id_length):
            return id
        return _fitted[id, self.id_letters or "\\s\\S", self.id_length, "call"]

    @property
    def _name(self) -> tuple[str, int, str]:
        return self.name_letters, self.name_length, "tool"


def _fit(asked: tuple[str, str, int, str]) -> str:
    """The text if it fits, else a clean and short one that stands for it alone."""
    text, letters, length, _ = asked
    fits = bool(text) and not re.search(f"[^{letters}]", text) and (not length or len(text) <= length)
    return text if fits else _marked[asked]


def _mark(asked: tuple[str, str, int, str]) -> str:
    """The text, cleaned and cut, with a piece of its hash."""
    text, letters, length, empty = asked
    mark = "_" + sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    clean = re.sub(f"[^{letters}]", "_", text)
    head = clean if clean.strip("_") else empty
    return (head[: length - len(mark)] if length else head) + mark


def _make_exact(asked: tuple[str, int]) -> str:
    """The text if it has just this many letters and digits, else as many that stand for it."""
    text, length = asked
    if len(text) == length and text.isascii() and text.isalnum():
        return text
    number = int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest(), "big")
    out = ""
    while len(out) < length:
        number, digit = divmod(number, len(_LETTERS))
        out += _LETTERS[digit]
    return out


_fitted, _marked, _exact = Cache(_fit), Cache(_mark), Cache(_make_exact)


SEPARATOR = "__"


class Naming:
    """The names that the tools of one request have at a server. Nobody gets the name of another.

    `declared` are the tools as the client names them, by namespace and name.
    """

    def __init__(self, declared: list[tuple[str, str]], limits: Limits) -> None:
        self._limits = limits
        self._known: dict[tuple[str, str], str] = {}
        self._taken = {
            (namespace, name)
            for namespace, name in declared
            if (limits.namespaces or not namespace) and limits.name(name) == name
        }
        for namespace, name in declared:
            fit = self._known[namespace, name] = self.of(namespace, name)
            self._taken.add((namespace if limits.namespaces else "", fit))

    def of(self, namespace: str, name: str) -> str:
        """The name of a tool, declared now or called in the past."""
        return self._known.get((namespace, name)) or self._new(namespace, name)

    def _new(self, namespace: str, name: str) -> str:
        limits = self._limits
        scope, flat = (namespace, name) if limits.namespaces else ("", flat_name(namespace, name))
        fit = limits.name(flat)
        if fit == name and scope == namespace:
            return fit
        while (scope, fit) in self._taken:
            fit = limits.other_name(flat)
            flat += "."
        return fit


def flat_name(namespace: str, name: str) -> str:
    """A name that holds its namespace."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name
