"""Results of the gateway's own tools that wait for those of a client.

A turn that calls tools of both is the client's. What ours said, and what happened before, is kept here until the client
brings its own results, and is then put where it belongs in the history.
"""

from collections.abc import Sequence

import msgspec

from toolwire.core.request import CallEntry, Entry, Message, OtherEntry, ResultEntry, TextPart
from toolwire.core.text import canonical, is_blank
from toolwire.memory.call_keys import CallKey, CallKeys
from toolwire.memory.write_behind import CachedTable, Wanted, WriteBehind

KEPT_BYTES = 64 * 1024 * 1024
"""Most bytes of results that wait, of all owners together."""


class PendingResults:
    """Our calls and results, by the client's calls that were made beside them."""

    def __init__(self, behind: WriteBehind | None = None) -> None:
        self._waiting: CachedTable[CallKey, _Beside] = CachedTable(
            "beside", _Beside, KEPT_BYTES, behind or WriteBehind()
        )

    def wanted(self, calls: Sequence[CallKey]) -> list[Wanted]:
        """What is to be looked for before a history with these calls is added to."""
        return [(self._waiting, key) for key in calls]

    def keep(
        self,
        owner: str,
        asked: Sequence[Entry],
        earlier: tuple[Entry, ...],
        turn: Sequence[Entry],
        answers: Sequence[ResultEntry],
    ) -> None:
        """A turn that the client must go on with: our calls and results of it, and what happened since it asked."""
        keys = CallKeys(owner, asked)
        ours = {answer.call_id: answer for answer in answers}
        theirs = [entry for entry in turn if isinstance(entry, CallEntry) and entry.id not in ours]
        for number, call in enumerate(theirs):
            start = turn.index(theirs[number - 1]) + 1 if number else 0
            index = turn.index(call)
            before = _calls(turn[start:index])
            after = _calls(turn[index + 1 :]) if call is theirs[-1] else ()
            results = tuple(ours[each.id] for each in (*before, *after))
            earlier_turn = (*earlier, *turn[:index]) if earlier and not number else ()
            self._waiting.put(keys.key(call.id, call.name), _Beside(_said(call), before, after, results, earlier_turn))

    def merge_into(self, entries: tuple[Entry, ...], owner: str) -> tuple[Entry, ...]:
        """The history with our calls and results beside the client's of the same turn."""
        if not self._waiting:
            return entries
        out: list[Entry] = []
        late: list[Entry] = []
        keys, found = CallKeys(owner), False
        for entry in entries:
            if late and _ends_a_turn(entry):
                out += late
                late = []
            key = keys.see(entry)
            kept = self._waiting.get(key) if key is not None else None
            if kept is None or not isinstance(entry, CallEntry) or kept.arguments != _said(entry):
                out.append(entry)
                continue
            found = True
            if not _restored(kept.earlier_turn, out):
                out += kept.before
            out += (entry, *kept.after)
            late += kept.results
        return (*out, *late) if found else entries


class _Beside(msgspec.Struct, frozen=True):
    """Our calls around one of the client's, and their results."""

    arguments: bytes
    """Those of the client's call: one that says something else is another one, in a history that was changed."""
    before: tuple[CallEntry, ...]
    after: tuple[CallEntry, ...]
    results: tuple[ResultEntry, ...]
    earlier_turn: tuple[Entry, ...]
    """All that happened before the client's call, if there was an earlier round."""


def _said(call: CallEntry) -> bytes:
    return b"{}" if is_blank(call.arguments) else canonical(call.arguments)


def _calls(entries: Sequence[Entry]) -> tuple[CallEntry, ...]:
    return tuple(entry for entry in entries if isinstance(entry, CallEntry))


def _restored(earlier_turn: tuple[Entry, ...], out: list[Entry]) -> bool:
    """Put what really happened in index of what the client saw of it. Not if the client has other words for it."""
    start = len(out)
    while start and not isinstance(out[start - 1], CallEntry | OtherEntry) and not _ends_a_turn(out[start - 1]):
        start -= 1
    if not earlier_turn or _words(out[start:]) != _words(earlier_turn):
        return False
    out[start:] = earlier_turn
    return True


def _words(entries: Sequence[Entry]) -> str:
    """What the model said, without the spaces: the client has blank lines between rounds."""
    parts = [part for entry in entries if isinstance(entry, Message) for part in entry.parts]
    return "".join("".join(part.text.split()) for part in parts if isinstance(part, TextPart))


def _ends_a_turn(entry: Entry) -> bool:
    return isinstance(entry, ResultEntry) or (isinstance(entry, Message) and entry.role != "assistant")
