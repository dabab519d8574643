"""Types of Python as JSON: their schema, and values of them read and written.

msgspec knows Structs, dataclasses, TypedDicts and plain types. A pydantic model, alone or inside of these, and a type
with a pydantic `Field`, are left to pydantic itself, which is only used here if the program has imported it.
"""

import sys
from typing import Any, TypeVar, cast, get_args

import msgspec

T = TypeVar("T")
_DEFINITIONS = "$defs"


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type, with its own fields at the top and the others that it needs in `$defs`."""
    schema = msgspec.json.schema(kind, schema_hook=_pydantic_schema)
    definitions = _taken_out(schema)
    own: dict[str, Any] = schema
    name = schema.get("$ref", "").rpartition("/")[2]
    if name:
        own = dict(definitions[name])
        if not _is_used(name, [own, *definitions.values()]):
            del definitions[name]
    own.pop("title", None)
    if not own.get("required"):
        own.pop("required", None)
    return {**own, _DEFINITIONS: definitions} if definitions else own


def decoded(text: str, kind: type[T]) -> T:
    """The value of a type that a JSON text holds. Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(text, type=kind, dec_hook=_pydantic_value)


def encoded(value: object) -> str:
    """A value as JSON text; what JSON has no form for, as its own text."""
    return msgspec.json.encode(value, enc_hook=_plain).decode()


class _LeftToPydantic(type):
    """The type of a class that stands for another type: pydantic has checked its values, so any value may be one."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def left_to_pydantic(kind: Any) -> Any:
    """The type itself, or one with a pydantic `Field` anywhere in it as a class that pydantic reads and describes."""
    if not _has_field(kind):
        return kind
    adapter = sys.modules["pydantic"].TypeAdapter(kind)
    methods = {"model_json_schema": adapter.json_schema, "model_validate": adapter.validate_python}
    return _LeftToPydantic("Checked", (), {name: staticmethod(method) for name, method in methods.items()})


def is_pydantic_field(value: object) -> bool:
    """Whether this is what `pydantic.Field(…)` returns."""
    return type(value).__name__ == "FieldInfo" and type(value).__module__.startswith("pydantic.")


def pydantic_default(field: Any, absent: object) -> Any:
    """The default that a pydantic `Field` states, or `absent`."""
    return absent if field.is_required() else field.get_default(call_default_factory=True)


def _has_field(kind: Any) -> bool:
    parts = (*getattr(kind, "__metadata__", ()), *get_args(kind))
    return any(is_pydantic_field(each) or _has_field(each) for each in parts)


def _pydantic_schema(kind: type[Any]) -> dict[str, Any]:
    if not hasattr(kind, "model_json_schema"):
        raise NotImplementedError(f"{kind!r} has no JSON Schema")
    return kind.model_json_schema()


def _pydantic_value(kind: type[Any], value: Any) -> Any:
    if not hasattr(kind, "model_validate"):
        raise NotImplementedError(f"{kind!r} cannot be read from JSON")
    return kind.model_validate(value)


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)


def _taken_out(schema: Any) -> dict[str, Any]:
    """Remove the definitions from every level of a schema; pydantic's refer to the top as ours do."""
    found: dict[str, Any] = {}
    if isinstance(schema, dict):
        node = cast("dict[str, Any]", schema)
        found |= node.pop(_DEFINITIONS, {})
        for each in [*found.values(), *node.values()]:
            found |= _taken_out(each)
    elif isinstance(schema, list):
        for each in cast("list[Any]", schema):
            found |= _taken_out(each)
    return found


def _is_used(name: str, schemas: list[Any]) -> bool:
    return f'"#/{_DEFINITIONS}/{name}"' in msgspec.json.encode(schemas).decode()
