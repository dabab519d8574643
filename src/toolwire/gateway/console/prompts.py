"""What the model is given in a turn, taken apart: tools, system text, history, results, in the order of a prompt cache.

A cache of prompts holds as far as two prompts begin with the same bytes. Servers put tools first, then the system
text, then the messages, whatever the order of the fields. So a prompt is a list of segments with their sizes and
digests, and where two of them differ first is where the cache broke.

All prompts are looked at whenever the conversations are, every few seconds. So each is taken apart once, and lists that
grow with the history are packed into bytes.
"""

import hashlib
import re
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from threading import Lock
from time import monotonic
from typing import Any, Literal, TypeAlias, cast

import msgspec

from toolwire.gateway.console.ring import RecordedTurn
from toolwire.gateway.console.said import NO_TEXT, is_result, packed, said_in
from toolwire.gateway.console.stored_trace import StoredTrace, unpack

Part: TypeAlias = Literal["tools", "system", "history", "results"]
MOST = 32 * 1024 * 1024
"""Bytes of all prompts that are remembered."""
IN_USE = 60.0
"""Seconds for which a prompt stays after it was asked for."""
LONGEST_NAME = 512
"""Characters of a name by which turns are joined."""
TITLE = 200
"""Characters of a message that stands for its conversation."""
SEGMENT = struct.Struct("<I8s")
"""A tool, system text or message: its size and its digest."""
TEXT_PART = {"type", "text"}
"""Fields of a part that is only text. Where it is the only one, a client or the gateway may write the text alone."""
PREFIX = 12
"""Bytes of the digest of the first messages."""


class Prompt(msgspec.Struct, frozen=True):
    """What a turn was given, and what it belongs to."""

    id: str
    response: str
    previous: str
    conversation: str
    session: str
    cache_key: str
    is_partial: bool
    """Whether a store has the history, of which the request has only the end. No statement about the cache holds."""
    context: dict[Part, int]
    """Bytes by what they are."""
    segments: bytes
    """`SEGMENT` of each."""
    prefixes: bytes
    """A digest of the client's first message, of the first two, and so on, by which a later turn knows this one."""
    title: str
    """The beginning of the user's last message."""
    said: bytes
    """See `said.py`."""


class Prompts:
    """The prompts of kept turns, each taken apart once."""

    def __init__(self) -> None:
        self._made: OrderedDict[str, tuple[float, Prompt]] = OrderedDict()  # and when it was last asked for
        self._size = 0
        self._lock = Lock()

    def of(self, kept: RecordedTurn) -> Prompt:
        """The prompt of a turn. Several threads may ask."""
        id, now = kept.row.id, monotonic()
        with self._lock:
            _, made = self._made.pop(id, (now, None))
            if made is not None:
                self._made[id] = now, made
                return made
        made = _prompt(kept)
        with self._lock:
            self._keep(id, made, now)
        return made

    def _keep(self, id: str, prompt: Prompt, now: float) -> None:
        """Remember a prompt, if there is room. All are asked for in turn, so one that was asked for lately will be
        again, and to forget it for another would gain nothing."""
        size = _size(prompt)
        while self._made and self._size + size > MOST:
            oldest = next(iter(self._made))
            used, other = self._made[oldest]
            if now - used < IN_USE:
                return
            del self._made[oldest]
            self._size -= _size(other)
        if id not in self._made and size <= MOST:
            self._made[id] = now, prompt
            self._size += size

    def segment(self, kept: RecordedTurn, index: int) -> tuple[Part, str, str] | None:
        """What a segment is, its name, and its bytes as text."""
        found = list(_segments(*_given(unpack(kept.packed), kept)))
        if index >= len(found):
            return None
        part, label, data = found[index]
        return part, label, data.decode(errors="replace")


def _size(prompt: Prompt) -> int:
    names = (prompt.previous, prompt.conversation, prompt.session, prompt.cache_key, prompt.title)
    return 1500 + sum(map(str.__sizeof__, names)) + len(prompt.segments) + len(prompt.prefixes) + len(prompt.said)


def _given(turn: StoredTrace, kept: RecordedTurn) -> tuple[str, dict[str, msgspec.Raw]]:
    """The body that the backend was sent, or else the client's, and its dialect."""
    for attempt in reversed(turn.attempts):
        if attempt.kind in ("chat", "responses", "messages") and attempt.sent:
            return attempt.kind, _fields(attempt.sent[0].body)
    return kept.row.dialect, _fields(turn.request)


