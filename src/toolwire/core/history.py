"""Pair closure: every call in a history has one result, and every result its call.

Backends refuse a conversation in which that does not hold, and clients produce such conversations: a turn was stopped,
a message was trimmed away. `repair` mends it and says so; `strict` refuses, naming the call.
"""

from collections.abc import Iterable
from typing import Literal, TypeAlias

from toolwire.core.errors import BadRequest
from toolwire.core.events import Note
from toolwire.core.request import CallEntry, Entry, ResultEntry, TextPart

HistoryRule: TypeAlias = Literal["repair", "strict"]

NO_RESULT = "Error: the call was not answered."
"""What a model reads where a result is missing."""


def closed(entries: Iterable[Entry], rule: HistoryRule) -> tuple[tuple[Entry, ...], list[Note]]:
    """The history with every pair closed, and notes of what that took."""
    history = tuple(entries)
    results = [entry.call_id for entry in history if isinstance(entry, ResultEntry)]
    answered = set(results)
    called = {entry.id for entry in history if isinstance(entry, CallEntry)}
    if answered == called and len(results) == len(answered):
        return history, []
    seen: set[str] = set()
    out: list[Entry] = []
    missing: list[CallEntry] = []  # calls of the open batch that no result answers
    notes: list[Note] = []
    for entry in history:
        if isinstance(entry, ResultEntry) and entry.call_id not in called:
            _refuse(rule, f"A result answers the call {entry.call_id!r}, which is not in the history.")
            notes.append(Note("result_dropped", entry.call_id))
            continue
        if isinstance(entry, ResultEntry):
            if entry.call_id in seen:
                _refuse(rule, f"The call {entry.call_id!r} has more than one result.")
                notes.append(Note("result_dropped", entry.call_id))
                continue
            seen.add(entry.call_id)
        if missing and not isinstance(entry, CallEntry | ResultEntry):
            out += map(_placeholder, missing)
            missing = []
        if isinstance(entry, CallEntry) and entry.id not in answered:
            _refuse(rule, f"The call {entry.id!r} has no result.")
            notes.append(Note("result_missing", entry.id))
            missing.append(entry)
        out.append(entry)
    return (*out, *map(_placeholder, missing)), notes


def _placeholder(call: CallEntry) -> ResultEntry:
    return ResultEntry(call.id, (TextPart(NO_RESULT),), call.kind)


def _refuse(rule: HistoryRule, message: str) -> None:
    if rule == "strict":
        raise BadRequest(message, "messages")
