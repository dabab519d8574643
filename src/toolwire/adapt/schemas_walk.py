"""Walks a JSON Schema by position: keys under `properties` are names, even if they equal a keyword."""

from collections.abc import Callable
from typing import Any, TypeAlias, cast

Schema: TypeAlias = dict[str, Any]
Change: TypeAlias = Callable[[Schema, list[str]], Schema]
"""Returns the schema or a changed copy; lost keywords are added to the list."""

_ONE = frozenset(
    ("items", "additionalItems", "additionalProperties", "contains", "else", "if", "not", "propertyNames", "then",
     "unevaluatedItems", "unevaluatedProperties")
)  # fmt: skip
_MANY = frozenset(("allOf", "anyOf", "items", "oneOf", "prefixItems"))
_NAMED = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))


def change_inner(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """The schema with every direct subschema changed; itself if that changes nothing."""

    def change_value(value: Any) -> Any:
        return change(cast("Schema", value)) if isinstance(value, dict) else value

    def change_under(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            inside = cast("Schema", value)
            if key in _ONE:
                return change(inside)
            new = {name: change_value(each) for name, each in inside.items()} if key in _NAMED else inside
            return inside if all(new[name] is each for name, each in inside.items()) else new
        if isinstance(value, list) and key in _MANY:
            items = cast("list[Any]", value)
            new = [change_value(each) for each in items]
            return items if all(one is other for one, other in zip(new, items, strict=True)) else new
        return cast("Any", value)

    new = {key: change_under(key, value) for key, value in schema.items()}
    return schema if all(new[key] is value for key, value in schema.items()) else new


def apply_everywhere(change: Change) -> Change:
    """A change of one schema, applied to all its subschemas, innermost first."""

    def change_all(schema: Schema, lost: list[str]) -> Schema:
        return change(change_inner(schema, lambda inner: change_all(inner, lost)), lost)

    return change_all


def find_target(root: Schema, ref: object) -> Schema | None:
    """The target of a reference, if it is a schema inside this one."""
    if not isinstance(ref, str) or not ref.startswith("#"):
        return None
    found: Any = root
    for step in ref[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = cast("Schema", found).get(name) if isinstance(found, dict) else None
    return cast("Schema", found) if isinstance(found, dict) and ref[1:2] in ("", "/") else None


def without(schema: Schema, *keys: str, **more: Any) -> Schema:
    """The schema without these keys, and with others added."""
    return {**{key: value for key, value in schema.items() if key not in keys}, **more}


# Any value in a client's schema may have a wrong type. These functions then return an empty value.


def mapping_under(schema: Schema, key: str) -> Schema:
    """The schemas by name under a key."""
    value: Any = schema.get(key)
    return cast("Schema", value) if isinstance(value, dict) else {}


def list_under(schema: Schema, key: str) -> list[Any]:
    """The list under a key."""
    value: Any = schema.get(key)
    return cast("list[Any]", value) if isinstance(value, list) else []


def schemas_under(schema: Schema, key: str) -> list[Schema]:
    """The schemas in the list under a key."""
    return [cast("Schema", each) for each in list_under(schema, key) if isinstance(each, dict)]
