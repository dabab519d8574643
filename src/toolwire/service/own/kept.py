"""Results of the gateway's own tools that wait for those of a client.

A turn that calls tools of both is the client's. What ours said, and what happened before, is kept here until the client
brings its own results, and is then put where it belongs in the history.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from toolwire.core.cache import size_of
from toolwire.core.request import CallEntry, Entry, Message, OtherEntry, ResultEntry, TextPart
from toolwire.core.shares import Shares
from toolwire.core.text import canonical, is_blank

KEPT_BYTES = 64 * 1024 * 1024
"""Most bytes of results that wait, of all owners together."""


class KeptResults:
    """Our calls and results, by the client's calls that were made beside them."""

    def __init__(self) -> None:
        self._waiting: Shares[_Key, _Beside] = Shares(KEPT_BYTES)

    def keep(
        self, owner: str, earlier: tuple[Entry, ...], turn: Sequence[Entry], answers: Sequence[ResultEntry]
    ) -> None:
        """A turn that the client must go on with: our calls and results of it, and what happened before it."""
        ours = {answer.call_id: answer for answer in answers}
        theirs = [entry for entry in turn if isinstance(entry, CallEntry) and entry.id not in ours]
        for number, call in enumerate(theirs):
            start = turn.index(theirs[number - 1]) + 1 if number else 0
            place = turn.index(call)
            before = _calls(turn[start:place])
            after = _calls(turn[place + 1 :]) if call is theirs[-1] else ()
            results = tuple(ours[each.id] for each in (*before, *after))
            told = (*earlier, *turn[:place]) if earlier and not number else ()
            beside = _Beside(before, after, results, told)
            self._waiting.put(owner, _key(owner, call), beside, size_of(beside))

    def added_to(self, entries: tuple[Entry, ...], owner: str) -> tuple[Entry, ...]:
        """The history with our calls and results beside the client's of the same turn."""
        if not self._waiting:
            return entries
        out: list[Entry] = []
        late: list[Entry] = []
        known: set[_Key] = set()
        for entry in entries:
            if late and _ends_a_turn(entry):
                out += late
                late = []
            key = _key(owner, entry) if isinstance(entry, CallEntry) else None
            kept = self._waiting.get(key) if key is not None and key not in known else None
            if key is None or kept is None:
                out.append(entry)
                continue
            known.add(key)
            if not _told_again(kept.told, out):
                out += kept.before
            out += (entry, *kept.after)
            late += kept.results
        return (*out, *late)


class _Beside(msgspec.Struct, frozen=True):
    """Our calls around one of the client's, and their results."""

    before: tuple[CallEntry, ...]
    after: tuple[CallEntry, ...]
    results: tuple[ResultEntry, ...]
    told: tuple[Entry, ...]
    """All that happened before the client's call, if there was an earlier round."""


def _calls(entries: Sequence[Entry]) -> tuple[CallEntry, ...]:
    return tuple(entry for entry in entries if isinstance(entry, CallEntry))


def _told_again(told: tuple[Entry, ...], out: list[Entry]) -> bool:
    """Put what really happened in place of what the client saw of it. Not if the client has other words for it."""
    start = len(out)
    while start and not isinstance(out[start - 1], CallEntry | OtherEntry) and not _ends_a_turn(out[start - 1]):
        start -= 1
    if not told or _words(out[start:]) != _words(told):
        return False
    out[start:] = told
    return True


def _words(entries: Sequence[Entry]) -> str:
    """What the model said, without the spaces: the client has blank lines between rounds."""
    parts = [part for entry in entries if isinstance(entry, Message) for part in entry.parts]
    return "".join("".join(part.text.split()) for part in parts if isinstance(part, TextPart))


_Key: TypeAlias = tuple[str, str, str, bytes]


def _key(owner: str, call: CallEntry) -> _Key:
    """What a client's call is known by. Some servers count their calls, so an id alone is not enough."""
    return owner, call.id, call.name, b"{}" if is_blank(call.arguments) else canonical(call.arguments)


def _ends_a_turn(entry: Entry) -> bool:
    return isinstance(entry, ResultEntry) or (isinstance(entry, Message) and entry.role != "assistant")
