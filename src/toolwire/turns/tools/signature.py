"""The signature and the docstring of a function, as what a model needs to call it."""

import copy
import inspect
import re
from collections.abc import Callable, Sequence
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from toolwire.turns.tools.types import is_pydantic_field, left_to_pydantic, pydantic_default, schema_of


def parameters_of(
    function: Callable[..., Any], name: str, described: dict[str, str], given_types: Sequence[type]
) -> tuple[dict[str, type], type[msgspec.Struct]]:
    """The parameters that the engine gives, by their types, and a type for those of the model.

    Raises `TypeError`, which names the tool and the parameter, if a model could not give one of them.
    """
    hints = _hints(function, name)
    given: dict[str, type] = {}
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{name}: the parameter {parameter.name} cannot be given by name")
        hint, default = hints.get(parameter.name, Any), parameter.default
        if (kind := _class_of(hint)) in given_types:
            given[parameter.name] = kind
            continue
        if is_pydantic_field(default):
            hint, default = Annotated[hint, default], pydantic_default(default, parameter.empty)
        typed = _described(_supported(hint, f"{name}: the parameter {parameter.name}"), described, parameter.name)
        fields.append((parameter.name, typed, *(() if default is parameter.empty else (_default(default),))))
    fields.sort(key=len)  # those without a default first
    return given, msgspec.defstruct(f"{name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)


def written_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that somebody wrote: that of a partial one, and the `__call__` of an object."""
    while isinstance(function, partial):
        function = function.func
    is_plain = inspect.isroutine(function) or inspect.isclass(function)
    return function if is_plain else type(function).__call__


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(written_function(function), include_extras=True)
    except NameError as error:
        raise TypeError(f"{name}: an annotation cannot be resolved: {error}") from None


def _supported(hint: Any, subject: str) -> Any:
    """The type as msgspec can read it. Raises `TypeError` if it cannot be read from JSON."""
    kind = left_to_pydantic(hint)
    try:
        schema_of(kind)
    except (TypeError, NotImplementedError) as error:
        raise TypeError(f"{subject} cannot be read from JSON: {error}") from None
    return kind


def _class_of(hint: Any) -> Any:
    """The class of an annotation, without its parameters and remarks, also where it may be None."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        others = [each for each in get_args(hint) if each is not NoneType]
        hint = others[0] if len(others) == 1 else hint
    return get_origin(hint) or hint


def _described(kind: Any, described: dict[str, str], name: str) -> Any:
    """The type with a description: that of the docstring, or the first text among its annotations."""
    text = described.get(name) or next(
        (each for each in getattr(kind, "__metadata__", ()) if isinstance(each, str)), ""
    )
    return Annotated[kind, msgspec.Meta(description=text)] if text else kind


def _default(value: Any) -> Any:
    """A default that each call has for itself."""
    if isinstance(value, list | dict | set | bytearray):
        return msgspec.field(default_factory=partial(copy.deepcopy, cast("Any", value)))
    return value


def documented(text: str) -> tuple[str, dict[str, str]]:
    """A docstring's description, and what its section `Args:` says of each parameter."""
    head, _, rest = text.partition("\nArgs:\n")
    section = re.split(r"^(?=\S)", rest, maxsplit=1, flags=re.MULTILINE)[0]  # up to the next line without an indent
    described: dict[str, str] = {}
    for entry in re.split(r"^ {4}(?=\S[^:\n]*:)", section, flags=re.MULTILINE)[1:]:
        name, _, about = entry.partition(":")
        described[name.split("(")[0].strip()] = " ".join(line.strip() for line in about.splitlines() if line.strip())
    return head.strip(), described
