"""Reasoning: kept on behalf of clients that do not carry it, and from backends that did not make it.

A model that calls tools loses its thread without its own reasoning, and some servers refuse to go on. Chat has no place
for encrypted reasoning or signatures, and no other dialect has one for the fields of a chat server: they are kept by
the calls they led to, and put back before them. So is what a server seals into a call itself. And of all reasoning it
is known which backend made it, because no other gets it. What is kept is bounded, and belongs to whoever asked.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from operator import is_
from sys import getsizeof
from typing import Any, ClassVar, TypeAlias

import msgspec

from toolwire.core.cache import size_of
from toolwire.core.events import CallStarted, CallTwin, Event, Note, ReasoningDelta, ReasoningEnded, TurnEnded
from toolwire.core.policies import Kinds
from toolwire.core.request import (
    CallEntry,
    Entry,
    Message,
    Omission,
    ReasoningEntry,
    Request,
    ResultEntry,
    TextPart,
    ToolsEntry,
)
from toolwire.core.shares import Shares

KEPT_BYTES = 32 * 1024 * 1024
"""Most bytes of each kind of thing that is kept, of all owners together."""

MARKS_BYTES = 8 * 1024 * 1024
"""Most bytes of what is known of who made which reasoning, and of what servers refuse."""

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


_OF_ONE_BACKEND = (CallEntry, ReasoningEntry)
Keyed: TypeAlias = tuple[Entry, CallKey | None]


class Made(msgspec.Struct, frozen=True):
    """What a chat server thought before a call, as the fields of its message, and which backend that was."""

    backend: str
    written: str


class Thoughts:
    """What models thought before their calls and sealed into them, and who did; and which servers refuse it."""

    def __init__(self) -> None:
        self._kept: Shares[CallKey, tuple[ReasoningEntry, ...]] = Shares(KEPT_BYTES)
        self._made: Shares[CallKey, Made] = Shares(KEPT_BYTES)
        self._call_seals: Shares[CallKey, str] = Shares(KEPT_BYTES)
        self._issuers: Shares[int, frozenset[str]] = Shares(MARKS_BYTES)  # backends; a short text may have several
        self._refused: Shares[tuple[str, str], tuple[Omission, ...]] = Shares(MARKS_BYTES)

    def keep(self, key: CallKey, thoughts: tuple[ReasoningEntry, ...]) -> None:
        self._kept.put(key[0], key, thoughts, size_of(key) + size_of(thoughts))

    def keep_made(self, key: CallKey, made: Made) -> None:
        self._made.put(key[0], key, made, size_of(key) + getsizeof(made.written))

    def keep_call_seal(self, key: CallKey, seal: str) -> None:
        self._call_seals.put(key[0], key, seal, size_of(key) + size_of(seal))

    def issued(self, owner: str, seal: str, backend: str) -> None:
        self._issuers.put(owner, hash(seal), frozenset((backend,)), 0)

    def showed(self, owner: str, text: str, backend: str) -> None:
        """Remember who thought a text, which others may have thought too."""
        key = hash(_letters(text))
        self._issuers.put(owner, key, (self._issuers.get(key) or frozenset()) | {backend}, 0)

    def refuse(self, backend: str, model: str, part: Omission) -> None:
        """Remember that a model's server refuses this part of a request."""
        self._refused.put("", (backend, model), tuple({*self.refused(backend, model), part}), size_of(model))

    def refused(self, backend: str, model: str) -> tuple[Omission, ...]:
        return self._refused.get((backend, model)) or ()

    def fit_for(self, backend: str, owner: str, request: Request) -> Request:
        """The request with nothing in it that another backend has made, and with what this one wants back."""
        for entry in request.entries:  # only these may hold, or want back, what only their own backend may read
            if isinstance(entry, _OF_ONE_BACKEND):
                break
        else:
            return request
        if not (self._made or self._call_seals or self._issuers):
            return request
        notes: list[Note] = []
        places = Places(owner)
        fit: list[Entry] = []
        turn: list[Keyed] = []  # what the model said and called at once
        for entry in request.entries:
            key = places.see(entry)
            if turn and not _goes_on(turn[-1][0], entry, request):
                fit += self._turn(turn, backend, request, notes)
                turn = []
            if _is_of_the_model(entry):
                turn.append((entry, key))
            else:
                fit.append(entry)
        fit += self._turn(turn, backend, request, notes)
        if len(fit) == len(request.entries) and all(map(is_, fit, request.entries)):
            return request
        return msgspec.structs.replace(request, entries=tuple(fit), notes=(*request.notes, *notes))

    def _turn(self, keyed: list[Keyed], backend: str, request: Request, notes: list[Note]) -> Sequence[Entry]:
        """One turn of the model, with its reasoning if this backend made it."""
        made = next((made for _, key in keyed if key is not None and (made := self._made.get(key)) is not None), None)
        entries = [self._fit(entry, key, backend, notes) for entry, key in keyed]
        if made is None:
            return entries
        if made.backend != backend:
            return [_without_reasoning(entry, notes) if _may_be_others(entry) else entry for entry in entries]
        brought = [entry for entry in entries if isinstance(entry, ReasoningEntry) and _is_of_chat(entry)]
        entry = _entry(made.written)
        if request.dialect == "chat" and _are_own(brought, entry):
            return entries
        own = msgspec.structs.replace(entry, message=entries[0].message)
        return [own, *(entry for entry in entries if not _is_of_chat(entry))]

    def _fit(self, entry: Entry, key: CallKey | None, backend: str, notes: list[Note]) -> Entry:
        if isinstance(entry, ReasoningEntry):
            mark = _letters(entry.text) if _is_of_chat(entry) else entry.seal
            if mark and not self._may_read(backend, mark):
                return _without_reasoning(entry, notes)
            is_unsigned = entry.issuer == "messages" and not entry.seal and mark
            return msgspec.structs.replace(entry, own=True) if is_unsigned and self._is_known(mark) else entry
        if isinstance(entry, CallEntry) and key is not None:
            seal = entry.seal or self._call_seals.get(key) or ""
            seal = seal if self._may_read(backend, seal) else ""
            return entry if seal == entry.seal else msgspec.structs.replace(entry, seal=seal)
        return entry

    def _may_read(self, backend: str, seal: str) -> bool:
        """Whether a seal may be this backend's: it is, or nobody remembers."""
        issuers = self._issuers.get(hash(seal))
        return issuers is None or backend in issuers

    def _is_known(self, seal: str) -> bool:
        return self._issuers.get(hash(seal)) is not None

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
    """The entry, or, if it is reasoning, its empty place: a backend may have to know that there was some."""
    return ReasoningEntry(entry.id, message=entry.message) if isinstance(entry, ReasoningEntry) else entry


