"""The prompt of a turn in segments, in the order of a prompt cache, and excerpts of what was said in the turn.

A prompt cache covers the common prefix of two prompts. Servers put tools first, then the system text, then the
messages, whatever the order of the fields. So a prompt is a list of segments with their sizes and digests, and the
first difference between two of them is where the cache broke. Segments are encoded from decoded requests: without cache
markers, which clients move, and without the ids and states that the gateway adds to stored items. Positions are counted
in these bytes, not in those that were sent.

A conversation shows many turns, and every request repeats the history. So texts are cut and their full sizes noted, and
most repeated results are kept without their texts. The page asks for all prompts every few seconds. So each is made
once and kept beside its turn, and lists that grow with the history are packed.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.core.own_words import join_own_words
from toolwire.core.request import (
    CallEntry,
    Entry,
    Message,
    OtherEntry,
    OtherPart,
    Part,
    ReasoningEntry,
    RefusalPart,
    Request,
    ResultEntry,
    TextPart,
    ToolPart,
    ToolsEntry,
)
from toolwire.gateway.console.content import StreamView, TurnContent, unpack
from toolwire.gateway.console.rows import MAX_NAME_LENGTH, TurnRow
from toolwire.gateway.console.side_requests import Side, classify
from toolwire.protocols import dialects

Section: TypeAlias = Literal["tools", "system", "history", "results"]
MAX_REFERENCE_LENGTH = 512
"""Maximum characters of a name by which turns are joined."""
MAX_TITLE_LENGTH = 200
MAX_EXCERPT_LENGTH = 2000
"""Maximum characters of a message or a result."""
MAX_ARGUMENTS_LENGTH = 500
MAX_ENTRIES = 200
"""Maximum number of calls of one answer, and of results of one request."""
REPEATED_WITH_TEXT = 8
"""Repeated results that keep their texts: if a client writes each result right after its call, all new results but the
last look repeated."""
NO_TEXT = "(no text)"
SEGMENT = struct.Struct("<I8s")
"""The size of a segment, and its digest."""
PREFIX_SIZE = 12
"""Bytes of each digest in `TurnPrompt.prefixes`."""
UNCOMPARED = frozenset(("raw", "message", "cache", "origin", "from_this_backend"))
"""Fields of an entry or a tool that no model sees."""
_NOTHING = Request("", ())


class TurnPrompt(msgspec.Struct, frozen=True):
    """The prompt of a turn, excerpts of the turn, and the names by which it is joined to others."""

    previous: str
    """The response that the turn continues."""
    names: dict[Literal["conversation", "session"], str]
    """The conversation and the session that the turn names."""
    cache_key: str
    is_partial: bool
    """Whether a part of the history is only in a store, so that nothing is known about the cache."""
    context: dict[Section, int]
    """Bytes by section."""
    segments: bytes
    """A `SEGMENT` for each tool, system text, message, call and result."""
    prefixes: bytes
    """Digests of the client's first entry, of the first two, and so on; they join later turns to this one."""
    title: str
    """The beginning of the first words that the user typed; `NO_TEXT` if there are none."""
    side: Side
    excerpts: bytes
    """`Excerpts`, packed: those of all turns are held and sent to other workers, and most are not shown."""

    @property
    def size(self) -> int:
        """Approximate bytes of memory."""
        names = (self.previous, *self.names.values(), self.cache_key, self.title)
        return 1500 + sum(map(str.__sizeof__, names)) + len(self.segments) + len(self.prefixes) + len(self.excerpts)


class TextExcerpt(msgspec.Struct, array_like=True, frozen=True):
    """The beginning of a text, and the number of characters of the whole."""

    text: str = ""
    size: int = 0


class CallExcerpt(msgspec.Struct, array_like=True, frozen=True):
    """A call as the client received it."""

    id: str
    name: str
    arguments: TextExcerpt


