"""Small facts about text that several stages need."""

import msgspec

_raw = msgspec.json.Decoder(msgspec.Raw)


def is_json(text: str) -> bool:
    """Whether the text is one whole, strict JSON value. Builds nothing."""
    try:
        _raw.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False
    return True


def is_blank(arguments: str) -> bool:
    """Whether arguments say nothing, or only what may turn out to be the word null."""
    return "null".startswith(arguments.strip())


def same_json(one: str, other: str) -> bool:
    """Whether two argument texts mean the same; texts that are not JSON must be equal."""
    if one == other:
        return True
    try:
        return _canonical(one) == _canonical(other)
    except msgspec.DecodeError:
        return False


def _canonical(text: str) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(text), order="deterministic")


def arguments_text(raw: msgspec.Raw | msgspec.UnsetType) -> str:
    """Arguments as text: a string's value, an object's own JSON without spaces, nothing for null."""
    if raw is msgspec.UNSET:
        return ""
    data = bytes(raw)
    if data.startswith(b'"'):
        return msgspec.json.decode(data, type=str)
    return "" if data == b"null" else msgspec.json.format(data, indent=-1).decode()
