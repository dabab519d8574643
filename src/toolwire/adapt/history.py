"""Pairs calls and results: every call in a history has one result, and every result its call.

Backends refuse any other history, but clients send them when a turn was stopped or messages were trimmed. The rule
`repair` fixes the history and adds notes; `strict` refuses it and names the call.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.core.events import Note
from toolwire.core.request import CallEntry, Entry, Message, ReasoningEntry, RefusalPart, ResultEntry, TextPart

HistoryRule: TypeAlias = Literal["repair", "strict"]

OPENING = "(The assistant begins.)"
"""The text of the user message that is added where a server requires one."""
BEGINNING = Message("user", (TextPart(OPENING),))

NO_RESULT = "Error: the call was not answered."
"""The text of the placeholder for a missing result."""


def drop_empty_messages(entries: tuple[Entry, ...]) -> tuple[tuple[Entry, ...], list[Note]]:
    """Drop empty messages, which servers refuse; returns the history and notes of the changes.

    If nothing else is left, a short user message is added. Messages of the assistant are dropped without a note.
    """
    empty = [entry for entry in entries if isinstance(entry, Message) and _is_empty(entry)]
    if not empty:
        return entries, []
    notes = [Note("message_dropped", entry.role) for entry in empty if entry.role != "assistant"]
    if kept := tuple(entry for entry in entries if not isinstance(entry, Message) or not _is_empty(entry)):
        return kept, notes
    return (BEGINNING,), [*notes, Note("message_added", "user")]


def _is_empty(message: Message) -> bool:
    for part in message.parts:  # noqa: SIM110 - a third of the time for a long history
        if not isinstance(part, TextPart | RefusalPart) or part.text:
            return False
    return True


def repair_pairs(
    entries: Iterable[Entry], rule: HistoryRule, *, moves: bool = True
) -> tuple[tuple[Entry, ...], list[Note]]:
    """Pair every call with its result; returns the history and notes of the changes.

    A result that precedes its call is moved after it. With `moves`, so is a result behind a later message, because not
    every client and backend allows it there. An id may be used again after its call is answered. A result without a
    call is dropped; if the history has nothing else to answer, it becomes a user message.

    Raises `BadRequest` under the rule `strict` if a result or a call is missing or a result precedes its call, and
    under both rules if there is nothing to answer but an empty result.
    """
    history = tuple(entries)
    if _is_paired(history):
        return history, []
    notes: list[Note] = []
    history = tuple(_make_ids_distinct(_move_early_results(_drop_blank_messages(history), rule, notes), notes))
    out: list[Entry] = []
    waiting: dict[str, CallEntry] = {}
    positions = _Positions(history)
    expected: set[str] = set()  # calls whose results come before `reach`
    reach = 0
    orphans: list[ResultEntry] = []
    for index, entry in enumerate(history):
        if isinstance(entry, CallEntry):
            waiting[entry.id] = entry
        elif isinstance(entry, ResultEntry):
            if index in positions.moved:
                continue
            call = waiting.pop(entry.call_id, None)
            if call is not None and call.kind != entry.kind:
                # LangChain answers a custom call as a function call; servers accept only the matching form.
                notes.append(Note("result_retyped", entry.call_id))
                entry = msgspec.structs.replace(entry, kind=call.kind)  # noqa: PLW2901
            if call is None:
                _refuse(rule, f"A result answers the call {entry.call_id!r}, which is not waiting for one.")
                notes.append(Note("result_dropped", entry.call_id))
                orphans.append(entry)
                continue
        elif isinstance(entry, Message):
            end = positions.find_end_of_turn(index) if moves else len(history)
            expected = expected if end == reach else set()
            reach = end
            for call in [call for id, call in waiting.items() if id not in expected]:
                if index <= positions.find_result(call, index) < reach:
                    expected.add(call.id)
                else:
                    position = len(out)
                    while entry.role == "assistant" and position and isinstance(out[position - 1], ReasoningEntry):
                        position -= 1  # reasoning belongs to the message that follows it
                    out.insert(position, _take_late_result(call, positions, index, rule, notes))
                    del waiting[call.id]
        out.append(entry)
    out += [_take_late_result(call, positions, len(history), rule, notes) for call in waiting.values()]
    return _add_orphans(out, orphans, notes)


def _is_paired(history: tuple[Entry, ...]) -> bool:
    """Whether every call is answered before the next message, so that nothing needs a repair."""
    waiting: dict[str, str] = {}
    for entry in history:
        if isinstance(entry, CallEntry):
            if entry.id in waiting:
                return False
            waiting[entry.id] = entry.kind
        elif isinstance(entry, ResultEntry):
            if waiting.pop(entry.call_id, "") != entry.kind:
                return False
        elif waiting and isinstance(entry, Message):
            return False
    return not waiting


def _add_orphans(
    out: list[Entry], orphans: list[ResultEntry], notes: list[Note]
) -> tuple[tuple[Entry, ...], list[Note]]:
    """Add the results without a call as user messages, if the history has nothing else to answer."""
    for entry in out if orphans else ():
        if isinstance(entry, CallEntry) or (isinstance(entry, Message) and entry.role in ("user", "assistant")):
            orphans = []
            break
    if not orphans:
        return tuple(out), notes
    for orphan in orphans:
        if not any(not isinstance(part, TextPart) or part.text for part in orphan.parts):
            message = f"The result of {orphan.call_id!r} is empty and has no call, and there is nothing else to answer."
            raise BadRequest(message)
        out.append(Message("user", orphan.parts_with_error))
    return tuple(out), [
        Note("result_as_message", note.subject) if note.code == "result_dropped" else note for note in notes
    ]


class _Positions:
    """The indexes of calls and results in a history, and of the end of each turn."""

    def __init__(self, history: tuple[Entry, ...]) -> None:
        self.history = history
        self.moved: set[int] = set()  # results that were moved elsewhere
        self._results: dict[str, list[int]] = {}
        self._calls: dict[str, list[int]] = {}
        self._ends: list[int] = []  # messages of roles other than assistant
        for index, entry in enumerate(history):
            if isinstance(entry, ResultEntry):
                self._results.setdefault(entry.call_id, []).append(index)
            elif isinstance(entry, CallEntry):
                self._calls.setdefault(entry.id, []).append(index)
            elif _ends_turn(entry):
                self._ends.append(index)

    def find_result(self, call: CallEntry, start: int) -> int:
        """The index of a call's result from `start` on, before the id is used again; -1 if there is none."""
        results, calls = self._results.get(call.id, []), self._calls.get(call.id, [])
        again = bisect_left(calls, start)
        end = calls[again] if again < len(calls) else len(self.history)
        for index in results[bisect_left(results, start) :]:
            if index >= end:
                break
            if index not in self.moved:
                return index
        return -1

    def find_end_of_turn(self, start: int) -> int:
        """The index of the next message of another role. The assistant's text after its calls belongs to their turn."""
        found = bisect_left(self._ends, start)
        return self._ends[found] if found < len(self._ends) else len(self.history)


