"""JSON text: whether it is complete, where a value ends, whether two texts are the same value, split characters.

Some servers split strings between the two UTF-16 surrogates of one character:

    {"delta": "\\ud83d"}   then   {"delta": "\\ude00"}

Strict JSON readers refuse both. `SurrogateHalves` keeps the first half until the second arrives, and replaces a half
without the other with U+FFFD.
"""

import json
import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, cast

import msgspec

_raw = msgspec.json.Decoder(msgspec.Raw)


def is_json(text: str) -> bool:
    """Whether the text is one complete, strict JSON value. No objects are built.

    The escape of a lone surrogate is valid: JSON allows it, and most clients read it.
    """
    try:
        _raw.decode(text)
    except UnicodeEncodeError:
        return is_json(join_surrogates(text))
    except (msgspec.DecodeError, RecursionError):
        whole = replace_lone_surrogates(text)
        return whole is not text and is_json(whole)
    return True


def join_surrogates(text: str) -> str:
    """The text with adjacent surrogate halves joined, and every other half replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


_SURROGATE_ESCAPES = re.compile(
    r"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


def replace_lone_surrogates(text: str) -> str:
    """Replace lone surrogate escapes, which msgspec refuses, with U+FFFD; returns the same text if there are none."""
    if "\\ud" not in text and "\\uD" not in text:
        return text
    whole = _SURROGATE_ESCAPES.sub(lambda found: found[1] or "\\ufffd", text)
    return text if whole == text else whole


_ESCAPED_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_POSITION_FIELDS = ("index", "item_id", "output_index", "content_index", "summary_index")
"""Fields that say which text a delta continues."""


class SurrogateHalves:
    """Joins surrogate halves across the frames of one turn."""

    def __init__(self) -> None:
        self.half = ""
        """The first half of a character, until the second is received."""
        self._path: tuple[Any, ...] = ()  # the field that it ended
        self.lost = 0
        """Number of halves without their other half."""

    def repair(self, data: bytes) -> bytes | None:
        """The frame with split characters joined, or None if it has none or is not JSON."""
        if not self.half and _ESCAPED_HALF.search(data) is None:
            return None
        try:
            value = json.loads(data, parse_float=lambda number: msgspec.Raw(number.encode()))
            return msgspec.json.encode(self._repair_value(value, ()))
        except (ValueError, RecursionError):
            return None

    def _repair_value(self, value: Any, path: tuple[Any, ...]) -> Any:
        """The same value with split characters joined where possible and every other half replaced.

        A half at the end of a delta waits for the next delta of the same field.
        """
        if isinstance(value, str):
            if "delta" in path:
                if self.half and path == self._path:
                    value, self.half = self.half + value, ""
                if "\ud800" <= value[-1:] <= "\udbff":
                    self.lost += bool(self.half)
                    value, self.half, self._path = value[:-1], value[-1], path
            return self._replace_halves(value)
        if isinstance(value, list):
            return [self._repair_value(each, (*path, index)) for index, each in enumerate(cast("list[Any]", value))]
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            if "index" in fields and path:
                path = path[:-1]  # the index identifies it, not its position in the list
            path = (*path, *(fields.get(name) for name in _POSITION_FIELDS))
            return {self._replace_halves(key): self._repair_value(each, (*path, key)) for key, each in fields.items()}
        return value

    def _replace_halves(self, text: str) -> str:
        whole = join_surrogates(text)
        self.lost += whole.count("\ufffd") - text.count("\ufffd")
        return whole


_ERROR_OFFSET = re.compile(r"\(byte (\d+)\)$")


def is_begun_object(text: str) -> bool:
    """Whether the text is a truncated JSON object: valid up to its end."""
    if not text.lstrip().startswith("{"):
        return False
    text = replace_lone_surrogates(text)
    try:
        _raw.decode(text)
    except msgspec.DecodeError as error:
        if "trailing" in str(error):
            return False
        wrong = _ERROR_OFFSET.search(str(error))
        return wrong is None or int(wrong[1]) >= len(text.encode())
    except (UnicodeEncodeError, RecursionError):
        return True
    return False


_MARKS = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


class FirstObject:
    """Finds where the first JSON value of a growing text ends, by its brackets. Each character is read once."""

    __slots__ = ("_depth", "_in_string", "_is_escaped", "is_closed")

    def __init__(self) -> None:
        self.is_closed = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def feed(self, text: str) -> int | None:
        """Read more of the text; returns the offset at which the value ends, if it does."""
        at = 0
        if self._is_escaped and text and not self.is_closed:
            at, self._is_escaped = 1, False
        while not self.is_closed and (mark := (_IN_STRING if self._in_string else _MARKS).search(text, at)):
            at = mark.end()
            match mark[0]:
                case "\\":
                    self._is_escaped = at == len(text)
                    at += 1
                case '"':
                    self._in_string = not self._in_string
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    self.is_closed = self._depth == 0
        return at if self.is_closed else None


_decode_value = json.JSONDecoder().raw_decode
_SPACE = re.compile(r"\s*")


def split_json_values(text: str) -> list[str]:
    """The JSON values that a text consists of, one after the other; none if it holds anything else."""
    values: list[str] = []
    start = 0
    while (space := _SPACE.match(text, start)) and (start := space.end()) < len(text):
        try:
            _, end = _decode_value(text, start)
        except (ValueError, RecursionError):
            return []
        values.append(text[start:end])
        start = end
    return values


def is_blank(arguments: str) -> bool:
    """Whether arguments are empty or a prefix of `null`."""
    return "null".startswith(arguments.strip())


def is_same_json(one: str, other: str) -> bool:
    """Whether two texts are the same JSON value; texts that are not JSON must be equal."""
    return one == other or canonicalise(one) == canonicalise(other)


def canonicalise(text: str) -> bytes:
    """The canonical form of a JSON text; a text that is not JSON is returned as it is."""
    try:
        return msgspec.json.encode(msgspec.json.decode(text), order="deterministic")
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        whole = replace_lone_surrogates(text)
        return text.encode("utf-8", "replace") if whole is text else canonicalise(whole)


def check_names(argument: str, names: Iterable[Any]) -> tuple[str, ...]:
    """The names that a caller passed as this argument. Raises `ValueError` for a string, or a non-string entry."""
    if isinstance(names, str):
        raise ValueError(f"{argument}: a list of names is needed, such as [{names!r}]")  # noqa: TRY004 - as for any value
    listed = tuple(names)
    for index, name in enumerate(listed):
        if not isinstance(name, str):
            raise ValueError(f"{argument}[{index}]: a name is needed, not {type(name).__name__}")  # noqa: TRY004 - as for any value
    return listed


def count_bytes(text: str) -> int:
    """The bytes of a text as UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


MAX_USER_ID_CHARS = 64


def hash_long_user_id(user: str | None) -> str | None:
    """The user id, hashed if it exceeds OpenAI's 64 characters; clients of Anthropic send JSON objects."""
    if user is None or len(user) <= MAX_USER_ID_CHARS:
        return user
    return sha256(user.encode("utf-8", "surrogatepass")).hexdigest()
