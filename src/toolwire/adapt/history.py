"""Pairs calls and results: every call in a history has one result, and every result its call.

Backends refuse other conversations, and clients produce them: a turn was stopped, a message was trimmed away. The rule
`repair` fixes the history and adds notes; `strict` refuses it, naming the call.
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
"""The text of a user message that is added where a server requires one."""
BEGINNING = Message("user", (TextPart(OPENING),))

NO_RESULT = "Error: the call was not answered."
"""The text of a result that is missing."""


def drop_empty_messages(entries: tuple[Entry, ...]) -> tuple[tuple[Entry, ...], list[Note]]:
    """The history without messages that hold nothing, which servers refuse, and notes of what was changed.

    If nothing else is there, one short message of the user stands for them. Those of the assistant need no note.
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
    """The history with every call and result paired, and notes of what was changed.

    Results follow the calls they answer. One that stands before its call is moved behind it. One that comes later,
    after another message, is moved there, unless client and backend allow it anywhere (`moves` is false); an id may be
    used again once its call is answered. A result without its call is left out, unless there is nothing else to
    answer: then it becomes a user message.
    """
    history = tuple(entries)
    if not any(isinstance(entry, CallEntry | ResultEntry) for entry in history):
        return history, []
    notes: list[Note] = []
    history = tuple(_with_distinct_ids(_with_results_behind(_without_blanks(history), rule, notes), notes))
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
                # LangChain answers a custom call as if it were a function's; servers accept only the matching form.
                notes.append(Note("result_retyped", entry.call_id))
                entry = msgspec.structs.replace(entry, kind=call.kind)  # noqa: PLW2901
            if call is None:
                _refuse(rule, f"A result answers the call {entry.call_id!r}, which does not wait for one.")
                notes.append(Note("result_dropped", entry.call_id))
                orphans.append(entry)
                continue
        elif isinstance(entry, Message):
            end = positions.end_of_turn(index) if moves else len(history)
            expected = expected if end == reach else set()
            reach = end
            for call in [call for id, call in waiting.items() if id not in expected]:
                if index <= positions.of(call, index) < reach:
                    expected.add(call.id)
                else:
                    position = _before_reasoning(out) if entry.role == "assistant" else len(out)
                    out[position:position] = _late(call, positions, index, rule, notes)
                    del waiting[call.id]
        out.append(entry)
    for call in waiting.values():
        out += _late(call, positions, len(history), rule, notes)
    return _answerable(out, orphans, notes)


def _answerable(
    out: list[Entry], orphans: list[ResultEntry], notes: list[Note]
) -> tuple[tuple[Entry, ...], list[Note]]:
    """The history; if it holds nothing to answer, with the results without a call as user messages."""
    if not orphans or any(map(_can_be_answered, out)):
        return tuple(out), notes
    return (*out, *map(_as_message, orphans)), [_as_message_note(note) for note in notes]


def _can_be_answered(entry: Entry) -> bool:
    return isinstance(entry, CallEntry) or (isinstance(entry, Message) and entry.role in ("user", "assistant"))


def _as_message(orphan: ResultEntry) -> Message:
    if not any(not isinstance(part, TextPart) or part.text for part in orphan.parts):
        raise BadRequest(f"The result of {orphan.call_id!r} is empty, its call is missing, and nothing else is said.")
    return Message("user", orphan.parts_with_error)


def _as_message_note(note: Note) -> Note:
    return Note("result_as_message", note.subject) if note.code == "result_dropped" else note


def _before_reasoning(entries: list[Entry]) -> int:
    """The index of the reasoning at the end, which belongs to what follows."""
    index = len(entries)
    while index and isinstance(entries[index - 1], ReasoningEntry):
        index -= 1
    return index


class _Positions:
    """The indexes of calls and results in a history, and of the end of each turn."""

    def __init__(self, history: tuple[Entry, ...]) -> None:
        self.history = history
        self.moved: set[int] = set()  # results that were moved elsewhere
        self._results: dict[str, list[int]] = {}
        self._calls: dict[str, list[int]] = {}
        self._ends: list[int] = []  # messages of other roles than the assistant
        for index, entry in enumerate(history):
            if isinstance(entry, ResultEntry):
                self._results.setdefault(entry.call_id, []).append(index)
            elif isinstance(entry, CallEntry):
                self._calls.setdefault(entry.id, []).append(index)
            elif _ends_turn(entry):
                self._ends.append(index)

    def of(self, call: CallEntry, start: int) -> int:
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

    def end_of_turn(self, start: int) -> int:
        """The index of the next message of another role. Text of the model after its calls belongs to their turn."""
        found = bisect_left(self._ends, start)
        return self._ends[found] if found < len(self._ends) else len(self.history)


