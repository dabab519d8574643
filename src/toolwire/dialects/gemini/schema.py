"""JSON Schemas from the schemas of Gemini clients.

`parameters` and `responseSchema` hold Google's own form: types in upper case, `nullable`, limits as strings.
`parametersJsonSchema` and `responseJsonSchema` hold JSON Schema, in which some clients write types in upper case, too.
Only schemas are converted here: the same words in arguments are data.
"""

from typing import Any, cast

import msgspec

from toolwire.core.raw import Json, to_raw
from toolwire.dialects.gemini.wire import camel_name

_decode = msgspec.json.Decoder().decode
_TYPES = frozenset(("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"))
_LIMITS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_DROPPED = ("propertyOrdering", "example", "nullable")
_ONE = ("items", "additionalProperties", "not")
_MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions")
"""The keywords that hold a schema, a list of schemas, and schemas by name."""
_RENAMED = {"ref": "$ref", "defs": "$defs"}


def read_schema(raw: msgspec.Raw) -> msgspec.Raw:
    """Google's schema as JSON Schema."""
    return to_raw(_convert(_decode(raw), is_googles=True))


def read_json_schema(raw: msgspec.Raw) -> msgspec.Raw:
    """JSON Schema with its types in lower case; as it came, if they are."""
    data = bytes(raw)
    if not any(b'"%b"' % name.encode() in data for name in _TYPES):
        return raw
    return to_raw(_convert(_decode(raw), is_googles=False))


def _convert(schema: Any, *, is_googles: bool) -> Any:
    if not isinstance(schema, dict):
        return schema
    fields = cast("Json", schema)
    if is_googles:
        fields = {_RENAMED.get(name) or camel_name(name): value for name, value in fields.items()}
    out: Json = {}
    for name, value in fields.items():
        if name == "type":
            out[name] = _lower_types(value)
        elif name in _NAMED and isinstance(value, dict):
            named = cast("Json", value)
            out[name] = {key: _convert(each, is_googles=is_googles) for key, each in named.items()}
        elif name in _MANY and isinstance(value, list):
            out[name] = [_convert(each, is_googles=is_googles) for each in cast("list[Any]", value)]
        elif name in _ONE:
            out[name] = _convert(value, is_googles=is_googles)
        elif is_googles and name in _LIMITS and isinstance(value, str) and value.isdigit():
            out[name] = int(value)
        elif not is_googles or (name not in _DROPPED and (name, value) != ("format", "enum")):
            out[name] = value
    if is_googles and fields.get("nullable") is True:
        _allow_null(out)
    return out


def _lower_types(types: Any) -> Any:
    if isinstance(types, list):
        return [_lower_types(each) for each in cast("list[Any]", types)]
    return types.lower() if isinstance(types, str) and types in _TYPES else types


def _allow_null(schema: Json) -> None:
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    elif isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
