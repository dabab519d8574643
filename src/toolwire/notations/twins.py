"""The same call in structure and in text: whichever comes first is delivered, and the other is dropped, one for one.

A textual call is whole when it is looked at. A structured one flows, so it is held while a textual call of the same
name has no twin yet; all others pass as they come.
"""

from collections import deque
from collections.abc import Collection
from typing import TypeAlias, TypeVar

from toolwire.core.events import CallArgs, CallEnded, CallStarted, CallTwin, Event, Note
from toolwire.core.policies import Events
from toolwire.core.text import canonical

_Key: TypeAlias = tuple[str, bytes]
"""A call by its name and what its arguments say."""
_Counted = TypeVar("_Counted")


class Twins:
    """The calls of one turn that have no twin so far."""

    def __init__(self) -> None:
        self._textual: dict[_Key, deque[str]] = {}  # ids of delivered calls
        self._awaited: dict[str, int] = {}  # how many there are of each name
        self._structured: dict[_Key, int] = {}  # how many were delivered
        self._unread: list[tuple[str, list[str]]] = []  # more of them, as name and pieces of the arguments
        self._open: dict[str, tuple[CallStarted, list[str]]] = {}
        self._held: dict[str, list[Event]] = {}
        self._dropped: set[str] = set()
        self.flowing = ""
        """The call that began last, if it is not held: its pieces may be added by whoever sees them."""
        self.pieces: list[str] = []

    @property
    def held(self) -> Collection[str]:
        """Structured calls that wait for their end."""
        return self._held.keys()

    def start(self, event: CallStarted) -> Events:
        self.flowing, self.pieces = event.id, []
        self._open[event.id] = event, self.pieces
        if not self._awaited.get(event.name):
            return (event,)
        self.flowing = ""
        self._held[event.id] = [event]
        return ()

    def grow(self, event: CallArgs) -> Events:
        call = self._open.get(event.id)
        if call is None:
            return () if event.id in self._dropped else (event,)
        call[1].append(event.text)
        if event.id not in self._held:
            return (event,)
        self._held[event.id].append(event)
        return ()

    def end(self, event: CallEnded) -> Events:
        settled: Events = ()
        if event.id in self._held:
            settled = self.settle(event.id) if event.complete else self._held.pop(event.id)
        if event.id in self._dropped:
            return settled
        call = self._open.pop(event.id, None)
        if call is not None:
            self._unread.append((call[0].name, call[1]))
        return [*settled, event] if settled else (event,)

    def settle(self, id: str) -> Events:
        """Nothing follows in the arguments of a held call: it is dropped, or goes out."""
        started, pieces = self._open[id]
        held = self._held.pop(id)
        delivered = self._textual.get(_key(started.name, pieces))
        if not delivered:
            return held
        self._awaited[started.name] -= 1
        self._dropped.add(id)
        del self._open[id]
        return Note("text_call_twin", started.name), CallTwin(delivered.popleft(), id, started.seal)

    def release(self) -> Events:
        """Nothing more follows: calls that were held go out as far as they came."""
        out = [event for id, held in self._held.items() for event in (*held, CallEnded(id, complete=False))]
        self._held.clear()
        return out

    def has(self, name: str, arguments: str) -> bool:
        """Whether this call was delivered in structure; that one is its twin from now on."""
        for known, pieces in self._unread:
            _count(self._structured, _key(known, pieces))
        self._unread.clear()
        key = _key(name, [arguments])
        if self._structured.get(key):
            self._structured[key] -= 1
            return True
        # Not every stream says when a call ends.
        alike = (id for id, (started, _) in self._open.items() if started.name == name and id not in self._held)
        twin = next((id for id in alike if _key(name, self._open[id][1]) == key), None)
        if twin is not None:
            del self._open[twin]
        return twin is not None

    def deliver(self, id: str, name: str, arguments: str) -> None:
        """This call was delivered from text."""
        self._textual.setdefault(_key(name, [arguments]), deque()).append(id)
        _count(self._awaited, name)


def _count(counts: dict[_Counted, int], key: _Counted) -> None:
    counts[key] = counts.get(key, 0) + 1


def _key(name: str, pieces: list[str]) -> _Key:
    return name, canonical("".join(pieces) or "{}")
