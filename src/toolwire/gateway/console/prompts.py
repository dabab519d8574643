"""What the model is given in a turn, taken apart: tools, system text, history, results, in the order of a prompt cache.

A cache of prompts holds as far as two prompts begin with the same bytes. Servers put tools first, then the system
text, then the messages, whatever the order of the fields. So a prompt is a list of segments with their sizes and
digests, and where two of them differ first is where the cache broke.
"""

import hashlib
import re
from collections.abc import Iterator
from threading import Lock
from typing import Any, Literal, TypeAlias, cast

import msgspec

from toolwire.core.cache import BoundedDict
from toolwire.gateway.console.keep import WholeTurn, unpack
from toolwire.gateway.console.ring import Kept

Part: TypeAlias = Literal["tools", "system", "history", "results"]
EXCERPT = 2000
"""Characters of a message that a conversation shows."""


class Segment(msgspec.Struct, array_like=True, frozen=True):
    """One tool, system text or message."""

    part: Part
    label: str
    size: int
    digest: str


class Result(msgspec.Struct, frozen=True):
    """The result of a call, as the next request brought it."""

    call: str
    text: str


class Prompt(msgspec.Struct, frozen=True):
    """What a turn was given, and what it belongs to."""

    id: str
    response: str
    previous: str
    conversation: str
    session: str
    cache_key: str
    segments: tuple[Segment, ...]
    messages: tuple[str, ...]
    """Digests of the client's messages, in order, by which a later turn knows this one."""
    results: tuple[Result, ...]
    asked: str
    """The last message of the user."""


class Prompts:
    """The prompts of kept turns, each taken apart once."""

    def __init__(self) -> None:
        self._made: BoundedDict[str, Prompt] = BoundedDict(_size)
        self._lock = Lock()

    def of(self, kept: Kept) -> Prompt:
        """The prompt of a turn. Several threads may ask."""
        with self._lock:
            made = self._made.find(kept.row.id)
        if made is None:
            made = _prompt(kept)
            with self._lock:
                self._made.keep(kept.row.id, made)
        return made

    def segment(self, kept: Kept, index: int) -> str:
        """The bytes of a segment, as text."""
        found = list(_segments(*_given(unpack(kept.packed), kept)))
        return found[index][2].decode(errors="replace") if index < len(found) else ""


def _size(id: str, prompt: Prompt) -> int:
    said = sum(len(result.text) for result in prompt.results) + len(prompt.asked)
    return 500 + said + 100 * (len(prompt.segments) + len(prompt.messages))


def _given(turn: WholeTurn, kept: Kept) -> tuple[str, dict[str, msgspec.Raw]]:
    """The body that the backend was sent, or else the client's, and its dialect."""
    for attempt in reversed(turn.attempts):
        if attempt.kind in ("chat", "responses", "messages") and attempt.sent:
            return attempt.kind, _fields(attempt.sent[0].body)
    return kept.row.dialect, _fields(turn.request)


def _prompt(kept: Kept) -> Prompt:
    turn, row = unpack(kept.packed), kept.row
    own = _fields(turn.request)
    given = _segments(*_given(turn, kept))
    segments = tuple(Segment(part, label, len(data), _digest(data)) for part, label, data in given)
    messages = list(_messages(row.dialect, own))
    asked = next((_said(each) for each in reversed(messages) if each.get("role") == "user"), "")
    session = row.session or _session_of(_value(own, "metadata"))
    return Prompt(
        row.id,
        f"resp_{row.id}",
        str(_value(own, "previous_response_id") or ""),
        _conversation(_value(own, "conversation")),
        session,
        str(_value(own, "prompt_cache_key") or ""),
        segments,
        tuple(_digest(msgspec.json.encode(_bare(each))) for each in messages if not _is_system(each)),
        tuple(_results(messages)),
        asked[:EXCERPT],
    )


def _is_system(message: dict[str, Any]) -> bool:
    """A conversation stays the same though its instructions change; that is what breaks its cache."""
    return message.get("role") in ("system", "developer")


def _session_of(metadata: Any) -> str:
    """Claude Code writes its session behind the user: `user_HASH_account_UUID_session_UUID`, or as JSON."""
    user = str(cast("dict[str, Any]", metadata).get("user_id", "")) if isinstance(metadata, dict) else ""
    if user.startswith("{"):
        try:
            return str(msgspec.json.decode(user).get("session_id", ""))
        except (msgspec.DecodeError, AttributeError, RecursionError):
            return ""
    return user.rpartition("_session_")[2] if "_session_" in user else ""


