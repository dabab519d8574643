"""Excerpts of a turn: the user's message, the model's answer and calls, the results of earlier calls.

A conversation shows many turns, and every request repeats the history. So texts are cut, with their full sizes beside
them, and of results that a request only repeats little more than the ids is kept.
"""

import zlib
from collections.abc import Sequence

import msgspec

from toolwire.core.request import (
    CallEntry,
    Entry,
    Message,
    OtherEntry,
    Part,
    ReasoningEntry,
    RefusalPart,
    ResultEntry,
    TextPart,
)
from toolwire.gateway.console.rows import MAX_NAME_LENGTH, TurnRow
from toolwire.gateway.console.stream_view import StreamView

MAX_EXCERPT_LENGTH = 2000
"""Maximum characters of a message or a result."""
MAX_ARGUMENTS_LENGTH = 500
MAX_ENTRIES = 200
"""Maximum number of calls of one answer, and of results of one request."""
REPEATED_WITH_TEXT = 8
"""Repeated results that keep their texts: where a client writes each result behind its call, only the last of several
new ones follows everything that the model wrote."""
NO_TEXT = "(no text)"


class TextExcerpt(msgspec.Struct, array_like=True, frozen=True):
    """The beginning of a text, and the number of characters of the whole."""

    text: str = ""
    size: int = 0


class CallExcerpt(msgspec.Struct, array_like=True, frozen=True):
    """A call as the client got it."""

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
    """The user's last message; `NO_TEXT` if it has none."""
    is_new: bool
    """Whether the model has not answered that message before this turn."""
    answer: TextExcerpt
    reasoning: int
    """Characters."""
    calls: tuple[CallExcerpt, ...]
    call_count: int
    results: tuple[ResultExcerpt, ...]
    """The last results of the request, in its order. Those that it repeats have no text."""
    new_results: int
    """The number of results after the last entry of the model."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Excerpts).decode


def pack_excerpts(excerpts: Excerpts) -> bytes:
    """In few bytes: those of all turns are held and sent to other workers, and most of them are not shown."""
    return zlib.compress(_encode(excerpts), 1)


def unpack_excerpts(data: bytes) -> Excerpts:
    return _decode(zlib.decompress(data))


def take_excerpts(entries: Sequence[Entry], answer: StreamView, row: TurnRow) -> Excerpts:
    """The excerpts of a turn, from the history that the client sent and the answer that it got.

    An answer is empty if a secret was spread over its frames; then the row names its calls.
    """
    results: list[ResultEntry] = []
    asked, is_new, new = None, False, 0
    for entry in entries:
        meant = entry.means if isinstance(entry, OtherEntry) else entry
        if isinstance(meant, ResultEntry):
            results.append(meant)
            new += 1
        elif isinstance(entry, Message) and entry.role == "user":
            asked, is_new = entry, True
        elif isinstance(entry, CallEntry | ReasoningEntry | OtherEntry) or (
            isinstance(entry, Message) and entry.role == "assistant"
        ):  # the model wrote it, or its server made it
            is_new, new = False, 0
    kept = results[-MAX_ENTRIES:]
    first_text = len(kept) - min(len(kept), new + REPEATED_WITH_TEXT)
    calls = [(call.id, call.name, call.arguments) for call in answer.calls]
    if not calls:
        calls = [(id, name, "") for id, name in zip(row.call_ids, row.calls, strict=False)]
    return Excerpts(
        _cut(text_of(asked.parts) or NO_TEXT) if asked is not None else TextExcerpt(),
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


def _cut(text: str, length: int = MAX_EXCERPT_LENGTH) -> TextExcerpt:
    return TextExcerpt(text[:length], len(text))


def text_of(parts: Sequence[Part]) -> str:
    """All text of a message or a result."""
    return "".join(part.text for part in parts if isinstance(part, TextPart | RefusalPart))
