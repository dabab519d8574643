"""The prompt of a turn in segments, in the order of a prompt cache: tools, system text, history and results.

A prompt cache holds as far as two prompts begin with the same bytes. Servers put tools first, then the system text,
then the messages, whatever the order of the fields. So a prompt is a list of segments with their sizes and digests, and
the first difference between two of them is where the cache broke. Segments are written from decoded requests: without
cache markers, which clients move on, and without the ids and states that the gateway adds to what it stores. Positions
are counted in these bytes, not in those that were sent.

The page asks for all prompts every few seconds. So each is made once and kept beside its turn, and lists that grow with
the history are packed.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.core.request import (
    Entry,
    Message,
    OtherEntry,
    OtherPart,
    Part,
    ReasoningEntry,
    Request,
    ResultEntry,
    TextPart,
    ToolPart,
    ToolsEntry,
)
from toolwire.gateway.console.excerpts import NO_TEXT, pack_excerpts, take_excerpts
from toolwire.gateway.console.rows import TurnRow
from toolwire.gateway.console.stored_trace import StoredTrace, unpack
from toolwire.protocols import dialects

Section: TypeAlias = Literal["tools", "system", "history", "results"]
MAX_REFERENCE_LENGTH = 512
"""Maximum characters of a name by which turns are joined."""
MAX_TITLE_LENGTH = 200
SEGMENT = struct.Struct("<I8s")
"""The size of a segment, and its digest."""
PREFIX_SIZE = 12
"""Bytes of the digest of the first entries."""
UNCOMPARED = frozenset(("raw", "message", "cache", "origin", "from_this_backend"))
"""Fields of an entry or a tool that no model sees."""


class TurnPrompt(msgspec.Struct, frozen=True):
    """The prompt of a turn, and what the turn belongs to."""

    id: str
    response: str
    previous: str
    conversation: str
    session: str
    cache_key: str
    is_partial: bool
    """Whether a store has a part of the history, so that nothing is known about the cache."""
    context: dict[Section, int]
    """Bytes by section."""
    segments: bytes
    """A `SEGMENT` for each tool, system text, message, call and result."""
    prefixes: bytes
    """Digests of the client's first entry, of the first two, and so on, by which later turns are joined to this one."""
    title: str
    """The beginning of the user's last message."""
    excerpts: bytes
    """As `pack_excerpts` writes them."""

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        names = (self.previous, self.conversation, self.session, self.cache_key, self.title)
        return 1500 + sum(map(str.__sizeof__, names)) + len(self.segments) + len(self.prefixes) + len(self.excerpts)


def read_segment(packed: bytes, dialect: str, index: int) -> tuple[Section, str, str] | None:
    """The section, the name and the text of a segment; None if there is no such segment."""
    trace = unpack(packed)
    request = _find_sent_request(trace) or _decode(dialect, trace.request)
    found = list(_list_segments(request)) if request is not None else []
    if index >= len(found):
        return None
    section, name, data = found[index]
    return section, name, data.decode(errors="replace")


def make_prompt(packed: bytes, row: TurnRow) -> TurnPrompt:
    """Split the prompt of a turn: what a backend was sent, or else what the client sent."""
    trace = unpack(packed)
    own, sent = _decode(row.dialect, trace.request), _find_sent_request(trace)
    asked, given = own or sent or _NOTHING, sent or own or _NOTHING
    context: dict[Section, int] = {"system": 0, "tools": 0, "history": 0, "results": 0}
    segments: list[bytes] = []
    for section, _, data in _list_segments(given):
        context[section] += len(data)
        segments.append(SEGMENT.pack(len(data), hashlib.blake2b(data, digest_size=8).digest()))
    excerpts = take_excerpts(asked.entries, trace.read_answer(row.dialect), row)
    return TurnPrompt(
        row.id,
        f"resp_{row.id}",
        _read_reference(asked, "previous_response_id"),
        _read_reference(asked, "conversation"),
        row.session or _find_session(asked.caller.user or ""),
        (asked.caller.prompt_cache_key or "")[:MAX_REFERENCE_LENGTH],
        _is_partial(given),
        context,
        b"".join(segments),
        b"" if _is_partial(asked) else _digest_prefixes(asked.entries),
        excerpts.asked.text[:MAX_TITLE_LENGTH] or NO_TEXT,
        pack_excerpts(excerpts),
    )


_NOTHING = Request("", ())


def _decode(dialect: str, body: bytes) -> Request | None:
    """The request in a body; None if it is not one, or refers to items that only the store has."""
    side = dialects().get(dialect)
    if side is None:
        return None
    try:
        return side.module.decode_request(body)
    except (BadRequest, RecursionError):
        return None


