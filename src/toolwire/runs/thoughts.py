"""Sealed thoughts: kept on behalf of clients that cannot carry them, and from backends that did not make them.

Chat has no place for encrypted reasoning or signatures, and a model that calls tools loses its thread without them:
they are kept by the calls they led to, and put back before them. So is what a server seals into a call itself. And of
every seal it is known which backend made it, because no other can read it. What is kept is bounded, and belongs to
whoever asked.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeAlias, TypeVar

import msgspec

from toolwire.core.events import CallStarted, CallTwin, Event, Note, ReasoningDelta, ReasoningEnded
from toolwire.core.policies import Kinds
from toolwire.core.request import CallEntry, Entry, Message, ReasoningEntry, Request, TextPart

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


CallKey: TypeAlias = tuple[str, str, str, int, int]
"""What a call is known by: owner, id, name, the words of the user behind which it stands, as a hash, and how many calls
with the same id and name stand between. Some servers only count the calls of a response, so an id is not enough."""


class Places:
    """Finds the keys of calls on a walk through a conversation."""

    def __init__(self, owner: str, entries: Sequence[Entry] = ()) -> None:
        self._owner = owner
        self._words = 0
        self._seen: Counter[tuple[str, str]] = Counter()
        for entry in entries:
            self.see(entry)

    def see(self, entry: Entry) -> CallKey | None:
        """The key of an entry, if it is a call."""
        if isinstance(entry, CallEntry):
            return self.key(entry.id, entry.name)
        if isinstance(entry, Message) and entry.role == "user":
            self._words = hash(tuple(part.text for part in entry.parts if isinstance(part, TextPart)))
            self._seen.clear()
        return None

    def key(self, id: str, name: str) -> CallKey:
        """The key of the next call."""
        self._seen[id, name] += 1
        return self._owner, id, name, self._words, self._seen[id, name]


class Thoughts:
    """What models thought before their calls and sealed into them, and who sealed it."""

    def __init__(self) -> None:
        self._kept: Kept[CallKey, tuple[ReasoningEntry, ...]] = Kept(KEPT)
        self._call_seals: Kept[CallKey, str] = Kept(KEPT)
        self._issuers: Kept[int, str] = Kept(4 * KEPT)  # backends by name

    def keep(self, key: CallKey, thoughts: tuple[ReasoningEntry, ...]) -> None:
        self._kept.put(key, thoughts)

    def keep_call_seal(self, key: CallKey, seal: str) -> None:
        self._call_seals.put(key, seal)

    def issued(self, seal: str, backend: str) -> None:
        self._issuers.put(hash(seal), backend)

    def fit_for(self, backend: str, owner: str, request: Request) -> Request:
        """The request with nothing in it that another backend has sealed, and its calls with their own seals."""
        notes: list[Note] = []
        places = Places(owner)
        entries = tuple(self._fit(entry, places.see(entry), backend, notes) for entry in request.entries)
        if all(one is other for one, other in zip(entries, request.entries, strict=True)):
            return request
        return msgspec.structs.replace(request, entries=entries, notes=(*request.notes, *notes))

    def _fit(self, entry: Entry, key: CallKey | None, backend: str, notes: list[Note]) -> Entry:
        if isinstance(entry, ReasoningEntry) and entry.seal and not self._may_read(backend, entry.seal):
            notes.append(Note("reasoning_dropped", entry.id))
            return forgotten(entry)
        if isinstance(entry, CallEntry) and key is not None:
            seal = entry.seal or self._call_seals.get(key) or ""
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
        places = Places(owner)
        for entry in request.entries:
            key = places.see(entry)
            thoughts = self._kept.get(key) if key is not None else None
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

    def __init__(self, thoughts: Thoughts, backend: str, owner: str, entries: Sequence[Entry]) -> None:
        self._thoughts = thoughts
        self._backend = backend
        self._owner = owner
        self._entries = entries
        self._places: Places | None = None

    def feed(self, event: Event) -> Sequence[Event]:
        if isinstance(event, ReasoningEnded | CallStarted) and event.seal:
            self._thoughts.issued(event.seal, self._backend)
            if isinstance(event, CallStarted):
                self._places = self._places or Places(self._owner, self._entries)
                self._thoughts.keep_call_seal(self._places.key(event.id, event.name), event.seal)
        return (event,)

    def end(self) -> Sequence[Event]:
        return ()


class KeepThoughts:
    """A policy that keeps what is sealed for the calls that follow it."""

    handles: ClassVar[Kinds] = (ReasoningDelta, ReasoningEnded, CallStarted)

    def __init__(self, thoughts: Thoughts, owner: str, entries: Sequence[Entry]) -> None:
        self._thoughts = thoughts
        self._owner = owner
        self._entries = entries
        self._places: Places | None = None
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
            self._places = self._places or Places(self._owner, self._entries)
            self._thoughts.keep(self._places.key(event.id, event.name), self._sealed)
            self._led = True
        return (event,)

    def end(self) -> Sequence[Event]:
        return ()


class KeepTwins:
    """A policy that keeps what a server sealed into a call for the call that was delivered in its place.

    That one has an id of our own, which no other call has.
    """

    handles: ClassVar[Kinds] = (CallStarted, CallTwin)

    def __init__(self, thoughts: Thoughts, backend: str, owner: str, entries: Sequence[Entry]) -> None:
        self._thoughts = thoughts
        self._backend = backend
        self._owner = owner
        self._entries = entries
        self._names: dict[str, str] = {}

    def feed(self, event: Event) -> Sequence[Event]:
        if isinstance(event, CallStarted):
            self._names[event.id] = event.name
        elif isinstance(event, CallTwin) and event.seal and event.id in self._names:
            key = Places(self._owner, self._entries).key(event.id, self._names[event.id])
            self._thoughts.keep_call_seal(key, event.seal)
            self._thoughts.issued(event.seal, self._backend)
        return (event,)

    def end(self) -> Sequence[Event]:
        return ()
