"""Types of textual values: the tool's schema decides whether the text `3` is a number or a string."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
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
_TYPE_BY_FIRST_CHAR = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}


class Schemas:
    """The types of all tools' parameters, read from a schema when a textual call needs it."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = tools
        self._types: dict[str, dict[str, Types]] = {}

    def types_of(self, name: str, parameter: str) -> Types:
        """The JSON types a parameter may have; empty if the schema does not say."""
        if name not in self._types:
            tool = next((tool for tool in self._tools if tool.name == name), None)
            schema: Any = None
            if tool is not None and tool.parameters is not None:
                with suppress(RecursionError):
                    schema = msgspec.json.decode(tool.parameters)
            properties: Any = cast("dict[str, Any]", schema).get("properties") if isinstance(schema, dict) else None
            declared = cast("dict[str, Any]", properties) if isinstance(properties, dict) else {}
            self._types[name] = {key: _read_types(value) for key, value in declared.items()}
        return self._types[name].get(parameter, UNKNOWN)


def _read_types(schema: Any) -> Types:
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
            found |= _read_types(each)
    return found


def is_text(types: Types) -> bool:
    """Whether a value must be a string, so that it can be streamed."""
    return "string" in types and types <= _TEXTUAL


def escape(text: str) -> str:
    """Text as the inside of a JSON string."""
    return to_json(text)[1:-1].decode()


def write_value(text: str, types: Types) -> str:
    """A whole value as JSON. Without a schema everything except arrays and objects is a string."""
    if not is_text(types):
        types, stripped = types or frozenset(("object", "array")), text.strip()
        if stripped in ("True", "False") and "boolean" in types:
            return stripped.lower()
        if stripped and is_json(stripped):
            kind = _TYPE_BY_FIRST_CHAR.get(stripped[0], "number")
            may_be_text = kind == "string" or (kind not in ("object", "array") and "string" in types)
            if not may_be_text and (kind in types or (kind == "number" and "integer" in types)):
                return stripped
    return to_json(text).decode()