def _find_sent_request(trace: StoredTrace) -> Request | None:
    """The last request that was sent to a backend of one of the dialects."""
    for attempt in reversed(trace.attempts):
        if attempt.sent and (request := _decode(attempt.kind, attempt.sent[0].body)) is not None:
            return request
    return None


def _read_reference(request: Request, field: str) -> str:
    """The name or the id of the object in a field of the body."""
    value: Any = msgspec.json.decode(request.fields.get(field, b"null"))
    name = cast("Mapping[str, object]", value).get("id") if isinstance(value, dict) else value
    return str(name or "")[:MAX_REFERENCE_LENGTH]


def _is_partial(request: Request) -> bool:
    return request is _NOTHING or any(
        _read_reference(request, name) for name in ("previous_response_id", "conversation")
    )


def _find_session(user: str) -> str:
    """Claude Code writes its session behind the user: `user_HASH_account_UUID_session_UUID`, or as JSON."""
    if user.startswith("{"):
        try:
            return str(msgspec.json.decode(user).get("session_id", ""))
        except (msgspec.DecodeError, AttributeError, RecursionError):
            return ""
    return user.rpartition("_session_")[2] if "_session_" in user else ""


def _digest_prefixes(entries: Sequence[Entry]) -> bytes:
    """System text is left out: a conversation stays the same when it changes, which is what breaks its cache."""
    chain = hashlib.blake2b(digest_size=PREFIX_SIZE)
    out: list[bytes] = []
    for section, _, data in map(_read_entry, entries):
        if section != "system":
            chain.update(hashlib.blake2b(data, digest_size=PREFIX_SIZE).digest())
            out.append(chain.digest())
    return b"".join(out)


def _list_segments(request: Request) -> Iterator[tuple[Section, str, bytes]]:
    """The segments of a request: section, name and bytes of each."""
    later = _find_tools_in_history(request)
    for tool in request.tools:
        if tool.deferred or tool.name not in later:
            yield "tools", tool.name, _encode_fields(tool)
    for hosted in request.hosted_tools:
        yield "tools", hosted.type, bytes(hosted.raw)
    if request.instructions:
        yield "system", "instructions", request.instructions.encode(errors="replace")
    for index, entry in enumerate(request.entries):
        section, name, data = _read_entry(entry)
        yield section, f"{name} {index + 1}", data


class _NamedTool(msgspec.Struct):
    name: str = ""


def _find_tools_in_history(request: Request) -> set[str]:
    """Tools that the history declares or has found. They are in the prompt there, and do not change its beginning."""
    names: set[str] = set()
    for entry in request.entries:
        meant = entry.means if isinstance(entry, OtherEntry) else entry
        if isinstance(meant, ResultEntry):
            names |= {part.name for part in meant.parts if isinstance(part, ToolPart)}
        elif isinstance(meant, ToolsEntry):
            names |= {tool.name for tool in msgspec.json.decode(meant.tools, type=list[_NamedTool])}
    return names


def _read_entry(entry: Entry) -> tuple[Section, str, bytes]:
    """The section, the kind and the bytes of an entry."""
    match entry:
        case Message():
            section = "system" if entry.role in ("system", "developer") else "history"
            return section, entry.role, _encode_with_content(entry, {"role": entry.role})
        case ResultEntry():
            return "results", "result", _encode_with_content(entry, {"result": entry.call_id})
        case ToolsEntry():
            return "tools", "tools", bytes(entry.raw)
        case OtherEntry():
            section = "results" if isinstance(entry.means, ResultEntry) else "history"
            return section, entry.type, bytes(entry.raw)
        case ReasoningEntry():
            return "history", "reasoning", _encode_fields(msgspec.structs.replace(entry, id=""))
        case _:
            return "history", "call", _encode_fields(entry)


def _encode_with_content(entry: Message | ResultEntry, fields: Mapping[str, str]) -> bytes:
    """An entry with its parts; one text has the same form whether the client wrote it as a part or alone."""
    if entry.raw is not None and any(isinstance(part, OtherPart) for part in entry.parts):
        return bytes(entry.raw)
    parts: list[Part | dict[str, str]] = [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else part for part in entry.parts
    ]
    only = entry.parts[0] if len(parts) == 1 else None
    return msgspec.json.encode({**fields, "content": only.text if isinstance(only, TextPart) else parts})


def _encode_fields(value: msgspec.Struct) -> bytes:
    """The fields of a tool, a call or reasoning that have a value."""
    fields = ((name, getattr(value, name)) for name in value.__struct_fields__ if name not in UNCOMPARED)
    return msgspec.json.encode({name: each for name, each in fields if each})
