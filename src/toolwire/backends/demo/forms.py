"""What the properties of a tool's arguments hold, as their names tell: a path, a command, a text."""

from typing import Any, Literal, TypeAlias

import msgspec

from toolwire.adapt.schemas_walk import Schema
from toolwire.backends.demo.abilities import Ability
from toolwire.backends.demo.schema.fill import LARGEST
from toolwire.backends.demo.schema.plain import Schemas
from toolwire.backends.demo.vocabulary import concept, parts_of
from toolwire.core.regex import Budget, TooMuch

Kind: TypeAlias = Literal["path", "command", "url", "glob", "remark", "message", "text"]

_NAMES: dict[Kind, tuple[str, ...]] = {
    "path": ("path", "file", "filename", "filepath", "directory"),
    "command": ("command",),
    "url": ("page", "uri"),
    "remark": ("describe", "description", "explanation", "justification", "reason", "title", "summary"),
    "message": ("prompt", "message", "task", "instruction", "question", "objective", "content", "body"),
}
_KINDS: dict[str, Kind] = {name: kind for kind, names in _NAMES.items() for name in names}
_STEPS = 5_000
"""Steps to read the properties of a schema."""


def kind_of(name: str, description: str, ability: Ability) -> Kind:
    """What a property holds. A remark tells people what a call is for, a message is a longer text."""
    words = parts_of(name)
    if {"pattern", "glob"} & {*words} and ("glob" in description.lower() or ability.does("find", "file")):
        return "glob"
    for word in reversed(words):
        kind = _KINDS.get(word) or _KINDS.get(concept(word))
        if kind is not None:
            return kind
    return "text"


class Form:
    """The properties of a tool's arguments that take any text, and what they hold."""

    def __init__(self, ability: Ability) -> None:
        self.required: dict[str, Kind] = {}
        self.optional: dict[str, Kind] = {}
        self.arrays: set[str] = set()
        """Those that take several texts."""
        self.choices: set[str] = set()
        """The values of enums, in small letters."""
        schema = ability.tool.parameters
        if schema is None or len(schema) > LARGEST:
            return
        try:
            self._read(msgspec.json.decode(schema), ability)
        except (TooMuch, RecursionError, msgspec.DecodeError):
            return

    def _read(self, root: Any, ability: Ability) -> None:
        schemas = Schemas(root, Budget(_STEPS))
        top = next(schemas.shapes(root), Schema())
        for name, schema in top.get("properties", {}).items():
            shape = next(schemas.shapes(schema), Schema())
            kind = kind_of(name, shape.get("description", ""), ability)
            self.choices.update(choice.lower() for choice in shape.get("enum", ()) if isinstance(choice, str))
            if kind == "remark" or not _takes_text(schemas, shape):
                continue
            (self.required if name in top.get("required", ()) else self.optional)[name] = kind
            if "array" in shape.get("type", ()) and kind != "command":
                self.arrays.add(name)


def _takes_text(schemas: Schemas, shape: Schema) -> bool:
    if any(key in shape for key in ("enum", "format", "pattern", "properties")):
        return False
    types: list[str] = shape.get("type", [])
    if "array" in types:
        return _takes_text(schemas, next(schemas.shapes(shape.get("items", True)), Schema()))
    return not types or "string" in types
