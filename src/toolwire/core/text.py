"""Small facts about text that several stages need."""

import re
from hashlib import sha256

import msgspec

_string = msgspec.json.Decoder(str)
_raw = msgspec.json.Decoder(msgspec.Raw)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def is_json(text: str) -> bool:
    """Whether the text is one whole, strict JSON value. Builds nothing."""
    try:
        _raw.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


_PLACE = re.compile(r"\(byte (\d+)\)$")


def is_begun_object(text: str) -> bool:
    """Whether the text is the beginning of a JSON object: nothing in it is wrong but that it ends too early."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        _raw.decode(text)
    except msgspec.DecodeError as error:
        if "trailing" in str(error):
            return False
        wrong = _PLACE.search(str(error))
        return wrong is None or int(wrong[1]) >= len(text.encode())
    except (UnicodeEncodeError, RecursionError):
        return True
    return False


def is_blank(arguments: str) -> bool:
    """Whether arguments say nothing, or only what may turn out to be the word null."""
    return "null".startswith(arguments.strip())


def same_json(one: str, other: str) -> bool:
    """Whether two argument texts mean the same; texts that are not JSON must be equal."""
    return one == other or canonical(one) == canonical(other)


def canonical(text: str) -> bytes:
    """One form for all texts of the same JSON value; a text that is not JSON is its own."""
    try:
        return msgspec.json.encode(msgspec.json.decode(text), order="deterministic")
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text.encode("utf-8", "replace")


LONGEST_USER = 64


def shortened(user: str | None) -> str | None:
    """A name for a user that OpenAI takes, which is one of 64 letters; clients of Anthropic send whole objects."""
    if user is None or len(user) <= LONGEST_USER:
        return user
    return sha256(user.encode("utf-8", "surrogatepass")).hexdigest()


NOT_AN_OBJECT = "__arguments"
"""The key under which arguments travel that are no JSON object, where a protocol takes nothing else."""


def as_object(arguments: str) -> msgspec.Raw | None:
    """Arguments as a JSON object, as they were written; None if they are none. A string that holds one counts."""
    if is_blank(arguments):
        return msgspec.Raw(b"{}")
    try:
        text = _string.decode(arguments) if arguments.lstrip().startswith('"') else arguments
        _object.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return msgspec.Raw(text.encode())


def wrapped(arguments: str) -> msgspec.Raw:
    """An object that holds arguments which are none; `unwrapped` undoes it."""
    return msgspec.Raw(msgspec.json.encode({NOT_AN_OBJECT: arguments}))


def unwrapped(raw: msgspec.Raw) -> str:
    """The arguments in a JSON value: its own text, or what was put into an object for the way."""
    text = bytes(raw).decode()
    if NOT_AN_OBJECT not in text:
        return text
    try:
        fields = _object.decode(raw)
        return _string.decode(fields[NOT_AN_OBJECT]) if list(fields) == [NOT_AN_OBJECT] else text
    except msgspec.DecodeError:
        return text


def arguments_text(raw: msgspec.Raw | msgspec.UnsetType) -> str:
    """Arguments as text: a string's value, an object's own JSON without spaces, nothing for null."""
    if raw is msgspec.UNSET:
        return ""
    data = bytes(raw)
    if data.startswith(b'"'):
        return _string.decode(data)
    return "" if data == b"null" else msgspec.json.format(data, indent=-1).decode()
