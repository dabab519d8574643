"""Pair closure: every call in a history has one result, and every result its call.

Backends refuse a conversation in which that does not hold, and clients produce such conversations: a turn was stopped,
a message was trimmed away. `repair` mends it and says so; `strict` refuses, naming the call.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.core.events import Note
from toolwire.core.request import CallEntry, Entry, Message, ReasoningEntry, ResultEntry, TextPart

HistoryRule: TypeAlias = Literal["repair", "strict"]

OPENING = "(The assistant begins.)"
"""What the user says where the model speaks first and a server wants the user to."""

NO_RESULT = "Error: the call was not answered."
"""What a model reads where a result is missing."""


def closed(entries: Iterable[Entry], rule: HistoryRule, *, moves: bool = True) -> tuple[tuple[Entry, ...], list[Note]]:
    """The history with every pair closed, and notes of what that took.

    Results belong to the batch of calls before them. One that comes later, after something else was said, is moved
    there, unless client and backend allow it to stand anywhere; an id may be used again once its call is answered.
    A result without its call is left out, unless there is nothing else to answer: then the user says it.
    """
    history = tuple(entries)
    if not any(isinstance(entry, CallEntry | ResultEntry) for entry in history):
        return history, []
    notes: list[Note] = []
    history = tuple(_apart(_without_blanks(history), notes))
    out: list[Entry] = []
    waiting: dict[str, CallEntry] = {}
    places = _Places(history)
    coming: set[str] = set()  # calls that wait, and whose results come before `reach`
    reach = 0
    orphans: list[ResultEntry] = []
    for place, entry in enumerate(history):
        if isinstance(entry, CallEntry):
            waiting[entry.id] = entry
        elif isinstance(entry, ResultEntry):
            if place in places.moved:
                continue
            call = waiting.pop(entry.call_id, None)
            if call is not None and call.kind != entry.kind:
                # LangChain answers a custom call as if it were a function's; servers take each in its own form only.
                notes.append(Note("result_retyped", entry.call_id))
                entry = msgspec.structs.replace(entry, kind=call.kind)  # noqa: PLW2901
            if call is None:
                _refuse(rule, f"A result answers the call {entry.call_id!r}, which does not wait for one.")
                notes.append(Note("result_dropped", entry.call_id))
                orphans.append(entry)
                continue
        elif isinstance(entry, Message):
            end = places.end_of_turn(place) if moves else len(history)
            coming = coming if end == reach else set()
            reach = end
            for call in [call for id, call in waiting.items() if id not in coming]:
                if place <= places.of(call, place) < reach:
                    coming.add(call.id)
                else:
                    behind = _before_reasoning(out) if entry.role == "assistant" else len(out)
                    out[behind:behind] = _late(call, places, place, rule, notes)
                    del waiting[call.id]
        out.append(entry)
    for call in waiting.values():
        out += _late(call, places, len(history), rule, notes)
    return _answerable(out, orphans, notes)


def _answerable(
    out: list[Entry], orphans: list[ResultEntry], notes: list[Note]
) -> tuple[tuple[Entry, ...], list[Note]]:
    """The history; if nobody says anything else in it, the user says what the results without a call hold."""
    if not orphans or any(map(_can_be_answered, out)):
        return tuple(out), notes
    return (*out, *map(_as_message, orphans)), [_as_said(note) for note in notes]


def _can_be_answered(entry: Entry) -> bool:
    return isinstance(entry, CallEntry) or (isinstance(entry, Message) and entry.role in ("user", "assistant"))


def _as_message(orphan: ResultEntry) -> Message:
    if not any(not isinstance(part, TextPart) or part.text for part in orphan.parts):
        raise BadRequest(f"The result of {orphan.call_id!r} is empty, its call is missing, and nothing else is said.")
    return Message("user", orphan.told)


def _as_said(note: Note) -> Note:
    return Note("result_as_message", note.subject) if note.code == "result_dropped" else note


def _before_reasoning(entries: list[Entry]) -> int:
    """The place before the reasoning at the end, which belongs to what follows."""
    place = len(entries)
    while place and isinstance(entries[place - 1], ReasoningEntry):
        place -= 1
    return place


class _Places:
    """Where in a history calls and results stand, and where each turn ends."""

    def __init__(self, history: tuple[Entry, ...]) -> None:
        self.history = history
        self.moved: set[int] = set()  # results that were put elsewhere
        self._results: dict[str, list[int]] = {}
        self._calls: dict[str, list[int]] = {}
        self._ends: list[int] = []  # where others speak
        for place, entry in enumerate(history):
            if isinstance(entry, ResultEntry):
                self._results.setdefault(entry.call_id, []).append(place)
            elif isinstance(entry, CallEntry):
                self._calls.setdefault(entry.id, []).append(place)
            elif _is_said_by_others(entry):
                self._ends.append(place)

    def of(self, call: CallEntry, start: int) -> int:
        """The place of a call's result from here on, before the id is used again; -1 if there is none."""
        results, calls = self._results.get(call.id, []), self._calls.get(call.id, [])
        again = bisect_left(calls, start)
        end = calls[again] if again < len(calls) else len(self.history)
        for place in results[bisect_left(results, start) :]:
            if place >= end:
                break
            if place not in self.moved:
                return place
        return -1

    def end_of_turn(self, start: int) -> int:
        """Where somebody else begins to speak. What a model says behind its calls is still of their turn."""
        found = bisect_left(self._ends, start)
        return self._ends[found] if found < len(self._ends) else len(self.history)


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
    waiting: dict[str, _Alike] = {}
    fresh = FreshIds(entry.id for entry in history if isinstance(entry, CallEntry))
    for entry in history:
        if isinstance(entry, CallEntry):
            same = waiting.setdefault(entry.id, _Alike())
            if same and same.has(entry):
                notes.append(Note("call_duplicate", entry.id))
                continue
            if same:
                renamed = msgspec.structs.replace(entry, id=fresh.like(entry.id))
                notes.append(Note("id_reused", renamed.id))
                same.add(renamed)
                yield renamed
                continue
            same.add(entry)
        elif isinstance(entry, ResultEntry) and waiting.get(entry.call_id):
            answered = waiting[entry.call_id].take()
            if answered.id != entry.call_id:
                yield msgspec.structs.replace(entry, call_id=answered.id)
                continue
        elif _is_said_by_others(entry):
            waiting = {id: calls for id, calls in waiting.items() if len(calls) > 1}
        yield entry