class ResultExcerpt(msgspec.Struct, array_like=True, frozen=True):
    """The result of a call, as a request carried it."""

    call: str
    content: TextExcerpt


class Excerpts(msgspec.Struct, array_like=True, frozen=True):
    """The excerpts of one turn."""

    asked: TextExcerpt
    """The last words that the user typed; `NO_TEXT` if there are none."""
    is_new: bool
    """Whether this turn is the model's first answer to them."""
    answer: TextExcerpt
    reasoning: int
    """Number of characters."""
    calls: tuple[CallExcerpt, ...]
    call_count: int
    results: tuple[ResultExcerpt, ...]
    """The last results of the request, in its order. Most that it repeats have no text."""
    new_results: int
    """The number of results after the last entry of the model."""


_decode_excerpts = msgspec.msgpack.Decoder(Excerpts).decode


def unpack_excerpts(data: bytes) -> Excerpts:
    return _decode_excerpts(zlib.decompress(data))


def make_prompt(packed: bytes, row: TurnRow) -> TurnPrompt:
    """Split the prompt of a turn: what a backend was sent, or else what the client sent."""
    content = unpack(packed)
    own, sent = decode_request(row.dialect, content.request), _find_sent_request(content)
    asked, given = own or sent or _NOTHING, sent or own or _NOTHING
    context: dict[Section, int] = {"system": 0, "tools": 0, "history": 0, "results": 0}
    segments: list[bytes] = []
    for section, _, data in _list_segments(given):
        context[section] += len(data)
        segments.append(SEGMENT.pack(len(data), hashlib.blake2b(data, digest_size=8).digest()))
    prefixes: list[bytes] = []
    if not _is_partial(asked):
        chain = hashlib.blake2b(digest_size=PREFIX_SIZE)
        for section, _, data in map(_read_entry, asked.entries):
            if section != "system":  # if that changes, the cache breaks, but the conversation is the same
                chain.update(hashlib.blake2b(data, digest_size=PREFIX_SIZE).digest())
                prefixes.append(chain.digest())
    names: dict[Literal["conversation", "session"], str] = {}
    if conversation := _read_reference(asked, "conversation"):
        names["conversation"] = conversation
    if session := row.session or _find_session(asked.caller.user or ""):
        names["session"] = session
    excerpts = _take_excerpts(asked.entries, content.read_answer(row), row)
    return TurnPrompt(
        _read_reference(asked, "previous_response_id"),
        names,
        (asked.caller.prompt_cache_key or "")[:MAX_REFERENCE_LENGTH],
        _is_partial(given),
        context,
        b"".join(segments),
        b"".join(prefixes),
        _find_title(given),
        "warm-up" if row.warm_up else classify(asked),
        zlib.compress(msgspec.msgpack.encode(excerpts), 1),
    )


def read_segment(packed: bytes, dialect: str, index: int) -> tuple[Section, str, str] | None:
    """The section, the name and the text of a segment; None if there is no such segment."""
    content = unpack(packed)
    request = _find_sent_request(content) or decode_request(dialect, content.request)
    found = list(_list_segments(request)) if request is not None else []
    if index >= len(found):
        return None
    section, name, data = found[index]
    return section, name, data.decode(errors="replace")


# Requests


def decode_request(dialect: str, body: bytes) -> Request | None:
    """The request in a body; None if it is not one, or refers to items that only the store has."""
    side = dialects().get(dialect)
    if side is None:
        return None
    try:
        return side.module.decode_request(body)
    except (BadRequest, RecursionError):
        return None


def _find_sent_request(content: TurnContent) -> Request | None:
    """The last request that was sent to a backend which speaks one of the dialects."""
    for attempt in reversed(content.attempts):
        if attempt.sent and (request := decode_request(attempt.kind, attempt.sent[0].body)) is not None:
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
    """Claude Code writes its session after the user: `user_HASH_account_UUID_session_UUID`, or as JSON."""
    if user.startswith("{"):
        try:
            return str(msgspec.json.decode(user).get("session_id", ""))
        except (msgspec.DecodeError, AttributeError, RecursionError):
            return ""
    return user.rpartition("_session_")[2] if "_session_" in user else ""


