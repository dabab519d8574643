"""JSON Schemas of Python types and function signatures, and values of these types read from and written to JSON.

msgspec supports Structs, dataclasses, TypedDicts and plain types. A pydantic model, alone or inside one of these, and a
type with a pydantic `Field`, are left to pydantic, which is used only if the program has imported it.
"""

import copy
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

T = TypeVar("T")
_DEFINITIONS = "$defs"


# Types


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type: its own fields at the top, and the types that it refers to in `$defs`."""
    schema = msgspec.json.schema(kind, schema_hook=_pydantic_schema)
    definitions = _extract_definitions(schema)
    own = schema
    name = schema.get("$ref", "").rpartition("/")[2]
    if name:
        own = dict(definitions[name])
        if f'"#/{_DEFINITIONS}/{name}"' not in msgspec.json.encode([own, *definitions.values()]).decode():
            del definitions[name]
    own.pop("title", None)
    if not own.get("required"):
        own.pop("required", None)
    return {**own, _DEFINITIONS: definitions} if definitions else own


def decode_value(text: str, kind: type[T]) -> T:
    """Read a value of a type from JSON text. Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(text, type=kind, dec_hook=_pydantic_value)


def encode_value(value: object) -> str:
    """A value as JSON text; a part that JSON cannot express is written as its `str`."""

    def encode_other(value: Any) -> Any:
        return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)

    return msgspec.json.encode(value, enc_hook=encode_other).decode()


class _LeftToPydantic(type):
    """The type of a stand-in class: pydantic has validated its values, so every value counts as an instance."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def _left_to_pydantic(kind: Any) -> Any:
    """The type itself; for a type with a pydantic `Field` anywhere in it, a class that pydantic reads and describes."""
    if not _has_pydantic_field(kind):
        return kind
    adapter = sys.modules["pydantic"].TypeAdapter(kind)
    methods = {"model_json_schema": adapter.json_schema, "model_validate": adapter.validate_python}
    return _LeftToPydantic("Checked", (), {name: staticmethod(method) for name, method in methods.items()})


def _is_pydantic_field(value: object) -> bool:
    """Whether this is what `pydantic.Field(…)` returns."""
    return type(value).__name__ == "FieldInfo" and type(value).__module__.startswith("pydantic.")


def _has_pydantic_field(kind: Any) -> bool:
    parts = (*getattr(kind, "__metadata__", ()), *get_args(kind))
    return any(_is_pydantic_field(each) or _has_pydantic_field(each) for each in parts)


def _pydantic_schema(kind: type[Any]) -> dict[str, Any]:
    if not hasattr(kind, "model_json_schema"):
        raise NotImplementedError(f"{kind!r} has no JSON Schema")
    return kind.model_json_schema()


def _pydantic_value(kind: type[Any], value: Any) -> Any:
    if not hasattr(kind, "model_validate"):
        raise NotImplementedError(f"{kind!r} cannot be read from JSON")
    return kind.model_validate(value)


def _extract_definitions(schema: Any) -> dict[str, Any]:
    """Remove the definitions from every level of a schema; pydantic's references start at the root, as ours do."""
    found: dict[str, Any] = {}
    if isinstance(schema, dict):
        node = cast("dict[str, Any]", schema)
        found |= node.pop(_DEFINITIONS, {})
        for each in [*found.values(), *node.values()]:
            found |= _extract_definitions(each)
    elif isinstance(schema, list):
        for each in cast("list[Any]", schema):
            found |= _extract_definitions(each)
    return found


# Functions


def parameters_of(
    function: Callable[..., Any], name: str, descriptions: dict[str, str], injected_types: Sequence[type]
) -> tuple[dict[str, type], type[msgspec.Struct]]:
    """The parameters that the engine fills in, with their types, and a Struct of those that the model fills in.

    Raises `TypeError`, which names the tool and the parameter, if a model could not fill one of them in.
    """
    try:
        hints = get_type_hints(written_function(function), include_extras=True)
    except NameError as error:
        raise TypeError(f"{name}: an annotation cannot be resolved: {error}") from None
    injected: dict[str, type] = {}
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{name}: the parameter {parameter.name} cannot be given by name")
        hint, default = hints.get(parameter.name, Any), parameter.default
        if (kind := _class_of(hint)) in injected_types:
            injected[parameter.name] = kind
            continue
        if _is_pydantic_field(default):
            hint = Annotated[hint, default]
            default = parameter.empty if default.is_required() else default.get_default(call_default_factory=True)
        field_type = _left_to_pydantic(hint)
        try:
            schema_of(field_type)
        except (TypeError, NotImplementedError) as error:
            raise TypeError(f"{name}: the parameter {parameter.name} cannot be read from JSON: {error}") from None
        metadata = (each for each in getattr(field_type, "__metadata__", ()) if isinstance(each, str))
        if description := descriptions.get(parameter.name) or next(metadata, ""):
            field_type = Annotated[field_type, msgspec.Meta(description=description)]
        if isinstance(default, list | dict | set | bytearray):  # each call gets its own copy
            default = msgspec.field(default_factory=partial(copy.deepcopy, cast("Any", default)))
        fields.append((parameter.name, field_type, *(() if default is parameter.empty else (default,))))
    fields.sort(key=len)  # those without a default first
    return injected, msgspec.defstruct(f"{name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)


def written_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in the source code: the one inside a partial, or the `__call__` of an object."""
    while isinstance(function, partial):
        function = function.func
    is_plain = inspect.isroutine(function) or inspect.isclass(function)
    return function if is_plain else type(function).__call__


def _class_of(hint: Any) -> Any:
    """The class of an annotation, without type arguments, metadata and `| None`."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        others = [each for each in get_args(hint) if each is not NoneType]
        hint = others[0] if len(others) == 1 else hint
    return get_origin(hint) or hint


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description in a docstring, and the descriptions of parameters in its section `Args:`."""
    head, _, rest = text.partition("\nArgs:\n")
    section = re.split(r"^(?=\S)", rest, maxsplit=1, flags=re.MULTILINE)[0]  # up to the next line without an indent
    descriptions: dict[str, str] = {}
    for entry in re.split(r"^ {4}(?=\S[^:\n]*:)", section, flags=re.MULTILINE)[1:]:
        name, _, about = entry.partition(":")
        descriptions[name.split("(")[0].strip()] = " ".join(line.strip() for line in about.splitlines() if line.strip())
    return head.strip(), descriptions
