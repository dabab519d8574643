"""Results of gateway tools, stored until the client sends the results of its own tools.

If a turn calls tools of both the gateway and the client, the client gets only its own calls. The gateway's calls and
results, and earlier rounds, are stored until the client sends its results, and are then merged into the history.
"""

from collections.abc import Sequence

import msgspec

from toolwire.core.request import CallEntry, Entry, Message, OtherEntry, ResultEntry, TextPart
from toolwire.core.text import canonicalise, is_blank
from toolwire.memory.call_keys import CallKey, CallKeys
from toolwire.memory.write_behind import CachedTable, Wanted, WriteBehind

MAX_CACHED_BYTES = 64 * 1024 * 1024
"""Maximum bytes of pending results in memory, across all owners."""


class PendingResults:
    """The gateway's calls and results, by the client's calls of the same turn."""

    def __init__(self, behind: WriteBehind | None = None) -> None:
        self._waiting: CachedTable[CallKey, _Beside] = CachedTable(
            "beside", _Beside, MAX_CACHED_BYTES, behind or WriteBehind()
        )

    def list_wanted(self, calls: Sequence[CallKey]) -> list[Wanted]:
        """What to load before merging into a history with these calls."""
        return [(self._waiting, key) for key in calls]

    def keep(
        self,
        owner: str,
        asked: Sequence[Entry],
        earlier: tuple[Entry, ...],
        turn: Sequence[Entry],
        answers: Sequence[ResultEntry],
    ) -> None:
        """Store the gateway's part of a turn that is returned to the client.

        `asked` is the history of the request, `earlier` the rounds before this turn, `answers` the gateway's results.
        """
        keys = CallKeys(owner, asked)
        ours = {answer.call_id: answer for answer in answers}
        theirs = [entry for entry in turn if isinstance(entry, CallEntry) and entry.id not in ours]
        for number, call in enumerate(theirs):
            start = turn.index(theirs[number - 1]) + 1 if number else 0
            index = turn.index(call)
            before = _select_calls(turn[start:index])
            after = _select_calls(turn[index + 1 :]) if call is theirs[-1] else ()
            results = tuple(ours[each.id] for each in (*before, *after))
            earlier_turn = (*earlier, *turn[:index]) if earlier and not number else ()
            self._waiting.put(
                keys.key(call.id, call.name), _Beside(_canonical_arguments(call), before, after, results, earlier_turn)
            )

    def merge_into(self, entries: tuple[Entry, ...], owner: str) -> tuple[Entry, ...]:
        """The history with the gateway's calls and results added to the client's of the same turn."""
        if not self._waiting:
            return entries
        out: list[Entry] = []
        late: list[Entry] = []
        keys, found = CallKeys(owner), False
        for entry in entries:
            if late and _ends_turn(entry):
                out += late
                late = []
            key = keys.see(entry)
            kept = self._waiting.get(key) if key is not None else None
            if kept is None or not isinstance(entry, CallEntry) or kept.arguments != _canonical_arguments(entry):
                out.append(entry)
                continue
            found = True
            if not _restore_rounds(kept.earlier_turn, out):
                out += kept.before
            out += (entry, *kept.after)
            late += kept.results
        return (*out, *late) if found else entries


class _Beside(msgspec.Struct, frozen=True):
    """The gateway's calls around one of the client's, and their results."""

    arguments: bytes
    """The arguments of the client's call. If they differ from those returned, the client has changed the history."""
    before: tuple[CallEntry, ...]
    after: tuple[CallEntry, ...]
    results: tuple[ResultEntry, ...]
    earlier_turn: tuple[Entry, ...]
    """Everything before the client's call, if there was an earlier round."""


def _canonical_arguments(call: CallEntry) -> bytes:
    return b"{}" if is_blank(call.arguments) else canonicalise(call.arguments)


def _select_calls(entries: Sequence[Entry]) -> tuple[CallEntry, ...]:
    return tuple(entry for entry in entries if isinstance(entry, CallEntry))


def _restore_rounds(earlier_turn: tuple[Entry, ...], out: list[Entry]) -> bool:
    """Replace the client's part of a turn with the whole turn; returns False if the client has changed the text."""
    start = len(out)
    while start and not isinstance(out[start - 1], CallEntry | OtherEntry) and not _ends_turn(out[start - 1]):
        start -= 1
    if not earlier_turn or _compact_text(out[start:]) != _compact_text(earlier_turn):
        return False
    out[start:] = earlier_turn
    return True


def _compact_text(entries: Sequence[Entry]) -> str:
    """The model's text without white space, because the client gets blank lines between rounds."""
    parts = [part for entry in entries if isinstance(entry, Message) for part in entry.parts]
    return "".join("".join(part.text.split()) for part in parts if isinstance(part, TextPart))


def _ends_turn(entry: Entry) -> bool:
    return isinstance(entry, ResultEntry) or (isinstance(entry, Message) and entry.role != "assistant")