def _without_blanks(history: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The history without blank assistant messages between calls."""
    blank = {
        index
        for index in range(1, len(history) - 1)
        if isinstance(history[index - 1], CallEntry)
        and isinstance(history[index + 1], CallEntry)
        and _is_blank(history[index])
    }
    return tuple(entry for index, entry in enumerate(history) if index not in blank) if blank else history


def _with_results_behind(history: tuple[Entry, ...], rule: HistoryRule, notes: list[Note]) -> tuple[Entry, ...]:
    """The history with every result that stands before its call moved behind that call and those made with it."""
    moved = _early_results(history)
    if not moved:
        return history
    for index in moved:
        call = history[index]
        assert isinstance(call, CallEntry)
        _refuse(rule, f"The result of the call {call.id!r} stands before it.")
        notes.append(Note("result_moved", call.id))
    out, left_out, pending = list[Entry](), {*moved.values()}, list[Entry]()
    for index, entry in enumerate(history):
        if not isinstance(entry, CallEntry):
            out += pending
            pending = []
        if index not in left_out:
            out.append(entry)
        if index in moved:
            pending.append(history[moved[index]])
    return (*out, *pending)


def _early_results(history: tuple[Entry, ...]) -> dict[int, int]:
    """The indexes of results that stand before their calls, by the indexes of the calls."""
    unanswered: dict[str, int] = {}
    early: dict[str, deque[int]] = {}  # results of this turn that no call before them waits for
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
                    moved.pop(calls.pop(entry.call_id, -1), None)  # the one in its place counts
            else:
                early.setdefault(entry.call_id, deque()).append(index)
        elif early and _ends_turn(entry):
            early = {}
    return moved


def _is_blank(entry: Entry) -> bool:
    if not isinstance(entry, Message) or entry.role != "assistant":
        return False
    return all(isinstance(part, TextPart) and not part.text.strip() for part in entry.parts)


def _with_distinct_ids(history: tuple[Entry, ...], notes: list[Note]) -> Iterator[Entry]:
    """The history with distinct ids for unanswered calls. A repeated call is dropped; results are taken in order."""
    waiting: dict[str, _SameId] = {}
    fresh = FreshIds(entry.id for entry in history if isinstance(entry, CallEntry))
    for entry in history:
        if isinstance(entry, CallEntry):
            same = waiting.setdefault(entry.id, _SameId())
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
        elif _ends_turn(entry):
            waiting = {id: calls for id, calls in waiting.items() if len(calls) > 1}
        yield entry


class FreshIds:
    """Makes ids that differ from all taken ones."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def like(self, id: str) -> str:
        """A new id that begins with this one."""
        count = self._counts.get(id, 1) + 1
        while f"{id}_{count}" in self._taken:
            count += 1
        self._counts[id] = count
        self._taken.add(f"{id}_{count}")
        return f"{id}_{count}"


class _SameId:
    """Unanswered calls with the same id. Nearly always it is one, so they are counted only when there is another."""

    __slots__ = ("_calls", "_counts")

    def __init__(self) -> None:
        self._calls: deque[CallEntry] = deque()
        self._counts: Counter[tuple[str, ...]] | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def has(self, call: CallEntry) -> bool:
        """Whether one of them is this call, which some clients send both as a function call and as a custom one."""
        if self._counts is None:
            self._counts = Counter()
            for other in self._calls:
                _count(self._counts, other, 1)
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


def _ends_turn(entry: Entry) -> bool:
    return isinstance(entry, Message) and entry.role != "assistant"


def _late(call: CallEntry, positions: _Positions, start: int, rule: HistoryRule, notes: list[Note]) -> list[Entry]:
    """The result of a call that did not follow it: a later one that is moved here, or a placeholder."""
    index = positions.of(call, start)
    if index >= 0:
        positions.moved.add(index)
        notes.append(Note("result_moved", call.id))
        return [positions.history[index]]
    _refuse(rule, f"The call {call.id!r} has no result.")
    notes.append(Note("result_missing", call.id))
    return [ResultEntry(call.id, (TextPart(NO_RESULT),), call.kind, failed=True)]


def _refuse(rule: HistoryRule, message: str) -> None:
    if rule == "strict":
        raise BadRequest(message)
