"""Converts tables of a settings file to Structs. An error is one line: the field, the reason, a suggestion."""

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from math import isfinite
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
from msgspec import inspect

from toolwire.core.errors import SettingsError, split_validation_error

T = TypeVar("T")
Table: TypeAlias = dict[str, Any]
"""A table of a settings file, not validated yet."""

_NO_KEYS_HERE = 'write api_key_env = "NAME", the variable that holds the key; keys do not belong in this file'
_MEANT = {
    **dict.fromkeys(("api_key", "key", "token", "apikey", "api-key", "secret"), _NO_KEYS_HERE),
    "type": "did you mean kind?",
    "provider": "did you mean preset?",
    "url": "did you mean base_url?",
    "endpoint": "did you mean base_url?",
}
"""Keys that users of other programs write in `[[backends]]`, and a hint for each."""

_WORDS = {
    "str": "text in quotes",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list in brackets",
    "object": "a table",
}
"""The types of msgspec, in TOML's terms."""

CHOICES = "choices"
"""The key of `msgspec.Meta.extra` for a function that returns the allowed values of a string field."""

_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_TYPE = re.compile(r"Expected `([\w |]+)`, got `(\w+)`")
_BOUND = re.compile(r"Expected `\w+` (>=?) (.+)")
_STEP = re.compile(r"(\w+)|\[(\d+|\.\.\.)\]")


def convert_table(value: Any, kind: type[T], source: str, field: str = "") -> T:
    """Convert a table to a Struct.

    Raises `SettingsError`, which names the source and the wrong field; `field` is the path of the table itself.
    """
    name, reason = next(_find_non_finite(value, ""), ""), "a finite number is needed here"
    if not name:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            text, inner = split_validation_error(error)
            name, reason = _explain(text, inner, inspect.type_info(kind), value)
    entry = re.match(r"\w+\[\d+\]", name)
    named = _follow(f"{entry[0]}.name", inspect.AnyType(), value)[1] if entry else None
    if entry and isinstance(named, str):  # add the name of a list's entry: `backends[0] (local).kind`
        name = f"{entry[0]} ({named}){name[entry.end() :]}"
    path = ".".join(part for part in (field, name) if part)
    raise SettingsError(": ".join(part for part in (source, path, reason) if part)) from None


def _find_non_finite(value: Any, path: str) -> Iterator[str]:
    """The paths of `inf` and `nan`, which TOML allows and settings do not."""
    if isinstance(value, float) and not isfinite(value):
        yield path
    elif isinstance(value, dict):
        for key, each in cast("Table", value).items():
            yield from _find_non_finite(each, _join(path, key))
    elif isinstance(value, list):
        for index, each in enumerate(cast("list[Any]", value)):
            yield from _find_non_finite(each, f"{path}[{index}]")


def join_reasons(*parts: str) -> str:
    """Join the parts of a reason that are not empty."""
    return "; ".join(part for part in parts if part)


def join_words(words: Iterable[str]) -> str:
    """`a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """A question with the most similar of these words; empty if none is similar."""
    near = get_close_matches(word.lower().replace("-", "_"), list(words), n=1, cutoff=0.65)
    return f"did you mean {near[0]}?" if near else ""


def explain_choice(value: Any, words: Sequence[str], path: str = "") -> str:
    """The error message for a value that is not one of these words."""
    return join_reasons(f"{_quote(value, path)} is not one of {', '.join(words)}", did_you_mean(str(value), words))


def _explain(text: str, path: str, root: inspect.Type, table: Any) -> tuple[str, str]:
    """The field that msgspec rejects, and the reason in the terms of a settings file."""
    kind, value = _follow(path, root, table)
    if unknown := _UNKNOWN.fullmatch(text):
        return _join(path, unknown[1]), join_reasons("unknown key", _guess_key(unknown[1], kind, root))
    if missing := _MISSING.fullmatch(text):
        choices = _list_choices(_fields(kind)[missing[1]])
        instead = ", or a preset" if "preset" in _fields(kind) else ""
        hint = f"write one of {', '.join(choices)}{instead}" if choices else ""
        return _join(path, missing[1]), join_reasons("it is missing", hint)
    if text.startswith("Invalid enum value"):
        return path, explain_choice(value, [str(each) or '""' for each in _list_choices(kind)], path)
    if bound := _BOUND.fullmatch(text):
        least = "more than" if bound[1] == ">" else "at least"
        return path, f"it must be {least} {float(bound[2]):g}; received {_quote(value, path)}"
    wrong = _TYPE.fullmatch(text)
    if not wrong:
        return path, text
    match wrong.groups():
        case ("array", "object"):
            return path, f"write [[{path}]], with two brackets: there can be several"
        case ("object", "array"):
            return path, f"write [{path}], with single brackets: there is only one"
        case _:
            words = join_words(_WORDS.get(each, each) for each in wrong[1].split(" | ") if each != "null")
            return path, f"{_quote(value, path)} is not {words}" if value is not None else f"{words} is needed here"


def _quote(value: Any, path: str) -> str:
    """The value for a message, unless it is long or may be a key in the wrong field."""
    is_secret = path.endswith("key") or looks_like_key(str(value))
    is_plain = isinstance(value, str | int | float) and len(repr(value)) < 40 and not is_secret
    return repr(value) if is_plain else "this value"


def looks_like_key(text: str) -> bool:
    """Whether a text looks like a vendor's key: `sk-…`, `gsk_…`, `xai-…`."""
    return re.match(r"(?![A-Z0-9_]+$)[A-Za-z]{2,4}[-_]\S{12}", text) is not None  # capitals are a variable's name


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _follow(path: str, kind: inspect.Type, value: Any) -> tuple[inspect.Type, Any]:
    """The type and the given value at a path such as `backends[0].kind`."""
    for step in _STEP.finditer(path):
        if step[1]:
            value = cast("Table", value).get(step[1]) if isinstance(value, dict) else None
            kind = _fields(kind).get(step[1], inspect.AnyType())
        else:
            value = cast("list[Any]", value)[int(step[2])] if isinstance(value, list) and step[2].isdigit() else None
            kind = getattr(kind, "item_type", None) or getattr(kind, "value_type", None) or inspect.AnyType()
    return kind, value


def _fields(kind: inspect.Type) -> dict[str, inspect.Type]:
    """The fields of a table by name; empty for any other type."""
    return {field.encode_name: field.type for field in kind.fields} if isinstance(kind, inspect.StructType) else {}


def _list_choices(kind: inspect.Type) -> Sequence[Any]:
    """The values of an enum, even in a union with null, or those of its `CHOICES`."""
    if isinstance(kind, inspect.Metadata):
        extra = cast("Table", kind.extra or {})  # pyright: ignore[reportUnknownMemberType]
        return extra[CHOICES]() if CHOICES in extra else ()
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return next((each.values for each in kinds if isinstance(each, inspect.LiteralType)), ())


def _guess_key(key: str, kind: inspect.Type, root: inspect.Type) -> str:
    """Suggest a replacement for an unknown key."""
    names = _fields(kind)
    if "api_key_env" in names and key in _MEANT:
        return _MEANT[key]
    near = did_you_mean(key, names)
    if near:
        return near
    home = [name for name, inner in _fields(root).items() if key in _fields(inner)] if kind is root else []
    if home:
        return f"it belongs in [{home[0]}]"
    return f"there are {', '.join(names)}" if len(names) < 10 else ""
