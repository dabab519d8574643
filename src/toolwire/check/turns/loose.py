"""Reads untrusted JSON values without raising."""

from typing import Any, TypeAlias, cast

import msgspec

Json: TypeAlias = dict[str, Any]

DEEPEST = 200
"""The deepest nesting that is read; comparing deeper values would overflow the stack."""
LARGEST = 2**53
"""Larger integers are not exact in JavaScript clients."""


def parsed(data: str | bytes) -> Any:
    """The parsed JSON; None if it is invalid or nested too deeply."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if _openings(data) <= DEEPEST or _depth(value) <= DEEPEST else None


def _openings(data: str | bytes) -> int:
    return data.count("[") + data.count("{") if isinstance(data, str) else data.count(b"[") + data.count(b"{")


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level and depth <= DEEPEST:
        depth += 1
        level = [inner for each in level for inner in (*as_object(each).values(), *as_list(each))]
    return depth


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
    return value if type(value) is int and abs(value) <= LARGEST else None


def shown(value: Any) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:78]}…"
