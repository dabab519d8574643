"""Tables of a settings file as Structs. What is wrong with one is told in one line: the field, why, what was meant."""

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from math import isfinite
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from toolwire.core.errors import SettingsError, validation_message

T = TypeVar("T")

_NO_KEYS_HERE = 'write api_key_env = "NAME", the variable that holds the key; keys do not belong into this file'
_MEANT = {
    **dict.fromkeys(("api_key", "key", "token", "apikey", "api-key", "secret"), _NO_KEYS_HERE),
    "type": "did you mean kind?",
    "provider": "did you mean preset?",
    "url": "did you mean base_url?",
    "endpoint": "did you mean base_url?",
}
"""What people write in `[[backends]]`, because other programs call it so."""

_WORDS = {
    "str": "text in quotes",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list in brackets",
    "object": "a table",
}
"""What msgspec calls types, for somebody who writes TOML."""

CHOICES = "choices"
"""The key of `msgspec.Meta.extra` for a function that returns the values which a field of type str may have."""

_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_TYPE = re.compile(r"Expected `([\w |]+)`, got `(\w+)`")
_STEP = re.compile(r"(\w+)|\[(\d+|\.\.\.)\]")


def converted(value: Any, kind: type[T], source: str, field: str = "") -> T:
    """A table as a Struct. Raises `SettingsError`, which names the source, and the field below the one it is about."""
    try:
        made = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, inner = validation_message(error)
        name, reason = _explained(text, inner, inspect.type_info(kind), value)
    else:
        found = next(_endless(value, ""), None)
        if found is None:
            return made
        name, reason = found, "a finite number is needed here"
    path = ".".join(part for part in (field, _named(name, value)) if part)
    raise SettingsError(": ".join(part for part in (source, path, reason) if part)) from None


def _endless(value: Any, path: str) -> Iterator[str]:
    """Where numbers stand that TOML has and no setting can be: `inf` and `nan`."""
    if isinstance(value, float) and not isfinite(value):
        yield path
    elif isinstance(value, dict):
        for key, each in cast("dict[str, Any]", value).items():
            yield from _endless(each, _joined(path, key))
    elif isinstance(value, list):
        for index, each in enumerate(cast("list[Any]", value)):
            yield from _endless(each, f"{path}[{index}]")


def sentence(*parts: str) -> str:
    """The parts of a reason, as far as there are any."""
    return "; ".join(part for part in parts if part)


def one_of(words: Iterable[str]) -> str:
    """`a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """A question with the nearest of these words; nothing if none is near."""
    near = get_close_matches(word.lower().replace("-", "_"), list(words), n=1, cutoff=0.65)
    return f"did you mean {near[0]}?" if near else ""


def no_choice(value: Any, words: Sequence[str], path: str = "") -> str:
    """What is wrong with a value that is none of these words."""
    return sentence(f"{_shown(value, path)} is none of {', '.join(words)}", did_you_mean(str(value), words))


def _explained(text: str, path: str, root: inspect.Type, table: Any) -> tuple[str, str]:
    """The field that msgspec complains about, and the reason in words that help."""
    kind, value = _followed(path, root, table)
    if unknown := _UNKNOWN.fullmatch(text):
        return _joined(path, unknown[1]), sentence("unknown key", _meant(unknown[1], kind, root))
    if missing := _MISSING.fullmatch(text):
        return _joined(path, missing[1]), _needed(missing[1], kind)
    if text.startswith("Invalid enum value"):
        return path, no_choice(value, [str(each) or '""' for each in _values(kind)], path)
    if wrong := _TYPE.fullmatch(text):
        return path, _mistyped(wrong[1], wrong[2], path, value)
    return path, text


def _named(path: str, table: Any) -> str:
    """A path in which the entry of a list has its name beside its number: `backends[0] (local).kind`."""
    entry = re.match(r"\w+\[\d+\]", path)
    name = _followed(f"{entry[0]}.name", inspect.AnyType(), table)[1] if entry else None
    return f"{entry[0]} ({name}){path[entry.end() :]}" if entry and isinstance(name, str) else path


def _shown(value: Any, path: str) -> str:
    """A value that was given; not one that is long, or a key, also where it was put into the wrong place."""
    is_secret = path.endswith("key") or looks_like_key(str(value))
    is_plain = isinstance(value, str | int | float) and len(repr(value)) < 40 and not is_secret
    return repr(value) if is_plain else "what stands here"


def looks_like_key(text: str) -> bool:
    """Whether it begins as keys of vendors do: `sk-…`, `gsk_…`, `xai-…`."""
    return re.match(r"[A-Za-z]{2,4}[-_]\S{12}", text) is not None


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _followed(path: str, kind: inspect.Type, value: Any) -> tuple[inspect.Type, Any]:
    """The type, and the value that was given, at a path such as `backends[0].kind`."""
    for step in _STEP.finditer(path):
        if step[1]:
            value = cast("dict[str, Any]", value).get(step[1]) if isinstance(value, dict) else None
            kind = _fields(kind).get(step[1], inspect.AnyType())
        else:
            value = cast("list[Any]", value)[int(step[2])] if isinstance(value, list) and step[2].isdigit() else None
            kind = getattr(kind, "item_type", None) or getattr(kind, "value_type", None) or inspect.AnyType()
    return kind, value


def _fields(kind: inspect.Type) -> dict[str, inspect.Type]:
    """The fields of a table by name; none if it is something else."""
    return {field.encode_name: field.type for field in kind.fields} if isinstance(kind, inspect.StructType) else {}


def _values(kind: inspect.Type) -> Sequence[Any]:
    """The values of an enum, which may be one type of several, as where it can be null; or those of its `CHOICES`."""
    if isinstance(kind, inspect.Metadata):
        extra = cast("dict[str, Any]", kind.extra or {})  # pyright: ignore[reportUnknownMemberType]
        return extra[CHOICES]() if CHOICES in extra else ()
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return next((each.values for each in kinds if isinstance(each, inspect.LiteralType)), ())


def _meant(key: str, kind: inspect.Type, root: inspect.Type) -> str:
    """What an unknown key was probably meant to be."""
    names = _fields(kind)
    if "api_key_env" in names and key in _MEANT:
        return _MEANT[key]
    near = did_you_mean(key, names)
    if near:
        return near
    home = [name for name, inner in _fields(root).items() if key in _fields(inner)] if kind is root else []
    if home:
        return f"it belongs into [{home[0]}]"
    return f"there are {', '.join(names)}" if len(names) < 10 else ""


def _needed(key: str, kind: inspect.Type) -> str:
    values = _values(_fields(kind)[key])
    if not values:
        return "it is missing"
    instead = ", or a preset" if "preset" in _fields(kind) else ""
    return f"it is missing; write one of {', '.join(values)}{instead}"


def _mistyped(wanted: str, got: str, path: str, value: Any) -> str:
    if wanted == "array" and got == "object":
        return f"write [[{path}]], with two brackets: there can be several"
    if wanted == "object" and got == "array":
        return f"write [{path}], with single brackets: there is only one"
    words = one_of(_WORDS.get(each, each) for each in wanted.split(" | ") if each != "null")
    return f"{_shown(value, path)} is not {words}" if value is not None else f"{words} is needed here"
