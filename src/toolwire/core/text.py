"""Functions on text and JSON that several stages need."""

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import msgspec

from toolwire.core.raw import fields_of, text_of, to_raw

_raw = msgspec.json.Decoder(msgspec.Raw)


def is_json(text: str) -> bool:
    """Whether the text is one complete, strict JSON value. No objects are built."""
    try:
        _raw.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


_OFFSET = re.compile(r"\(byte (\d+)\)$")


def is_begun_object(text: str) -> bool:
    """Whether the text is a truncated JSON object: valid up to its end."""
    if not text.lstrip().startswith("{"):
        return False
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
        return text.encode("utf-8", "replace")


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
        fields_of(text)
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
