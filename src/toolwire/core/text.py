"""Small facts about text that several stages need."""

import msgspec

_string = msgspec.json.Decoder(str)
_raw = msgspec.json.Decoder(msgspec.Raw)


def is_json(text: str) -> bool:
    """Whether the text is one whole, strict JSON value. Builds nothing."""
    try:
        _raw.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


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
    except (msgspec.DecodeError, RecursionError):
        return text.encode("utf-8", "replace")


def arguments_text(raw: msgspec.Raw | msgspec.UnsetType) -> str:
    """Arguments as text: a string's value, an object's own JSON without spaces, nothing for null."""
    if raw is msgspec.UNSET:
        return ""
    data = bytes(raw)
    if data.startswith(b'"'):
        return _string.decode(data)
    return "" if data == b"null" else msgspec.json.format(data, indent=-1).decode()
