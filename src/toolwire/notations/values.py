"""Types of textual values: whether the text `3` is a number or a string is decided by the tool's schema."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, cast

import msgspec

from toolwire.core.raw import to_json
from toolwire.core.request import Tool
from toolwire.core.text import is_json

Types: TypeAlias = frozenset[str]

UNKNOWN: Types = frozenset()
STRING: Types = frozenset(("string",))
LITERAL: Types = frozenset(("object", "array", "number", "boolean", "null"))
"""Anything but a string."""
_TEXTUAL: Types = frozenset(("string", "null"))
_FIRST = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}


class Schemas:
    """The types of all tools' parameters, read from a schema when a textual call needs it."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = tools
        self._types: dict[str, dict[str, Types]] = {}

    def types(self, name: str, parameter: str) -> Types:
        """The JSON types a parameter may have; empty if the schema does not say."""
        if name not in self._types:
            self._types[name] = self._read(name)
        return self._types[name].get(parameter, UNKNOWN)

    def _read(self, name: str) -> dict[str, Types]:
        tool = next((tool for tool in self._tools if tool.name == name), None)
        if tool is None or tool.parameters is None:
            return {}
        try:
            schema = msgspec.json.decode(tool.parameters)
        except RecursionError:
            return {}
        properties = cast("Any", schema).get("properties") if isinstance(schema, dict) else None
        if not isinstance(properties, dict):
            return {}
        return {key: _types(value) for key, value in cast("dict[str, Any]", properties).items()}


def _types(schema: Any) -> Types:
    if not isinstance(schema, Mapping):
        return UNKNOWN
    schema = cast("Mapping[str, Any]", schema)
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset((declared,))
    if isinstance(declared, list):
        return frozenset(each for each in cast("list[Any]", declared) if isinstance(each, str))
    if isinstance(schema.get("enum"), list) and all(isinstance(value, str) for value in schema["enum"]):
        return STRING
    found: Types = UNKNOWN
    for key in ("anyOf", "oneOf"):
        given = schema.get(key)
        for each in cast("list[Any]", given) if isinstance(given, list) else ():
            found |= _types(each)
    return found


def is_text(types: Types) -> bool:
    """Whether a value can only be a string, so that it can be streamed."""
    return "string" in types and types <= _TEXTUAL


def escaped(text: str) -> str:
    """Text as the inside of a JSON string."""
    return to_json(text)[1:-1].decode()


def typed(text: str, types: Types) -> str:
    """A whole value as JSON. Without a schema everything except arrays and objects is a string."""
    if not is_text(types) and (found := _literal(text, types or frozenset(("object", "array")))):
        return found
    return to_json(text).decode()


def _literal(text: str, types: Types) -> str:
    text = text.strip()
    if text in ("True", "False") and "boolean" in types:
        return text.lower()
    if not text or not is_json(text):
        return ""
    kind = _FIRST.get(text[0], "number")
    if kind == "string" or (kind not in ("object", "array") and "string" in types):
        return ""
    matches = kind in types or (kind == "number" and "integer" in types)
    return text if matches else ""