def _without_reasoning(entry: Entry, notes: list[Note]) -> Entry:
    if isinstance(entry, ReasoningEntry) and (entry.text or entry.seal):
        notes.append(Note("reasoning_dropped", entry.id))
    return forgotten(entry)


def _is_of_the_model(entry: Entry) -> bool:
    if isinstance(entry, Message):
        return entry.role == "assistant"
    return not isinstance(entry, ResultEntry | ToolsEntry)


def _goes_on(last: Entry, entry: Entry, request: Request) -> bool:
    """Whether an entry is of the same turn of the model: in chat, of the same message."""
    return _is_of_the_model(entry) and (request.dialect != "chat" or entry.message == last.message)


def _is_of_chat(entry: Entry) -> bool:
    """Reasoning of a chat server, as far as can be told: it has no seal, or a chat server's."""
    return isinstance(entry, ReasoningEntry) and (not entry.seal or entry.issuer == "chat")


def _may_be_others(entry: Entry) -> bool:
    """Reasoning of some chat server, which is not known to be that of the backend being asked."""
    return isinstance(entry, ReasoningEntry) and _is_of_chat(entry) and not entry.own


def _are_own(brought: Sequence[ReasoningEntry], made: ReasoningEntry) -> bool:
    """Whether a chat client brings reasoning as the server wrote it, or as the client wants it to be."""
    fields = [_fields(entry.seal) if entry.seal else {"reasoning_content": entry.text} for entry in brought]
    if fields == [_fields(made.seal)]:
        return True
    text = _letters("".join(entry.text for entry in brought))
    return bool(text) and text != _letters(made.text)


def _letters(text: str) -> str:
    """A text without its white space, which clients and dialects change."""
    return "".join(text.split())


_fields = msgspec.json.Decoder(dict[str, Any]).decode


def _put_back(thoughts: tuple[ReasoningEntry, ...], out: list[Entry]) -> None:
    """Thoughts come before what was said with the calls, in place of what the client could carry of them."""
    place = len(out)
    if out and isinstance(out[-1], Message) and out[-1].role == "assistant":
        place -= 1
    if place and isinstance(out[place - 1], ReasoningEntry):
        place -= 1
        del out[place]
    out[place:place] = thoughts


