"""Sealed thoughts: kept on behalf of clients that cannot carry them, and from backends that did not make them.

Chat has no place for encrypted reasoning or signatures, and a model that calls tools loses its thread without them:
they are kept by the calls they led to, and put back before them. So is what a server seals into a call itself. And of
every seal it is known which backend made it, because no other can read it. What is kept is bounded, and belongs to
whoever asked.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

import msgspec

from toolwire.core.events import CallStarted, Event, Note, ReasoningDelta, ReasoningEnded
from toolwire.core.policies import Kinds
from toolwire.core.request import CallEntry, Entry, Message, ReasoningEntry, Request

KEPT = 4096
"""Calls whose thoughts are kept; the oldest go first."""


Key = TypeVar("Key")
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """A bounded table."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._table: OrderedDict[Key, Value] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._table)

    def put(self, key: Key, value: Value) -> None:
        self._table[key] = value
        self._table.move_to_end(key)
        if len(self._table) > self._most:
            self._table.popitem(last=False)

    def get(self, key: Key) -> Value | None:
        return self._table.get(key)


class Thoughts:
    """What models thought before their calls and sealed into them, by owner and call, and who sealed it."""

    def __init__(self) -> None:
        # Some servers count their calls, so an id alone is not enough to know one by.
        self._kept: Kept[tuple[str, str, str], tuple[ReasoningEntry, ...]] = Kept(KEPT)
        self._call_seals: Kept[tuple[str, str, str], str] = Kept(KEPT)
        self._issuers: Kept[int, str] = Kept(4 * KEPT)  # backends by name

    def keep(self, owner: str, call: CallStarted, thoughts: tuple[ReasoningEntry, ...]) -> None:
        self._kept.put((owner, call.id, call.name), thoughts)

    def keep_call_seal(self, owner: str, call: CallStarted) -> None:
        self._call_seals.put((owner, call.id, call.name), call.seal)

    def issued(self, seal: str, backend: str) -> None:
        self._issuers.put(hash(seal), backend)

    def fit_for(self, backend: str, owner: str, request: Request) -> Request:
        """The request with nothing in it that another backend has sealed, and its calls with their own seals."""
        notes: list[Note] = []
        entries = tuple(self._fit(entry, backend, owner, notes) for entry in request.entries)
        if all(one is other for one, other in zip(entries, request.entries, strict=True)):
            return request
        return msgspec.structs.replace(request, entries=entries, notes=(*request.notes, *notes))

    def _fit(self, entry: Entry, backend: str, owner: str, notes: list[Note]) -> Entry:
        if isinstance(entry, ReasoningEntry) and entry.seal and not self._may_read(backend, entry.seal):
            notes.append(Note("reasoning_dropped", entry.id))
            return forgotten(entry)
        if isinstance(entry, CallEntry):
            seal = entry.seal or self._call_seals.get((owner, entry.id, entry.name)) or ""
            seal = seal if self._may_read(backend, seal) else ""
            return entry if seal == entry.seal else msgspec.structs.replace(entry, seal=seal)
        return entry

    def _may_read(self, backend: str, seal: str) -> bool:
        """Whether a seal may be this backend's: it is, or nobody remembers."""
        return (self._issuers.get(hash(seal)) or backend) == backend

    def restored(self, owner: str, request: Request) -> Request:
        """The request with the thoughts of its calls in front of them."""
        if not self._kept or not any(isinstance(entry, CallEntry) for entry in request.entries):
            return request
        out: list[Entry] = []
        known: set[int] = set()  # the same thoughts led to all calls of a batch
        for entry in request.entries:
            thoughts = self._kept.get((owner, entry.id, entry.name)) if isinstance(entry, CallEntry) else None
            if thoughts is not None and id(thoughts) not in known:
                known.add(id(thoughts))
                _put_back(thoughts, out)
            out.append(entry)
        return msgspec.structs.replace(request, entries=tuple(out)) if known else request


def forgotten(entry: Entry) -> Entry:
    """The entry, or, if it is a sealed thought, its empty place: a backend may have to know that there was one."""
    return ReasoningEntry(entry.id) if isinstance(entry, ReasoningEntry) and entry.seal else entry


def _put_back(thoughts: tuple[ReasoningEntry, ...], out: list[Entry]) -> None:
    """Thoughts come before what was said with the calls, in place of what the client could carry of them."""
    place = len(out)
    if out and isinstance(out[-1], Message) and out[-1].role == "assistant":
        place -= 1
    if place and isinstance(out[place - 1], ReasoningEntry):
        place -= 1
        del out[place]
    out[place:place] = thoughts


class KeepSeals:
    """A policy that remembers who sealed what, and what is sealed into calls."""

    handles: ClassVar[Kinds] = (ReasoningEnded, CallStarted)

    def __init__(self, thoughts: Thoughts, owner: str, backend: str) -> None:
        self._thoughts = thoughts
        self._owner = owner
        self._backend = backend

    def feed(self, event: Event) -> Sequence[Event]:
        if isinstance(event, ReasoningEnded | CallStarted) and event.seal:
            self._thoughts.issued(event.seal, self._backend)
            if isinstance(event, CallStarted):
                self._thoughts.keep_call_seal(self._owner, event)
        return (event,)

    def end(self) -> Sequence[Event]:
        return ()


class KeepThoughts:
    """A policy that keeps what is sealed for the calls that follow it."""

    handles: ClassVar[Kinds] = (ReasoningDelta, ReasoningEnded, CallStarted)

    def __init__(self, thoughts: Thoughts, owner: str) -> None:
        self._thoughts = thoughts
        self._owner = owner
        self._texts: list[str] = []
        self._sealed: tuple[ReasoningEntry, ...] = ()
        self._led = False  # they have led to a call

    def feed(self, event: Event) -> Sequence[Event]:
        if isinstance(event, ReasoningDelta):
            self._texts.append(event.text)
        elif isinstance(event, ReasoningEnded):
            text, self._texts = "".join(self._texts), []
            if event.seal:
                shown = (text,) if text else ()
                thought = ReasoningEntry(event.id, shown, (), event.seal, event.issuer, event.redacted)
                self._sealed = (thought,) if self._led else (*self._sealed, thought)
                self._led = False
        elif isinstance(event, CallStarted) and self._sealed:
            self._thoughts.keep(self._owner, event, self._sealed)
            self._led = True
        return (event,)

    def end(self) -> Sequence[Event]:
        return ()
