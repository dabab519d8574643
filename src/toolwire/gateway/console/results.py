"""The results of tool calls that came with a request, in any dialect."""

from collections.abc import Iterator
from typing import Any, cast

import msgspec

from toolwire.gateway.console.rows import LONGEST, NAMES

_LONGEST_BODY = 2 * 1024 * 1024
"""Bytes of a body that is looked at."""


def results_in(body: bytes, dialect: str) -> tuple[str, ...]:
    """The calls whose results stand at the end of a request, each with ` failed` behind it if its tool says so."""
    if not body or len(body) > _LONGEST_BODY:
        return ()
    try:
        asked = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return ()
    found = list(_last_results(asked, dialect))
    return tuple(f"{id[:LONGEST]}{' failed' if failed else ''}" for id, failed in found[-NAMES:])


def _last_results(asked: Any, dialect: str) -> Iterator[tuple[str, bool]]:
    for item in reversed(_objects(_fields(asked).get("input" if dialect == "responses" else "messages"))):
        own = list(_results(item))
        if (not own and item.get("role") in ("assistant", "user")) or str(item.get("type", "")).endswith("_call"):
            return
        yield from own


def _results(item: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    if item.get("role") == "tool":
        yield str(item.get("tool_call_id", "")), _is_error(item.get("content"))
    elif str(item.get("type", "")).endswith("_call_output"):
        yield str(item.get("call_id", "")), _is_error(item.get("output"))
    for part in _objects(item.get("content")):
        if part.get("type") == "tool_result":
            yield str(part.get("tool_use_id", "")), bool(part.get("is_error")) or _is_error(part.get("content"))


def _is_error(content: Any) -> bool:
    """Whether a result says of itself that it failed, where its dialect has no field for that."""
    texts = [content, *(part.get("text") for part in _objects(content))]
    return any(isinstance(text, str) and text[:6].lower() == "error:" for text in texts)


def _fields(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    entries = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", each) for each in entries if isinstance(each, dict)]
