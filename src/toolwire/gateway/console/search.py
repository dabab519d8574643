"""Search in the texts of a turn: what was asked, what was answered, calls, results and errors.

Only content without secrets is searched. Texts are decoded first: in the bytes of a stream a word may be spread over
several frames, and JSON may escape it.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from toolwire.core.request import CallEntry, Message, OtherEntry, ReasoningEntry, ResultEntry, ToolsEntry
from toolwire.gateway.console.content import TurnContent, read_stream, unpack
from toolwire.gateway.console.prompts import decode_request, text_of
from toolwire.gateway.console.rows import TurnRow
from toolwire.note_texts import meaning_of

MAX_FOUND = 200
"""Maximum number of turns in one answer."""
SEARCH_SECONDS = 3.0
"""Seconds after which a search ends, and says where it goes on."""
MAX_WORDS_LENGTH = 200


class SearchQuery(msgspec.Struct, frozen=True):
    """What a viewer looks for: words, in turns that began before this time and changed after this number."""

    q: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_WORDS_LENGTH)]
    before: Annotated[float, msgspec.Meta(gt=0)] = float(2**53)
    since: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0


class Findings(msgspec.Struct):
    """The turns that a search found, each with the time it began, the latest first."""

    found: list[tuple[float, str]] = []
    reached: float = 0.0
    """When the last turn that was searched began; zero if none is left."""


def merge_findings(searches: Sequence[Findings]) -> Findings:
    """What was found up to the time that each search has reached."""
    reached = max((each.reached for each in searches), default=0.0)
    found = sorted({pair for each in searches for pair in each.found if pair[0] >= reached}, reverse=True)
    if len(found) > MAX_FOUND:
        return Findings(found[:MAX_FOUND], found[MAX_FOUND - 1][0])
    return Findings(found, reached)


def has_words(packed: bytes, row: TurnRow, words: str) -> bool:
    """Whether a text of the turn has these words, in upper or lower case."""
    wanted = words.casefold()
    return any(wanted in text.casefold() for text in _list_texts(packed, row))


def _list_texts(packed: bytes, row: TurnRow) -> Iterator[str]:
    """All texts of a turn, those that are read fast first."""
    yield row.error
    if not packed:
        return
    content = unpack(packed)
    yield from _list_asked(content, row)
    for code, subject in content.notes:
        yield f"{code} {subject} {meaning_of(code)}"
    replies = [(row.dialect, row.answer_type, content.answer)]
    replies += [(each.kind, each.content_type, each.reply) for each in content.attempts]
    for kind, content_type, stream in replies:
        view = read_stream(kind, content_type, stream.parts())
        yield from (view.text, view.reasoning, view.failure)
        for call in view.calls:
            yield from (f"{call.name} {call.id}", call.arguments)
    if row.failed:
        yield from (stream.data.decode(errors="replace") for _, _, stream in replies)


def _list_asked(content: TurnContent, row: TurnRow) -> Iterator[str]:
    """The texts of the client's request, without declared tools; all of the body if it cannot be decoded."""
    request = decode_request(row.dialect, content.request)
    if request is None:
        yield content.request.decode(errors="replace")
        return
    yield request.instructions or ""
    for entry in request.entries:
        meant = (entry.means if isinstance(entry, OtherEntry) else None) or entry
        match meant:
            case Message() | ResultEntry():
                yield text_of(meant.parts)
            case CallEntry():
                yield from (f"{meant.name} {meant.id}", meant.arguments)
            case ReasoningEntry():
                yield meant.text
            case ToolsEntry():
                pass
            case _:
                yield bytes(meant.raw).decode(errors="replace")
