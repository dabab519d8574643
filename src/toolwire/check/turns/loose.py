"""Reads untrusted JSON values without raising."""

from typing import Any, TypeAlias, cast

import msgspec

Json: TypeAlias = dict[str, Any]

MAX_DEPTH = 200
"""Maximum nesting; comparing deeper values would overflow the stack."""
MAX_INTEGER = 2**53
"""Larger integers are not exact in JavaScript clients."""


def parse_json(data: str | bytes) -> Any:
    """The parsed JSON; None if it is invalid or nested too deeply."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    brackets = data.count("[") + data.count("{") if isinstance(data, str) else data.count(b"[") + data.count(b"{")
    if brackets <= MAX_DEPTH:
        return value
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [inner for each in level for inner in (*as_object(each).values(), *as_list(each))]
    return value if depth <= MAX_DEPTH else None


def as_object(value: Any) -> Json:
    """An object; anything else counts as an empty one."""
    return cast("Json", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """A list; anything else counts as an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_objects(value: Any) -> list[Json]:
    """A list of objects; elements of other types count as empty objects."""
    return [as_object(each) for each in as_list(value)]


def as_text(value: Any) -> str:
    """A string; anything else counts as an empty one."""
    return value if isinstance(value, str) else ""


def as_number(value: Any) -> int | None:
    """An integer; None for anything else, including true and 1.0."""
    return value if type(value) is int and abs(value) <= MAX_INTEGER else None


def quote(value: Any) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:78]}…"