class KeepReasoning:
    """A policy that remembers which backend made which reasoning, and keeps for each call what its server wants back.

    That is what is sealed into the call, or into the call it stands for, and what a chat server wrote before it:
    `reasoning` gives that as the fields of the server's message, which may grow until the turn ends.
    """

    handles: ClassVar[Kinds] = (ReasoningEnded, CallStarted, CallTwin, TurnEnded)

    def __init__(
        self,
        thoughts: Thoughts,
        backend: str,
        owner: str,
        entries: Sequence[Entry],
        reasoning: Callable[[], str] = str,
    ) -> None:
        self._thoughts = thoughts
        self._backend = backend
        self._owner = owner
        self._entries = entries
        self._reasoning = reasoning
        self._calls: list[CallStarted] = []
        self._found: list[CallKey] = []  # the keys of as many of them as were needed
        self._places: Places | None = None
        self._written = ""

    def feed(self, event: Event) -> Sequence[Event]:
        if isinstance(event, CallStarted):
            self._calls.append(event)
            if event.seal:
                self._thoughts.issued(self._owner, event.seal, self._backend)
                self._thoughts.keep_call_seal(self._keys()[-1], event.seal)
            if written := self._reasoning():
                self._keep_written(written)
        elif isinstance(event, TurnEnded):
            written = self._reasoning()
            if written and written != self._written:
                self._keep_written(written)
        elif isinstance(event, ReasoningEnded):
            if event.seal:
                self._thoughts.issued(self._owner, event.seal, self._backend)
        elif isinstance(event, CallTwin) and event.seal:
            self._keep_twin(event)
        return (event,)

    def end(self) -> Sequence[Event]:
        return ()

    def _keys(self) -> list[CallKey]:
        """The keys of all calls so far. Few turns need them, and finding them is a walk through the conversation."""
        found = self._found
        self._places = self._places or Places(self._owner, self._entries)
        found += [self._places.key(call.id, call.name) for call in self._calls[len(found) :]]
        return found

    def _keep_written(self, written: str) -> None:
        is_new, self._written = written != self._written, written
        made = Made(self._backend, written)
        for key in self._keys() if is_new else self._keys()[-1:]:
            self._thoughts.keep_made(key, made)
        if is_new and (text := _entry(written).text):
            self._thoughts.showed(self._owner, text, self._backend)

    def _keep_twin(self, event: CallTwin) -> None:
        """What a server sealed into a call, for the call that was delivered in its place, which has an id of ours."""
        name = next((call.name for call in self._calls if call.id == event.id), None)
        if name is not None:
            key = Places(self._owner, self._entries).key(event.id, name)
            self._thoughts.keep_call_seal(key, event.seal)
            self._thoughts.issued(self._owner, event.seal, self._backend)


def _entry(written: str) -> ReasoningEntry:
    """Reasoning that is written in these fields."""
    fields = _fields(written)
    texts = [fields[name] for name in ("reasoning_content", "reasoning") if isinstance(fields.get(name), str)]
    return ReasoningEntry(content=tuple(text for text in texts[:1] if text), seal=written, issuer="chat")


class KeepUnsigned:
    """A policy that remembers who made the thinking that a Messages server does not sign, as some do not."""

    handles: ClassVar[Kinds] = (ReasoningDelta, ReasoningEnded)

    def __init__(self, thoughts: Thoughts, backend: str, owner: str) -> None:
        self._thoughts = thoughts
        self._owner = owner
        self._backend = backend
        self._texts: list[str] = []

    def feed(self, event: Event) -> Sequence[Event]:
        if isinstance(event, ReasoningDelta):
            self._texts.append(event.text)
        elif isinstance(event, ReasoningEnded):
            text, self._texts = "".join(self._texts), []
            if text and not event.seal:
                self._thoughts.showed(self._owner, text, self._backend)
        return (event,)

    def end(self) -> Sequence[Event]:
        return ()


class KeepThoughts:
    """A policy that keeps what is sealed for the calls that follow it, and remembers which backend thought it."""

    handles: ClassVar[Kinds] = (ReasoningDelta, ReasoningEnded, CallStarted, TurnEnded)

    def __init__(self, thoughts: Thoughts, owner: str, entries: Sequence[Entry], backend: str = "") -> None:
        self._thoughts = thoughts
        self._owner = owner
        self._entries = entries
        self._places: Places | None = None
        self._backend = backend
        self._texts: list[str] = []
        self._all: list[str] = []  # that were shown in this turn
        self._sealed: tuple[ReasoningEntry, ...] = ()
        self._led = False  # they have led to a call

    def feed(self, event: Event) -> Sequence[Event]:
        if isinstance(event, ReasoningDelta):
            self._texts.append(event.text)
        elif isinstance(event, ReasoningEnded):
            text, self._texts = "".join(self._texts), []
            self._all.append(text)
            if event.seal:
                shown = (text,) if text else ()
                thought = ReasoningEntry(event.id, shown, (), event.seal, event.issuer, event.redacted)
                self._sealed = (thought,) if self._led else (*self._sealed, thought)
                self._led = False
        elif isinstance(event, CallStarted) and self._sealed:
            self._places = self._places or Places(self._owner, self._entries)
            self._thoughts.keep(self._places.key(event.id, event.name), self._sealed)
            self._led = True
        elif isinstance(event, TurnEnded) and (text := "".join((*self._all, *self._texts))):
            self._thoughts.showed(self._owner, text, self._backend)
        return (event,)

    def end(self) -> Sequence[Event]:
        return ()
