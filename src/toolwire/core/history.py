"""Pair closure: every call in a history has one result, and every result its call.

Backends refuse a conversation in which that does not hold, and clients produce such conversations: a turn was stopped,
a message was trimmed away. `repair` mends it and says so; `strict` refuses, naming the call.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.core.events import Note
from toolwire.core.request import CallEntry, Entry, Message, ResultEntry, TextPart

HistoryRule: TypeAlias = Literal["repair", "strict"]

LOOK_AHEAD = 1000
"""How far behind its batch a result is looked for."""

NO_RESULT = "Error: the call was not answered."
"""What a model reads where a result is missing."""


def closed(entries: Iterable[Entry], rule: HistoryRule, *, moves: bool = True) -> tuple[tuple[Entry, ...], list[Note]]:
    """The history with every pair closed, and notes of what that took.

    Results belong to the batch of calls before them. One that comes later, after something else was said, is moved
    there, unless client and backend allow it to stand anywhere; an id may be used again once its call is answered.
    """
    history = tuple(entries)
    if not any(isinstance(entry, CallEntry | ResultEntry) for entry in history):
        return history, []
    notes: list[Note] = []
    history = tuple(_apart(_without_blanks(history), notes))
    out: list[Entry] = []
    waiting: dict[str, CallEntry] = {}
    moved: set[int] = set()
    for place, entry in enumerate(history):
        if isinstance(entry, CallEntry):
            waiting[entry.id] = entry
        elif isinstance(entry, ResultEntry):
            if place in moved:
                continue
            call = waiting.pop(entry.call_id, None)
            if call is not None and call.kind != entry.kind:
                # LangChain answers a custom call as if it were a function's; servers take each in its own form only.
                notes.append(Note("result_retyped", entry.call_id))
                entry = msgspec.structs.replace(entry, kind=call.kind, raw=None)  # noqa: PLW2901
            if call is None:
                _refuse(rule, f"A result answers the call {entry.call_id!r}, which does not wait for one.")
                notes.append(Note("result_dropped", entry.call_id))
                continue
        elif isinstance(entry, Message):
            reach = _end_of_turn(history, place) if moves else len(history)
            later = {id: call for id, call in waiting.items() if 0 < _found(call, history, place, moved) < reach}
            for call in waiting.values():
                if call.id not in later:
                    out += _late(call, history, place, moved, rule, notes)
            waiting = later
        out.append(entry)
    for call in waiting.values():
        out += _late(call, history, len(history), moved, rule, notes)
    return tuple(out), notes


def _without_blanks(history: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The history without messages of the model that say nothing and only part its calls."""
    blank = {
        place
        for place in range(1, len(history) - 1)
        if isinstance(history[place - 1], CallEntry)
        and isinstance(history[place + 1], CallEntry)
        and _says_nothing(history[place])
    }
    return tuple(entry for place, entry in enumerate(history) if place not in blank) if blank else history


def _says_nothing(entry: Entry) -> bool:
    if not isinstance(entry, Message) or entry.role != "assistant":
        return False
    return all(isinstance(part, TextPart) and not part.text.strip() for part in entry.parts)


def _apart(history: tuple[Entry, ...], notes: list[Note]) -> Iterator[Entry]:
    """The history with an id of its own for every call that waits. The same call twice is one; results go in order."""
    waiting: dict[str, list[CallEntry]] = {}
    for entry in history:
        if isinstance(entry, CallEntry):
            same = waiting.setdefault(entry.id, [])
            if any(_is_same(call, entry) for call in same):
                notes.append(Note("call_duplicate", entry.id))
                continue
            if same:
                renamed = msgspec.structs.replace(entry, id=f"{entry.id}_{len(same) + 1}", raw=None)
                notes.append(Note("id_reused", renamed.id))
                same.append(renamed)
                yield renamed
                continue
            same.append(entry)
        elif isinstance(entry, ResultEntry) and waiting.get(entry.call_id):
            answered = waiting[entry.call_id].pop(0)
            if answered.id != entry.call_id:
                yield msgspec.structs.replace(entry, call_id=answered.id, raw=None)
                continue
        elif _is_said_by_others(entry):
            waiting = {id: calls for id, calls in waiting.items() if len(calls) > 1}
        yield entry


def _is_same(one: CallEntry, other: CallEntry) -> bool:
    """Whether two calls with one id are one call, which some clients send as a function's and as a custom one."""
    return one.name == other.name and (one.kind != other.kind or one.arguments == other.arguments)


def _end_of_turn(history: tuple[Entry, ...], start: int) -> int:
    """Where somebody else begins to speak. What a model says behind its calls is still of their turn."""
    spoken = range(start, len(history))
    return next((place for place in spoken if _is_said_by_others(history[place])), len(history))


def _is_said_by_others(entry: Entry) -> bool:
    return isinstance(entry, Message) and entry.role != "assistant"


def _late(
    call: CallEntry, history: tuple[Entry, ...], start: int, moved: set[int], rule: HistoryRule, notes: list[Note]
) -> list[Entry]:
    """The result of a call that did not come with its batch: from further on, or a placeholder."""
    place = _found(call, history, start, moved)
    if place:
        moved.add(place)
        notes.append(Note("result_moved", call.id))
        return [history[place]]
    _refuse(rule, f"The call {call.id!r} has no result.")
    notes.append(Note("result_missing", call.id))
    return [_placeholder(call)]


def _found(call: CallEntry, history: tuple[Entry, ...], start: int, moved: set[int]) -> int:
    """The place of the call's result from here on, or 0."""
    for place in range(start, min(len(history), start + LOOK_AHEAD)):
        entry = history[place]
        if isinstance(entry, CallEntry) and entry.id == call.id:
            break
        if isinstance(entry, ResultEntry) and entry.call_id == call.id and place not in moved:
            return place
    return 0


def _placeholder(call: CallEntry) -> ResultEntry:
    return ResultEntry(call.id, (TextPart(NO_RESULT),), call.kind, failed=True)


def _refuse(rule: HistoryRule, message: str) -> None:
    if rule == "strict":
        raise BadRequest(message)