def _prompt(kept: RecordedTurn) -> Prompt:
    turn, row = unpack(kept.packed), kept.row
    own = _fields(turn.request)
    dialect, given = _given(turn, kept)
    context: dict[Part, int] = {"system": 0, "tools": 0, "history": 0, "results": 0}
    segments: list[bytes] = []
    for part, _, data in _segments(dialect, given):
        context[part] += len(data)
        segments.append(SEGMENT.pack(len(data), hashlib.blake2b(data, digest_size=8).digest()))
    messages = list(_messages(row.dialect, own))
    said = said_in(turn, row, messages)
    return Prompt(
        row.id,
        f"resp_{row.id}",
        _name(_value(own, "previous_response_id")),
        _name(_value(own, "conversation")),
        row.session or _session_of(_value(own, "metadata")),
        _name(_value(own, "prompt_cache_key")),
        _is_partial(dialect, given),
        context,
        b"".join(segments),
        b"" if _is_partial(row.dialect, own) else _prefixes(_bare(each) for each in messages if not _is_system(each)),
        said.asked.text[:TITLE] or NO_TEXT,
        packed(said),
    )


def _is_partial(dialect: str, fields: dict[str, msgspec.Raw]) -> bool:
    return dialect == "responses" and any(_value(fields, name) for name in ("previous_response_id", "conversation"))


def _name(value: Any) -> str:
    """A name that the client chose, or the id of an object."""
    name: Any = cast("dict[str, Any]", value).get("id", "") if isinstance(value, dict) else value
    return str(name or "")[:LONGEST_NAME]


def _prefixes(messages: Iterable[Any]) -> bytes:
    chain = hashlib.blake2b(digest_size=PREFIX)
    out: list[bytes] = []
    for message in messages:
        chain.update(hashlib.blake2b(msgspec.json.encode(message), digest_size=PREFIX).digest())
        out.append(chain.digest())
    return b"".join(out)


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


def _segments(dialect: str, fields: dict[str, msgspec.Raw]) -> Iterator[tuple[Part, str, bytes]]:
    """What a prompt is made of, without marks of the cache, which clients move on, and without ids and states, which
    the gateway adds to what it stores, and with one form for a content that is one text. Where a cache broke is counted
    in these bytes, not in those that were sent.
    """
    for tool in _raws(fields.get("tools")):
        yield "tools", _name_of(tool), _unmarked(tool)
    for name in ("system", "instructions"):
        if name in fields and bytes(fields[name]) not in (b"null", b'""'):
            yield "system", name, _unmarked(fields[name])
    given = fields.get("input" if dialect == "responses" else "messages")
    if given is not None and bytes(given)[:1] == b'"':
        yield "history", "user 1", b'{"role":"user","content":' + bytes(given) + b"}"
        return
    for index, message in enumerate(_raws(given)):
        read = _object(message)
        part, what = _part_of(read)
        yield part, f"{what} {index + 1}", _compared(message, _added(read))


_MARK = rb'"cache_control"\s*:\s*(?:\{[^{}]*\}|null)'
_MARKS = re.compile(rb",\s*" + _MARK + rb"|" + _MARK + rb"\s*,?")


def _unmarked(raw: msgspec.Raw) -> bytes:
    data = bytes(raw)
    return _MARKS.sub(b"", data) if b'"cache_control"' in data else data


def _compared(raw: msgspec.Raw, added: tuple[str, ...]) -> bytes:
    data = _unmarked(raw)
    fields = {name: value for name, value in _fields(data).items() if name not in added}
    parts = _raws(fields.get("content"))
    part = _fields(parts[0]) if len(parts) == 1 else {}
    if part.keys() == TEXT_PART:
        fields["content"] = part["text"]
    return msgspec.json.encode(fields) if fields else data


def _added(message: dict[str, Any]) -> tuple[str, ...]:
    """Fields that the gateway adds to a message when it stores it, and that no model sees. A reference is nothing but
    its id."""
    kind = message.get("type")
    return () if kind == "item_reference" else ("id", "status", "type") if kind == "message" else ("id", "status")


def _part_of(message: dict[str, Any]) -> tuple[Part, str]:
    role = str(message.get("role", ""))
    if _is_system(message):
        return "system", role
    if is_result(message):
        return "results", "result"
    return "history", role or str(message.get("type", ""))


def _messages(dialect: str, fields: dict[str, msgspec.Raw]) -> Iterator[dict[str, Any]]:
    given = fields.get("input" if dialect == "responses" else "messages")
    if given is not None and bytes(given)[:1] == b'"':
        yield {"role": "user", "content": _decoded(given)}
        return
    yield from (_object(each) for each in _raws(given))


def _bare(message: dict[str, Any]) -> Any:
    """A message without what clients move or add from turn to turn: marks of the cache, ids, states."""
    gone = ("cache_control", *_added(message))
    dropped = {name: value for name, value in message.items() if name not in gone}
    content = dropped.get("content")
    if isinstance(content, list):
        given = cast("list[Any]", content)
        parts = [_bare(cast("dict[str, Any]", part)) if isinstance(part, dict) else part for part in given]
        is_text = len(parts) == 1 and isinstance(parts[0], dict) and parts[0].keys() == TEXT_PART
        dropped["content"] = parts[0]["text"] if is_text else parts
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