def _conversation(value: Any) -> str:
    return str(cast("dict[str, Any]", value).get("id", "")) if isinstance(value, dict) else str(value or "")


def _segments(dialect: str, fields: dict[str, msgspec.Raw]) -> Iterator[tuple[Part, str, bytes]]:
    """What a prompt is made of, without the marks that say how far it is to be cached: clients move these on."""
    for tool in _raws(fields.get("tools")):
        yield "tools", _name_of(tool), _unmarked(tool)
    for name in ("system", "instructions"):
        if name in fields and bytes(fields[name]) not in (b"null", b'""'):
            yield "system", name, _unmarked(fields[name])
    given = fields.get("input" if dialect == "responses" else "messages")
    if given is not None and bytes(given)[:1] == b'"':
        yield "history", "user", bytes(given)
        return
    for index, message in enumerate(_raws(given)):
        read = _object(message)
        part, what = _part_of(read)
        yield part, f"{what} {index + 1}", _unmarked(message)


_MARK = rb'"cache_control"\s*:\s*(?:\{[^{}]*\}|null)'
_MARKS = re.compile(rb",\s*" + _MARK + rb"|" + _MARK + rb"\s*,?")


def _unmarked(raw: msgspec.Raw) -> bytes:
    data = bytes(raw)
    return _MARKS.sub(b"", data) if b'"cache_control"' in data else data


def _part_of(message: dict[str, Any]) -> tuple[Part, str]:
    role, kind = str(message.get("role", "")), str(message.get("type", ""))
    if role in ("system", "developer"):
        return "system", role
    if role == "tool" or kind.endswith("_output") or any(True for _ in _tool_results(message)):
        return "results", "result"
    return "history", role or kind


def _tool_results(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    for part in cast("list[Any]", content) if isinstance(content, list) else ():
        if isinstance(part, dict) and cast("dict[str, Any]", part).get("type") == "tool_result":
            yield cast("dict[str, Any]", part)


def _messages(dialect: str, fields: dict[str, msgspec.Raw]) -> Iterator[dict[str, Any]]:
    given = fields.get("input" if dialect == "responses" else "messages")
    if given is not None and bytes(given)[:1] == b'"':
        yield {"role": "user", "content": _decoded(given)}
        return
    yield from (_object(each) for each in _raws(given))


def _results(messages: list[dict[str, Any]]) -> Iterator[Result]:
    for message in messages:
        if message.get("role") == "tool":
            yield Result(str(message.get("tool_call_id", "")), _said(message)[:EXCERPT])
        elif str(message.get("type", "")).endswith("_call_output"):
            yield Result(str(message.get("call_id", "")), _flat(message.get("output"))[:EXCERPT])
        for part in _tool_results(message):
            yield Result(str(part.get("tool_use_id", "")), _flat(part.get("content"))[:EXCERPT])


def _said(message: dict[str, Any]) -> str:
    return _flat(message.get("content"))


def _flat(content: Any) -> str:
    """All text of a content, whatever its form."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [cast("dict[str, Any]", part) for part in cast("list[Any]", content) if isinstance(part, dict)]
    return "".join(str(part.get("text", "")) for part in parts)


def _bare(message: dict[str, Any]) -> Any:
    """A message without what clients move or add from turn to turn: marks of the cache, ids, states."""
    dropped = {name: value for name, value in message.items() if name not in ("cache_control", "id", "status")}
    content = dropped.get("content")
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        dropped["content"] = [_bare(cast("dict[str, Any]", part)) if isinstance(part, dict) else part for part in parts]
    return dropped


def _fields(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return {}


def _decoded(value: msgspec.Raw) -> Any:
    """A value; None if it cannot be read: a number is out of range, or there are too many levels."""
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return None


def _value(fields: dict[str, msgspec.Raw], name: str) -> Any:
    return _decoded(fields[name]) if name in fields else None


def _raws(value: msgspec.Raw | None) -> list[msgspec.Raw]:
    try:
        return msgspec.json.decode(value, type=list[msgspec.Raw]) if value is not None else []
    except (msgspec.DecodeError, RecursionError):
        return []


def _object(value: msgspec.Raw) -> dict[str, Any]:
    read: Any = _decoded(value)
    return cast("dict[str, Any]", read) if isinstance(read, dict) else {}


def _name_of(tool: msgspec.Raw) -> str:
    read = _object(tool)
    inner: Any = read.get("function")
    named = cast("dict[str, Any]", inner) if isinstance(inner, dict) else read
    return str(named.get("name") or read.get("type") or "tool")


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
