"""Functions on text and JSON that several stages need."""

import json
import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import msgspec

from toolwire.core.raw import fields_of, text_of, to_raw
from toolwire.core.surrogates import whole_text

_raw = msgspec.json.Decoder(msgspec.Raw)


def is_json(text: str) -> bool:
    """Whether the text is one complete, strict JSON value. No objects are built.

    Half a character, as an escape, is no fault: JSON allows it, and most clients read it.
    """
    try:
        _raw.decode(text)
    except UnicodeEncodeError:
        return is_json(whole_text(text))
    except (msgspec.DecodeError, RecursionError):
        whole = without_halves(text)
        return whole is not text and is_json(whole)
    return True


_ESCAPES = re.compile(
    r"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


def without_halves(text: str) -> str:
    """JSON text with U+FFFD for each escape of half a character, which msgspec refuses; the text itself without any."""
    if "\\ud" not in text and "\\uD" not in text:
        return text
    whole = _ESCAPES.sub(lambda found: found[1] or "\\ufffd", text)
    return text if whole == text else whole


_OFFSET = re.compile(r"\(byte (\d+)\)$")


def is_begun_object(text: str) -> bool:
    """Whether the text is a truncated JSON object: valid up to its end."""
    if not text.lstrip().startswith("{"):
        return False
    text = without_halves(text)
    try:
        _raw.decode(text)
    except msgspec.DecodeError as error:
        if "trailing" in str(error):
            return False
        wrong = _OFFSET.search(str(error))
        return wrong is None or int(wrong[1]) >= len(text.encode())
    except (UnicodeEncodeError, RecursionError):
        return True
    return False


_MARKS = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


class FirstObject:
    """Finds where the first JSON value of a growing text ends, by its brackets. Each character is looked at once."""

    __slots__ = ("_depth", "_in_string", "_is_escaped", "is_closed")

    def __init__(self) -> None:
        self.is_closed = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def feed(self, text: str) -> int | None:
        """Read more of the text; returns where in it the value ends, if it does."""
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


def json_values(text: str) -> list[str]:
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


def same_json(one: str, other: str) -> bool:
    """Whether two texts are the same JSON value; texts that are not JSON must be equal."""
    return one == other or canonical(one) == canonical(other)


def canonical(text: str) -> bytes:
    """The canonical form of a JSON text; a text that is not JSON is returned as it is."""
    try:
        return msgspec.json.encode(msgspec.json.decode(text), order="deterministic")
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        whole = without_halves(text)
        return text.encode("utf-8", "replace") if whole is text else canonical(whole)


def checked_names(argument: str, names: Iterable[Any]) -> tuple[str, ...]:
    """The names in an argument of a caller. Raises `ValueError` for one name alone, and for what is no name."""
    if isinstance(names, str):
        raise ValueError(f"{argument}: a list of names is needed, such as [{names!r}]")  # noqa: TRY004 - as for any value
    listed = tuple(names)
    for index, name in enumerate(listed):
        if not isinstance(name, str):
            raise ValueError(f"{argument}[{index}]: a name is needed, not {type(name).__name__}")  # noqa: TRY004 - as for any value
    return listed


MAX_USER_LENGTH = 64


def shortened(user: str | None) -> str | None:
    """The user id, hashed if it is longer than the 64 characters OpenAI takes; Anthropic's clients send objects."""
    if user is None or len(user) <= MAX_USER_LENGTH:
        return user
    return sha256(user.encode("utf-8", "surrogatepass")).hexdigest()


NOT_AN_OBJECT = "__arguments"
"""The key that holds arguments which are not a JSON object, where a protocol accepts objects only."""


def as_object(arguments: str) -> msgspec.Raw | None:
    """Arguments as a JSON object in their original text, also out of a JSON string; None if they are not an object."""
    if is_blank(arguments):
        return msgspec.Raw(b"{}")
    try:
        text = text_of(arguments) if arguments.lstrip().startswith('"') else arguments
        try:
            fields_of(text)
        except msgspec.DecodeError:
            fields_of(without_halves(text))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return msgspec.Raw(text.encode())


def wrapped(arguments: str) -> msgspec.Raw:
    """An object that holds arguments which are not an object; `unwrapped` undoes it."""
    return to_raw({NOT_AN_OBJECT: arguments})


def unwrapped(raw: msgspec.Raw) -> str:
    """The arguments in a JSON value: its text, or the text that `wrapped` put into it."""
    text = bytes(raw).decode()
    if NOT_AN_OBJECT not in text:
        return text
    try:
        fields = fields_of(raw)
        return text_of(fields[NOT_AN_OBJECT]) if list(fields) == [NOT_AN_OBJECT] else text
    except msgspec.DecodeError:
        return text


def arguments_text(raw: msgspec.Raw | msgspec.UnsetType) -> str:
    """Arguments as text: the value of a string, compact JSON of an object, nothing for null."""
    if raw is msgspec.UNSET:
        return ""
    data = bytes(raw)
    if data.startswith(b'"'):
        return text_of(data)
    return "" if data == b"null" else msgspec.json.format(data, indent=-1).decode()