class FreshIds:
    """Ids that none of the taken ones is."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def like(self, id: str) -> str:
        count = self._counts.get(id, 1) + 1
        while f"{id}_{count}" in self._taken:
            count += 1
        self._counts[id] = count
        self._taken.add(f"{id}_{count}")
        return f"{id}_{count}"


class _Alike:
    """Calls that wait under one id. Nearly always it is one, so they are counted only when there is another."""

    __slots__ = ("_calls", "_counts")

    def __init__(self) -> None:
        self._calls: deque[CallEntry] = deque()
        self._counts: Counter[tuple[str, ...]] | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def has(self, call: CallEntry) -> bool:
        """Whether one of them is this call, which some clients send as a function's and as a custom one."""
        if self._counts is None:
            self._counts = Counter()
            for known in self._calls:
                _count(self._counts, known, 1)
        other = "function" if call.kind == "custom" else "custom"
        return bool(self._counts[call.name, other] or self._counts[call.name, call.kind, call.arguments])

    def add(self, call: CallEntry) -> None:
        self._calls.append(call)
        if self._counts is not None:
            _count(self._counts, call, 1)

    def take(self) -> CallEntry:
        call = self._calls.popleft()
        if self._counts is not None:
            _count(self._counts, call, -1)
        return call


def _count(counts: Counter[tuple[str, ...]], call: CallEntry, by: int) -> None:
    counts[call.name, call.kind] += by
    counts[call.name, call.kind, call.arguments] += by


def _is_said_by_others(entry: Entry) -> bool:
    return isinstance(entry, Message) and entry.role != "assistant"


def _late(call: CallEntry, places: _Places, start: int, rule: HistoryRule, notes: list[Note]) -> list[Entry]:
    """The result of a call that did not come with its batch: from further on, or a placeholder."""
    place = places.of(call, start)
    if place >= 0:
        places.moved.add(place)
        notes.append(Note("result_moved", call.id))
        return [places.history[place]]
    _refuse(rule, f"The call {call.id!r} has no result.")
    notes.append(Note("result_missing", call.id))
    return [_placeholder(call)]


def _placeholder(call: CallEntry) -> ResultEntry:
    return ResultEntry(call.id, (TextPart(NO_RESULT),), call.kind, failed=True)


def _refuse(rule: HistoryRule, message: str) -> None:
    if rule == "strict":
        raise BadRequest(message)
