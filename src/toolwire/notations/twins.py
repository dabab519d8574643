"""Drops twins: of a call that arrives both structured and as text, only the first is delivered.

A textual call is compared when it is whole. A structured one is streamed, so it is held back while a textual call of
the same name has no twin yet; all others pass at once.
"""

from collections import Counter, deque
from collections.abc import Collection
from typing import TypeAlias

from toolwire.core.events import CallArgs, CallEnded, CallStarted, CallTwin, Event, Note
from toolwire.core.policies import Events
from toolwire.core.text import canonicalise

_Key: TypeAlias = tuple[str, bytes]
"""A call by its name and its canonical arguments."""


class Twins:
    """The calls of one turn that have no twin so far."""

    def __init__(self) -> None:
        self._is_idle = True  # no textual call was delivered: structured calls pass, and are compared if one follows
        self._unread: list[CallStarted | CallEnded | tuple[str, str]] = []  # passed meanwhile; arguments without frames
        self._textual: dict[_Key, deque[str]] = {}  # ids of delivered calls
        self._awaited: Counter[str] = Counter()  # number of them by name
        self._structured: Counter[_Key] = Counter()  # number of delivered calls
        self._open: dict[str, tuple[CallStarted, list[str]]] = {}
        self._held: dict[str, list[Event]] = {}
        self._dropped: set[str] = set()

    @property
    def held(self) -> Collection[str]:
        """Ids of structured calls that are held back."""
        return self._held.keys()

    def feed_arguments(self, event: CallArgs) -> Events:
        """The arguments of a structured call, unless they are held back or dropped."""
        if self._is_idle:
            self._unread.append((event.id, event.text))
            return (event,)
        call = self._open.get(event.id)
        if call is None:
            return () if event.id in self._dropped else (event,)
        call[1].append(event.text)
        if event.id not in self._held:
            return (event,)
        self._held[event.id].append(event)
        return ()

    def feed(self, event: CallStarted | CallEnded) -> Events:
        """The start or end of a structured call, unless it is held back or dropped, and the events that it releases."""
        if self._is_idle:
            self._unread.append(event)
            return (event,)
        if isinstance(event, CallStarted):
            self._open[event.id] = event, []
            if not self._awaited[event.name]:
                return (event,)
            self._held[event.id] = [event]
            return ()
        settled: Events = ()
        if event.id in self._held:
            settled = self.settle(event.id) if event.complete else self._held.pop(event.id)
        if event.id in self._dropped:
            return settled
        self._close(event.id)
        return [*settled, event] if settled else (event,)

    def _close(self, id: str) -> None:
        call = self._open.pop(id, None)
        if call is not None:
            self._structured[_key(call[0].name, call[1])] += 1

    def _catch_up(self) -> None:
        """Record the structured calls that have passed."""
        for each in self._unread:
            if isinstance(each, CallStarted):
                self._open[each.id] = each, []
            elif isinstance(each, CallEnded):
                self._close(each.id)
            elif each[0] in self._open:
                self._open[each[0]][1].append(each[1])
        self._unread.clear()

    def settle(self, id: str) -> Events:
        """Decide about a held call whose arguments are complete: drop it as a twin, or release it."""
        started, pieces = self._open[id]
        held = self._held.pop(id)
        delivered = self._textual.get(_key(started.name, pieces))
        if not delivered:
            return held
        self._awaited[started.name] -= 1
        self._dropped.add(id)
        del self._open[id]
        return Note("text_call_twin", started.name), CallTwin(delivered.popleft(), id, started.signature)

    def release(self) -> Events:
        """Release held calls as incomplete at the end of the turn."""
        out = [event for id, held in self._held.items() for event in (*held, CallEnded(id, complete=False))]
        self._held.clear()
        return out

    def take_twin(self, name: str, arguments: str) -> bool:
        """Whether an equal structured call was delivered; it then counts as this call's twin."""
        self._catch_up()
        key = _key(name, [arguments])
        if self._structured[key]:
            self._structured[key] -= 1
            return True
        # Not every stream marks the end of a call.
        alike = (id for id, (started, _) in self._open.items() if started.name == name and id not in self._held)
        twin = next((id for id in alike if _key(name, self._open[id][1]) == key), None)
        if twin is not None:
            del self._open[twin]
        return twin is not None

    def record(self, id: str, name: str, arguments: str) -> None:
        """Record that this textual call was delivered."""
        self._catch_up()
        self._is_idle = False
        self._textual.setdefault(_key(name, [arguments]), deque()).append(id)
        self._awaited[name] += 1


def _key(name: str, pieces: list[str]) -> _Key:
    return name, canonicalise("".join(pieces) or "{}")
