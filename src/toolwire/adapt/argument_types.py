"""The usual JSON Schemas as types of msgspec, which decode and check arguments in one step.

A schema with a keyword that has no exact counterpart there, such as `pattern`, is unusual and has no type.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, cast

import msgspec

from toolwire.core.cache import Cache

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SUBSCHEMAS = 400
"""Maximum objects in a schema: a type is made once, because one of this size still fits into the cache."""
SUBSCHEMA_SIZE = 1024
"""Bytes of the type of a subschema. That of an object is larger, but has two pairs of braces."""

_ANNOTATIONS = frozenset(("description", "title", "default", "examples", "deprecated", "readOnly", "writeOnly"))
_SCALARS: Mapping[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}
_LENGTHS = {"minLength": "min_length", "maxLength": "max_length", "minItems": "min_length", "maxItems": "max_length"}
_LIMITS = {**_LENGTHS, "minimum": "ge", "maximum": "le"}
_KEYWORDS = {
    "object": frozenset(("type", "properties", "required", "additionalProperties")),
    "array": frozenset(("type", "items", "minItems", "maxItems")),
    "string": frozenset(("type", "enum", "minLength", "maxLength")),
    "integer": frozenset(("type", "minimum", "maximum")),
}


class _Unusual(Exception):
    """The schema has no type."""


def fits_type(schema: bytes, arguments: str) -> bool:
    """Whether arguments are JSON and fit a usual schema of an object.

    False leaves the answer to a full validator, which takes many times as long.
    """
    decoder = _decoders[schema]
    try:
        if decoder is not None:
            decoder.decode(arguments)
            return True
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        pass
    return False


def _make_decoder(schema: bytes) -> "msgspec.json.Decoder[Any] | None":
    """A decoder of the objects that fit a schema; None if the schema is unusual."""
    if len(schema) > MAX_SCHEMA_BYTES or schema.count(b"{") > MAX_SUBSCHEMAS:
        return None
    try:
        decoded = msgspec.json.decode(schema, type=dict[str, Any])
        decoded.pop("$schema", None)  # the usual keywords mean the same in all drafts
        return msgspec.json.Decoder(_make_type(decoded)) if decoded.get("type") == "object" else None
    except (_Unusual, TypeError, ValueError, LookupError, RecursionError, msgspec.MsgspecError):
        return None


_decoders = Cache(_make_decoder, lambda schema, _: len(schema) + SUBSCHEMA_SIZE * schema.count(b"{"))


def _make_type(schema: Any) -> Any:
    """The type of the values that fit a schema. Raises `_Unusual`, and what msgspec raises."""
    if not isinstance(schema, dict):
        raise _Unusual
    parts = {key: part for key, part in cast("dict[str, Any]", schema).items() if key not in _ANNOTATIONS}
    if not parts:
        return msgspec.Raw
    if parts.keys() == {"anyOf"}:
        return Union[tuple(_make_type(each) for each in parts["anyOf"])]  # noqa: UP007 - of a computed tuple
    name = parts.get("type")
    if isinstance(name, list) and len(parts) == 1:
        return Union[tuple(_make_type({"type": each}) for each in cast("list[Any]", name))]  # noqa: UP007
    if not isinstance(name, str) or not parts.keys() <= _KEYWORDS.get(name, {"type"}):
        raise _Unusual
    if name == "object":
        return _make_object_type(parts)
    if "enum" in parts:
        if len(parts) > 2 or not all(isinstance(each, str) for each in parts["enum"]):
            raise _Unusual
        return Literal[tuple(parts["enum"])]
    made = list[_make_type(parts.get("items", {}))] if name == "array" else _SCALARS[name]
    limits = {_LIMITS[key]: part for key, part in parts.items() if key in _LIMITS}
    if not all(type(limit) is int for limit in limits.values()):
        raise _Unusual
    return Annotated[made, msgspec.Meta(**limits)] if limits else made


def _make_object_type(parts: Mapping[str, Any]) -> Any:
    known, required = dict(parts.get("properties", {})), parts.get("required", [])
    is_open = parts.get("additionalProperties", True)
    if not isinstance(is_open, bool) or not isinstance(required, list):
        raise _Unusual
    for name in cast("list[Any]", required):
        if name not in known and not is_open:
            raise _Unusual  # nothing fits
        known.setdefault(name, {})
    if not known and is_open:
        return dict[str, msgspec.Raw]
    fields: list[tuple[str, Any, Any]] = []
    for index, (name, part) in enumerate(known.items()):
        default: Any = msgspec.NODEFAULT if name in required else None
        fields.append((f"f{index}", _make_type(part), msgspec.field(name=name, default=default)))
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=not is_open, gc=False)
