"""Values of JSON that nobody vouches for."""

from typing import Any, TypeAlias, cast

Json: TypeAlias = dict[str, Any]


def as_object(value: Any) -> Json:
    """An object; anything else counts as an empty one."""
    return cast("Json", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_objects(value: Any) -> list[Json]:
    """A list of objects; what is none of these counts as empty."""
    return [as_object(each) for each in as_list(value)]


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def shown(value: Any) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:78]}…"
