"""The signature and the docstring of a function, as what a model needs to call it."""

import copy
import inspect
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

import msgspec


def parameters_of(
    function: Callable[..., Any], name: str, described: dict[str, str], given_types: Sequence[type]
) -> tuple[dict[str, type], type[msgspec.Struct]]:
    """The parameters that the engine gives, by their types, and a type for those of the model."""
    hints = get_type_hints(function, include_extras=True)
    given: dict[str, type] = {}
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{name}: the parameter {parameter.name} cannot be given by name")
        hint = hints.get(parameter.name, Any)
        if (kind := _class_of(hint)) in given_types:
            given[parameter.name] = kind
            continue
        default = () if parameter.default is parameter.empty else (_default(parameter.default),)
        fields.append((parameter.name, _described(hint, described.get(parameter.name, "")), *default))
    fields.sort(key=len)  # those without a default first
    return given, msgspec.defstruct(f"{name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)


def _class_of(hint: Any) -> Any:
    """The class of an annotation, without its parameters and remarks."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return get_origin(hint) or hint


def _described(kind: Any, text: str) -> Any:
    """The type with a description: the one given, or the first text among its annotations."""
    text = text or next((each for each in getattr(kind, "__metadata__", ()) if isinstance(each, str)), "")
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
