"""What was said in a turn, in excerpts: the user's message, the model's answer and calls, the results of earlier calls.

A conversation shows many turns, and every request repeats what was said before it. So texts are cut, with their real
sizes beside them, and of results that a request only repeats little more than the ids is kept.
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec

from toolwire.gateway.console.rows import MAX_NAME_LENGTH, Row
from toolwire.gateway.console.stored_trace import StoredTrace

EXCERPT = 2000
"""Characters of a message or a result."""
ARGUMENTS = 500
"""Characters of a call's arguments."""
MOST = 200
"""Calls of one answer, and results of one request."""
REPEATED = 8
"""Results before the new ones whose texts are kept too: a client may write each result behind its call, and then only
the last one of several stands behind everything that the model said."""
NO_TEXT = "(no text)"


class Excerpt(msgspec.Struct, array_like=True, frozen=True):
    """The beginning of a text, and how many characters all of it has."""

    text: str = ""
    size: int = 0


class Call(msgspec.Struct, array_like=True, frozen=True):
    """A call as the client got it."""

    id: str
    name: str
    arguments: Excerpt


class Result(msgspec.Struct, array_like=True, frozen=True):
    """The result of a call, as a request brought it."""

    call: str
    content: Excerpt


class Said(msgspec.Struct, array_like=True, frozen=True):
    """What was said in one turn."""

    asked: Excerpt
    """The last message of the user; `NO_TEXT` if it has none."""
    is_new: bool
    """Whether that message came with this turn, so that the model has said nothing since."""
    answer: Excerpt
    reasoning: int
    """Characters."""
    calls: tuple[Call, ...]
    call_count: int
    results: tuple[Result, ...]
    """The last of all results in the request, in its order. Those that it repeats have no text."""
    new_results: int
    """How many results stand behind everything that the model said."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Said).decode


def packed(said: Said) -> bytes:
    """In few bytes: all kept turns are asked for again and again, and most of them are not shown."""
    return zlib.compress(_encode(said), 1)


def unpacked(data: bytes) -> Said:
    return _decode(zlib.decompress(data))


def said_in(turn: StoredTrace, row: Row, messages: Sequence[dict[str, Any]]) -> Said:
    """What was said, given the messages of the client's request."""
    answer = turn.read_answer(row.dialect)
    results = list(_results(messages))
    last = max((index for index, each in enumerate(messages) if _is_models(each)), default=-1)
    new = sum(1 for _ in _results(messages[last + 1 :]))
    asked = [index for index, each in enumerate(messages) if _is_asked(each)]
    kept = results[-MOST:]
    first_text = len(kept) - min(len(kept), new + REPEATED)
    return Said(
        _excerpt(text_of(messages[asked[-1]].get("content")) or NO_TEXT) if asked else Excerpt(),
        bool(asked) and asked[-1] > last,
        _excerpt(answer.text),
        len(answer.reasoning),
        tuple(
            Call(call.id[:MAX_NAME_LENGTH], call.name[:MAX_NAME_LENGTH], _excerpt(call.arguments, ARGUMENTS))
            for call in answer.calls[:MOST]
        )
        or _named(row),
        max(len(answer.calls), row.call_count),
        tuple(
            Result(id[:MAX_NAME_LENGTH], _excerpt(text, EXCERPT if index >= first_text else 0))
            for index, (id, text) in enumerate(kept)
        ),
        new,
    )


def _named(row: Row) -> tuple[Call, ...]:
    """The calls that the row names, for an answer that is not kept: a secret was spread over its frames."""
    return tuple(Call(id, name, Excerpt()) for id, name in zip(row.call_ids, row.calls, strict=False))


def _excerpt(text: str, most: int = EXCERPT) -> Excerpt:
    return Excerpt(text[:most], len(text))


def _is_models(message: dict[str, Any]) -> bool:
    """Whether the model said it: a message, or an item such as a call or reasoning."""
    role, kind = message.get("role"), str(message.get("type", ""))
    return role == "assistant" or (role is None and kind not in ("message", "") and not is_result(message))


def _is_asked(message: dict[str, Any]) -> bool:
    """Whether it is a message of the user that holds more than results."""
    if message.get("role") != "user":
        return False
    return bool(text_of(message.get("content"))) or not any(True for _ in tool_results(message))


def is_result(message: dict[str, Any]) -> bool:
    """Whether a message is a result, or holds some."""
    is_one = message.get("role") == "tool" or str(message.get("type", "")).endswith("_output")
    return is_one or any(True for _ in tool_results(message))


def tool_results(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The results in a message of the Messages API."""
    content = message.get("content")
    for part in cast("list[Any]", content) if isinstance(content, list) else ():
        if isinstance(part, dict) and cast("dict[str, Any]", part).get("type") == "tool_result":
            yield cast("dict[str, Any]", part)


def _results(messages: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """The ids of calls with the texts of their results."""
    for message in messages:
        if message.get("role") == "tool":
            yield str(message.get("tool_call_id", "")), text_of(message.get("content"))
        elif str(message.get("type", "")).endswith("_call_output"):
            yield str(message.get("call_id", "")), text_of(message.get("output"))
        for part in tool_results(message):
            yield str(part.get("tool_use_id", "")), text_of(part.get("content"))


def text_of(content: Any) -> str:
    """All text of a content, whatever its form."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [cast("dict[str, Any]", part) for part in cast("list[Any]", content) if isinstance(part, dict)]
    return "".join(str(part.get("text", "")) for part in parts)
