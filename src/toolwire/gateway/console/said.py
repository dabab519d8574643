"""The conversation of a turn from the last user message on, which the page shows above the bytes.

A request repeats the whole history. Messages before the last user message are only counted: other turns show them.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal, TypeAlias

import msgspec

from toolwire.core.own_words import join_own_words
from toolwire.core.request import (
    CallEntry,
    Entry,
    Message,
    OtherEntry,
    ReasoningEntry,
    Request,
    ResultEntry,
    ToolsEntry,
)
from toolwire.gateway.console.prompts import text_of

MAX_ENTRIES = 200
"""Maximum number of entries that are shown: the last ones."""
MAX_TEXT_LENGTH, MAX_TEXTS_LENGTH = 20_000, 1_000_000
"""Maximum characters of one text, and of all texts together."""

Speaker: TypeAlias = Literal["system", "developer", "user", "assistant", "reasoning", "call", "result", "other"]


class SaidEntry(msgspec.Struct, omit_defaults=True):
    """One entry of the history. A text that is cut has fewer characters than its size."""

    by: Speaker
    text: str
    size: int
    id: str = ""
    """The call, of calls and results."""
    name: str = ""
    failed: bool = False
    added: str = ""
    """The whole text of a user's message, if the client has added to the user's words."""
    is_new: bool = False
    """Whether it stands after the last entry of the model."""


class Said(msgspec.Struct):
    """What was said in a request."""

    entries: list[SaidEntry] = []
    before: int = 0
    """The number of entries that are not shown."""


def view_request(request: Request | None) -> Said:
    """What was said in a request since the user's last words, and these."""
    entries = request.entries if request is not None else ()
    asked = next((at for at, each in _list_backwards(entries) if _is_asked(each)), 0)
    last = next((at for at, each in _list_backwards(entries) if _is_by_model(each)), -1)
    begin = max(asked, len(entries) - MAX_ENTRIES)
    found = [(at, each) for at, each in _view_backwards(entries) if at >= begin]
    for at, each in found:
        each.is_new = at > last
    return Said([each for _, each in reversed(found)], begin)


def view_results(request: Request | None) -> dict[str, SaidEntry]:
    """The last results in a request, by call."""
    results = [each for each in request.entries if isinstance(each, ResultEntry)] if request is not None else []
    return {each.id: each for _, each in _view_backwards(results)}


def _view_backwards(entries: Sequence[Entry]) -> Iterator[tuple[int, SaidEntry]]:
    """The last entries with their indexes, the last one first; of texts as much as fits."""
    names = {entry.id: entry.name for entry in entries if isinstance(entry, CallEntry)}
    left = MAX_TEXTS_LENGTH
    for at, entry in islice(_list_backwards(entries), MAX_ENTRIES):
        found = _view(entry, names)
        if found is not None:
            found.text = found.text[: min(MAX_TEXT_LENGTH, left)]
            found.added = found.added[: min(MAX_TEXT_LENGTH, left - len(found.text))]
            left -= len(found.text) + len(found.added)
            yield at, found


def _list_backwards(entries: Sequence[Entry]) -> Iterator[tuple[int, Entry]]:
    return ((at, entries[at]) for at in range(len(entries) - 1, -1, -1))


def _is_asked(entry: Entry) -> bool:
    return isinstance(entry, Message) and entry.role == "user" and bool(join_own_words(entry.parts))


def _is_by_model(entry: Entry) -> bool:
    meant = entry.means if isinstance(entry, OtherEntry) else entry
    is_answer = isinstance(meant, Message) and meant.role == "assistant"
    return is_answer or isinstance(meant, CallEntry | ReasoningEntry)


def _view(entry: Entry, names: dict[str, str]) -> SaidEntry | None:
    """An entry as it is shown, with its whole text; None if it says nothing."""
    match (entry.means or entry) if isinstance(entry, OtherEntry) else entry:
        case Message(role="user", parts=parts):
            text = text_of(parts)
            words = join_own_words(parts)
            others = [type(part).__name__.removesuffix("Part").lower() for part in parts if not hasattr(part, "text")]
            shown = "\n".join(filter(None, (words, *(f"({each})" for each in others))))
            return SaidEntry("user", shown, len(shown), added=text if len(words) < len(text.strip()) else "")
        case Message(role=role, parts=parts):
            text = text_of(parts)
            return SaidEntry(role, text, len(text)) if text else None
        case ResultEntry() as result:
            text = text_of(result.parts)
            name = names.get(result.call_id, "")
            return SaidEntry("result", text, len(text), result.call_id, name, result.failed)
        case CallEntry() as call:
            return SaidEntry("call", call.arguments, len(call.arguments), call.id, call.name)
        case ReasoningEntry() as reasoning:
            return SaidEntry("reasoning", reasoning.text, len(reasoning.text)) if reasoning.text else None
        case ToolsEntry():
            return None
        case other:
            text = bytes(other.raw).decode(errors="replace")
            return SaidEntry("other", text, len(text), name=other.type)