# Segments


class _NamedTool(msgspec.Struct):
    name: str = ""


def _list_segments(request: Request) -> Iterator[tuple[Section, str, bytes]]:
    """The segments of a request: section, name and bytes of each."""
    later: set[str] = set()  # declared or found in the history: part of the prompt there, not at its start
    for entry in request.entries:
        meant = entry.means if isinstance(entry, OtherEntry) else entry
        if isinstance(meant, ResultEntry):
            later |= {part.name for part in meant.parts if isinstance(part, ToolPart)}
        elif isinstance(meant, ToolsEntry):
            later |= {tool.name for tool in msgspec.json.decode(meant.tools, type=list[_NamedTool])}
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
    """An entry with its parts; a single text has one form, whether sent as a part or as a string."""
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


# Excerpts


def _find_title(request: Request) -> str:
    """The first words that the user typed, of those that the request has."""
    messages = (entry for entry in request.entries if isinstance(entry, Message) and entry.role == "user")
    words = (join_own_words(message.parts)[:MAX_TITLE_LENGTH] for message in messages)
    return next(filter(None, words), NO_TEXT)


def _take_excerpts(entries: Sequence[Entry], answer: StreamView, row: TurnRow) -> Excerpts:
    """The excerpts of a turn, from the history that the client sent and the answer that it received.

    If a secret was spread over the frames of the answer, the answer is empty; then the row names its calls.
    """
    results: list[ResultEntry] = []
    asked, is_new, new = "", False, 0
    is_last = True  # whether no entry of the model has been read yet
    for entry in reversed(entries):
        meant = entry.means if isinstance(entry, OtherEntry) else entry
        if isinstance(meant, ResultEntry):
            results.append(meant)
            new += is_last
        elif isinstance(entry, Message) and entry.role == "user":
            if not asked and (words := join_own_words(entry.parts) or (NO_TEXT if _has_other_parts(entry) else "")):
                asked, is_new = words, is_last
        elif isinstance(entry, CallEntry | ReasoningEntry | OtherEntry) or (
            isinstance(entry, Message) and entry.role == "assistant"
        ):  # the model wrote it, or its server made it
            is_last = False
    results.reverse()
    kept = results[-MAX_ENTRIES:]
    first_text = len(kept) - min(len(kept), new + REPEATED_WITH_TEXT)
    calls = [(call.id, call.name, call.arguments) for call in answer.calls]
    if not calls:
        calls = [(id, name, "") for id, name in zip(row.call_ids, row.calls, strict=False)]
    return Excerpts(
        _cut(asked or NO_TEXT),
        is_new,
        _cut(answer.text),
        len(answer.reasoning),
        tuple(
            CallExcerpt(id[:MAX_NAME_LENGTH], name[:MAX_NAME_LENGTH], _cut(arguments, MAX_ARGUMENTS_LENGTH))
            for id, name, arguments in calls[:MAX_ENTRIES]
        ),
        max(len(answer.calls), row.call_count),
        tuple(
            ResultExcerpt(
                each.call_id[:MAX_NAME_LENGTH],
                _cut(text_of(each.parts), MAX_EXCERPT_LENGTH if index >= first_text else 0),
            )
            for index, each in enumerate(kept)
        ),
        new,
    )


def _has_other_parts(message: Message) -> bool:
    """Whether a message has an image, a file or another part that is not text."""
    return not all(isinstance(part, TextPart) for part in message.parts)


def _cut(text: str, length: int = MAX_EXCERPT_LENGTH) -> TextExcerpt:
    return TextExcerpt(text[:length], len(text))


def text_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart | RefusalPart))