def _drop_blank_messages(history: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Drop blank assistant messages between two calls."""

    def is_blank_message(entry: Entry) -> bool:
        if not isinstance(entry, Message) or entry.role != "assistant":
            return False
        return all(isinstance(part, TextPart) and not part.text.strip() for part in entry.parts)

    blank = {
        index
        for index in range(1, len(history) - 1)
        if isinstance(history[index - 1], CallEntry)
        and isinstance(history[index + 1], CallEntry)
        and is_blank_message(history[index])
    }
    return tuple(entry for index, entry in enumerate(history) if index not in blank) if blank else history


def _move_early_results(history: tuple[Entry, ...], rule: HistoryRule, notes: list[Note]) -> tuple[Entry, ...]:
    """Move every result that precedes its call after that call and the calls made with it."""
    moved = _find_early_results(history)
    if not moved:
        return history
    out, pending, early = list[Entry](), list[Entry](), {*moved.values()}
    for index, entry in enumerate(history):
        if not isinstance(entry, CallEntry):
            out += pending
            pending = []
        elif index in moved:
            _refuse(rule, f"The result of the call {entry.id!r} comes before it.")
            notes.append(Note("result_moved", entry.id))
            pending.append(history[moved[index]])
        if index not in early:
            out.append(entry)
    return (*out, *pending)


def _find_early_results(history: tuple[Entry, ...]) -> dict[int, int]:
    """The indexes of results that precede their calls, by the indexes of the calls."""
    unanswered: dict[str, int] = {}
    early: dict[str, deque[int]] = {}  # results of this turn without a call before them
    moved: dict[int, int] = {}
    calls: dict[str, int] = {}  # the latest such call of each id
    for index, entry in enumerate(history):
        if isinstance(entry, CallEntry):
            unanswered[entry.id] = unanswered.get(entry.id, 0) + 1
            if early and early.get(entry.id):
                moved[index] = early[entry.id].popleft()
                calls[entry.id] = index
        elif isinstance(entry, ResultEntry):
            if count := unanswered.get(entry.call_id):
                unanswered[entry.call_id] = count - 1
                if calls:
                    moved.pop(calls.pop(entry.call_id, -1), None)  # the result after the call counts
            else:
                early.setdefault(entry.call_id, deque()).append(index)
        elif early and _ends_turn(entry):
            early = {}
    return moved


def _make_ids_distinct(history: tuple[Entry, ...], notes: list[Note]) -> Iterator[Entry]:
    """Give unanswered calls distinct ids. A repeated call is dropped; results are assigned in order."""
    waiting: dict[str, deque[CallEntry]] = {}
    counts: Counter[tuple[str, ...]] = Counter()  # of waiting calls by id, name, kind, and by these and the arguments
    fresh = FreshIds(entry.id for entry in history if isinstance(entry, CallEntry))
    for entry in history:
        if isinstance(entry, CallEntry):
            key, same = (entry.id, entry.name), waiting.setdefault(entry.id, deque())
            # Some clients send one call both as a function call and as a custom one.
            other = "function" if entry.kind == "custom" else "custom"
            if counts[*key, other] or counts[*key, entry.kind, entry.arguments]:
                notes.append(Note("call_duplicate", entry.id))
                continue
            counts.update(((*key, entry.kind), (*key, entry.kind, entry.arguments)))
            if same:
                entry = msgspec.structs.replace(entry, id=fresh.make(entry.id))  # noqa: PLW2901
                notes.append(Note("id_reused", entry.id))
            same.append(entry)
        elif isinstance(entry, ResultEntry) and waiting.get(entry.call_id):
            call = waiting[entry.call_id].popleft()
            key = (entry.call_id, call.name, call.kind)
            counts.subtract((key, (*key, call.arguments)))
            if call.id != entry.call_id:
                entry = msgspec.structs.replace(entry, call_id=call.id)  # noqa: PLW2901
        elif _ends_turn(entry):
            for id in [id for id, calls in waiting.items() if len(calls) < 2]:
                for call in waiting.pop(id):
                    counts.subtract(((id, call.name, call.kind), (id, call.name, call.kind, call.arguments)))
        yield entry


class FreshIds:
    """Makes ids that are not taken."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def make(self, id: str) -> str:
        """A new id that begins with this one."""
        count = self._counts.get(id, 1) + 1
        while f"{id}_{count}" in self._taken:
            count += 1
        self._counts[id] = count
        self._taken.add(f"{id}_{count}")
        return f"{id}_{count}"


def _ends_turn(entry: Entry) -> bool:
    return isinstance(entry, Message) and entry.role != "assistant"


def _take_late_result(
    call: CallEntry, positions: _Positions, start: int, rule: HistoryRule, notes: list[Note]
) -> Entry:
    """The result of a call that has none next to it: a later one, which is moved here, or a placeholder."""
    index = positions.find_result(call, start)
    if index >= 0:
        positions.moved.add(index)
        notes.append(Note("result_moved", call.id))
        return positions.history[index]
    _refuse(rule, f"The call {call.id!r} has no result.")
    notes.append(Note("result_missing", call.id))
    return ResultEntry(call.id, (TextPart(NO_RESULT),), call.kind, failed=True)


def _refuse(rule: HistoryRule, message: str) -> None:
    if rule == "strict":
        raise BadRequest(message)
