"""Stores reasoning for clients that cannot return it, and withholds it from other backends.

A model that calls tools needs its own reasoning back, and some servers refuse a request without it. Chat has no field
for encrypted reasoning or signatures, and no other dialect has one for the fields of a chat server. So these are stored
by the calls that they led to, and put back before them, as is a signature that a server adds to a call itself. The
backend that made the reasoning is stored too, because no other backend may get it. Everything belongs to an owner and
is bounded in bytes.
"""

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, ClassVar, TypeAlias

import msgspec

from toolwire.core.cache import TenantCache, size_of
from toolwire.core.events import CallStarted, CallTwin, Event, Note, ReasoningDelta, ReasoningEnded, TurnEnded
from toolwire.core.policies import Events, Kinds, pass_any_text
from toolwire.core.request import (
    CallEntry,
    Entry,
    Message,
    Omission,
    ReasoningEntry,
    Request,
    ResultEntry,
    ToolsEntry,
)
from toolwire.memory.call_keys import CallKey, CallKeys, digest
from toolwire.memory.write_behind import CachedTable, Wanted, WriteBehind

MAX_CACHED_BYTES = 64 * 1024 * 1024
"""Maximum bytes of reasoning in memory, across all owners."""

MAX_ORIGIN_BYTES = 8 * 1024 * 1024
"""Maximum bytes in memory for the origins of reasoning, and the same again for what servers refuse."""

OriginKey: TypeAlias = tuple[str, str]
"""Owner, and the digest of a signature, or of a text without white space."""

OF_ONE_BACKEND = (CallEntry, ReasoningEntry)
"""Entries that contain, or lack, data that only their own backend may read."""
Keyed: TypeAlias = tuple[Entry, CallKey | None]


class CallReasoning(msgspec.Struct, frozen=True):
    """What a backend wants back with a call that it made."""

    backend: str = ""
    reasoning: tuple[ReasoningEntry, ...] = ()
    """Signed reasoning before the call, for clients that cannot return it."""
    fields: str = ""
    """Reasoning of a chat server: the fields of its message, as JSON."""
    signature: str = ""
    """The signature on the call itself."""


class ReasoningCache:
    """Reasoning and signatures by call, the backends that made them, and what servers refuse."""

    def __init__(self, behind: WriteBehind | None = None) -> None:
        behind = behind or WriteBehind()
        self._calls: CachedTable[CallKey, CallReasoning] = CachedTable("call", CallReasoning, MAX_CACHED_BYTES, behind)
        # The backends that made a signature or text; several may have made the same short text.
        self._origins: CachedTable[OriginKey, frozenset[str]] = CachedTable(
            "origin", frozenset[str], MAX_ORIGIN_BYTES, behind
        )
        self._refused: TenantCache[tuple[str, str], tuple[Omission, ...]] = TenantCache(MAX_ORIGIN_BYTES)

    def keep(self, key: CallKey, made: CallReasoning) -> None:
        """Store what belongs to a call, merged with what the same backend stored before."""
        known = self._calls.get(key)
        if known is not None and known.backend == made.backend:
            made = CallReasoning(
                made.backend,
                made.reasoning or known.reasoning,
                made.fields or known.fields,
                made.signature or known.signature,
            )
        self._calls.put(key, made)

    def remember_signature(self, owner: str, signature: str, backend: str) -> None:
        """Store which backend made a signature that clients return."""
        self._origins.put((owner, digest(signature)), frozenset((backend,)))

    def remember_local_signature(self, owner: str, signature: str, backend: str) -> None:
        """The same, but in memory only: the signature is stored with its call."""
        self._origins.hold((owner, digest(signature)), frozenset((backend,)))

    def remember_text(self, owner: str, text: str, backend: str) -> None:
        """Store which backend made the text of reasoning; others may have made the same text."""
        key = owner, digest(_compact(text))
        known = self._origins.get(key) or frozenset()
        if backend not in known:
            self._origins.put(key, known | {backend})

    def list_wanted(self, owner: str, entries: Sequence[Entry]) -> tuple[list[CallKey], list[Wanted]]:
        """The keys of the calls of a history, and what to load for it, both latest first."""
        keys, marks = CallKeys(owner), list[str]()
        calls: list[CallKey] = []
        for entry in entries:
            if (key := keys.see(entry)) is not None:
                calls.append(key)
            if isinstance(entry, OF_ONE_BACKEND) and (mark := _mark_of(entry)):
                marks.append(mark)
        calls.reverse()
        origins = [(self._origins, (owner, digest(mark))) for mark in reversed(marks)]
        return calls, [*((self._calls, key) for key in calls), *origins]

    def cache_origins(self, loaded: Sequence[Wanted]) -> None:
        """Cache the origins of signatures that were loaded with their calls: they are not stored separately."""
        for table, key in loaded:
            made = self._calls.get(key) if table is self._calls else None
            if made is not None:
                for signature in filter(None, (*(entry.signature for entry in made.reasoning), made.signature)):
                    self.remember_local_signature(key[0], signature, made.backend)

    def refuse(self, backend: str, model: str, part: Omission) -> None:
        """Remember that the server of a model refuses this part of a request."""
        self._refused.put("", (backend, model), tuple({*self.list_refused(backend, model), part}), size_of(model))

    def list_refused(self, backend: str, model: str) -> tuple[Omission, ...]:
        return self._refused.get((backend, model)) or ()

    def fit_to_backend(self, backend: str, owner: str, request: Request) -> Request:
        """The request without the data of other backends, and with the data that this backend wants back."""
        for entry in request.entries:
            if isinstance(entry, OF_ONE_BACKEND):
                break
        else:
            return request
        if not (self._calls or self._origins):
            return request
        notes: list[Note] = []
        keys = CallKeys(owner)
        fit: list[Entry] = []
        turn: list[Keyed] = []  # entries of one turn of the model
        for entry in request.entries:
            key = keys.see(entry)
            if turn and not _is_same_turn(turn[-1][0], entry, request):
                fit += self._fit_turn(turn, backend, owner, request, notes)
                turn = []
            if _is_from_model(entry):
                turn.append((entry, key))
            else:
                fit.append(entry)
        fit += self._fit_turn(turn, backend, owner, request, notes)
        if len(fit) == len(request.entries) and all(map(is_, fit, request.entries)):
            return request
        return msgspec.structs.replace(request, entries=tuple(fit), notes=(*request.notes, *notes))

    def _fit_turn(
        self, keyed: list[Keyed], backend: str, owner: str, request: Request, notes: list[Note]
    ) -> Sequence[Entry]:
        """The entries of one turn, with their reasoning if this backend made it."""
        kept = [made for _, key in keyed if key is not None and (made := self._calls.get(key)) is not None]
        made = next((each for each in kept if each.fields), None)
        entries = [self._fit_entry(entry, key, backend, owner, notes) for entry, key in keyed]
        if made is None:
            return entries
        if made.backend != backend:
            return [_drop_reasoning(entry, notes) if _may_be_foreign(entry) else entry for entry in entries]
        brought = [entry for entry in entries if isinstance(entry, ReasoningEntry) and _is_of_chat(entry)]
        entry = _decode_entry(made.fields)
        if request.reasoning_in_messages and _is_unchanged(brought, entry):
            return entries
        own = msgspec.structs.replace(entry, message=entries[0].message)
        return [own, *(entry for entry in entries if not _is_of_chat(entry))]

    def _fit_entry(self, entry: Entry, key: CallKey | None, backend: str, owner: str, notes: list[Note]) -> Entry:
        if isinstance(entry, ReasoningEntry):
            mark = _mark_of(entry)
            origins = self._find_origins(owner, mark)
            if origins is not None and backend not in origins:
                return _drop_reasoning(entry, notes)
            is_unsigned = entry.origin == "messages" and not entry.signature
            return (
                msgspec.structs.replace(entry, from_this_backend=True) if is_unsigned and origins is not None else entry
            )
        if isinstance(entry, CallEntry) and key is not None:
            made = self._calls.get(key)
            signature = entry.signature or (made.signature if made is not None else "")
            origins = self._find_origins(owner, signature)
            signature = signature if origins is None or backend in origins else ""
            return entry if signature == entry.signature else msgspec.structs.replace(entry, signature=signature)
        return entry

    def _find_origins(self, owner: str, mark: str) -> frozenset[str] | None:
        """The backends that made something; None if that is unknown."""
        return self._origins.get((owner, digest(mark))) if mark else None

    def restore_reasoning(self, owner: str, request: Request) -> Request:
        """The request with the stored reasoning of its calls put before them."""
        if not self._calls or not any(isinstance(entry, CallEntry) for entry in request.entries):
            return request
        out: list[Entry] = []
        known: set[tuple[ReasoningEntry, ...]] = set()  # all calls of a batch have the same
        keys = CallKeys(owner)
        for entry in request.entries:
            key = keys.see(entry)
            made = self._calls.get(key) if key is not None else None
            if made is not None and made.reasoning and made.reasoning not in known:
                known.add(made.reasoning)
                _insert_reasoning(made.reasoning, out)
            out.append(entry)
        return msgspec.structs.replace(request, entries=tuple(out)) if known else request


def strip_reasoning(entry: Entry) -> Entry:
    """The entry, or an empty one in place of reasoning: a backend may need to know that there was reasoning."""
    return ReasoningEntry(entry.id, message=entry.message) if isinstance(entry, ReasoningEntry) else entry


def _drop_reasoning(entry: Entry, notes: list[Note]) -> Entry:
    if isinstance(entry, ReasoningEntry) and (entry.text or entry.signature):
        notes.append(Note("reasoning_dropped", entry.id))
    return strip_reasoning(entry)


def _is_from_model(entry: Entry) -> bool:
    if isinstance(entry, Message):
        return entry.role == "assistant"
    return not isinstance(entry, ResultEntry | ToolsEntry)


def _is_same_turn(last: Entry, entry: Entry, request: Request) -> bool:
    """Whether an entry belongs to the same turn of the model, or to the same message if reasoning is in messages."""
    return _is_from_model(entry) and (not request.reasoning_in_messages or entry.message == last.message)


def _is_of_chat(entry: Entry) -> bool:
    """Whether a chat server may have made the reasoning: it is unsigned, or has the signature of a chat server."""
    return isinstance(entry, ReasoningEntry) and (not entry.signature or entry.origin == "chat")


def _may_be_foreign(entry: Entry) -> bool:
    """Whether another chat server may have made the reasoning."""
    return isinstance(entry, ReasoningEntry) and _is_of_chat(entry) and not entry.from_this_backend


def _is_unchanged(brought: Sequence[ReasoningEntry], made: ReasoningEntry) -> bool:
    """Whether a chat client returned the reasoning as the server wrote it, or edited it."""
    fields = [_fields(entry.signature) if entry.signature else {"reasoning_content": entry.text} for entry in brought]
    if fields == [_fields(made.signature)]:
        return True
    text = _compact("".join(entry.text for entry in brought))
    return bool(text) and text != _compact(made.text)


def _mark_of(entry: CallEntry | ReasoningEntry) -> str:
    """What identifies the origin of an entry: its signature, or the text of unsigned reasoning."""
    return _compact(entry.text) if isinstance(entry, ReasoningEntry) and _is_of_chat(entry) else entry.signature


def _compact(text: str) -> str:
    """A text without white space, which clients and dialects change."""
    return "".join(text.split())


_fields = msgspec.json.Decoder(dict[str, Any]).decode


def _insert_reasoning(reasoning: tuple[ReasoningEntry, ...], out: list[Entry]) -> None:
    """Insert reasoning before the text of its calls, replacing any that the client returned."""
    index = len(out)
    if out and isinstance(out[-1], Message) and out[-1].role == "assistant":
        index -= 1
    if index and isinstance(out[index - 1], ReasoningEntry):
        index -= 1
        del out[index]
    out[index:index] = reasoning


class KeepReasoning:
    """A policy that stores the origin of signed reasoning, and for each call what its server wants back.

    That is the signature on the call, or on its twin, and what a chat server wrote before it: `reasoning` returns the
    fields of the server's message, which may grow until the turn ends.
    """

    handles: ClassVar[Kinds] = (ReasoningEnded, CallStarted, CallTwin, TurnEnded)

    def __init__(
        self,
        cache: ReasoningCache,
        backend: str,
        owner: str,
        entries: Sequence[Entry],
        reasoning: Callable[[], str] = str,
        *,
        is_carried: bool = True,
    ) -> None:
        self._cache = cache
        self._backend = backend
        self._owner = owner
        self._entries = entries
        self._issued = cache.remember_signature if is_carried else cache.remember_local_signature
        self._reasoning = reasoning
        self._calls: list[CallStarted] = []
        self._found: list[CallKey] = []  # the keys of the first calls, computed on demand
        self._keys: CallKeys | None = None
        self._fields = ""

    def feed(self, event: Event) -> Events | None:
        if isinstance(event, CallStarted):
            self._calls.append(event)
            if event.signature:
                self._keep_signature(self._call_keys()[-1], event.signature)
            if fields := self._reasoning():
                self._keep_fields(fields)
        elif isinstance(event, TurnEnded):
            fields = self._reasoning()
            if fields and fields != self._fields:
                self._keep_fields(fields)
        elif isinstance(event, ReasoningEnded):
            if event.signature:
                self._issued(self._owner, event.signature, self._backend)
        elif isinstance(event, CallTwin) and event.signature:
            # The signed call was dropped in favour of its twin, which was delivered with an id of ours.
            for call, key in zip(self._calls, self._call_keys(), strict=True):
                if call.id == event.id:
                    self._keep_signature(key, event.signature)
        return None

    def _call_keys(self) -> list[CallKey]:
        """The keys of all calls so far. Few turns need them, and computing them walks through the conversation."""
        found = self._found
        self._keys = self._keys or CallKeys(self._owner, self._entries)
        found += [self._keys.key(call.id, call.name) for call in self._calls[len(found) :]]
        return found

    def _keep_signature(self, key: CallKey, signature: str) -> None:
        self._issued(self._owner, signature, self._backend)
        self._cache.keep(key, CallReasoning(self._backend, signature=signature))

    def _keep_fields(self, fields: str) -> None:
        is_new, self._fields = fields != self._fields, fields
        made = CallReasoning(self._backend, fields=fields)
        for key in self._call_keys() if is_new else self._call_keys()[-1:]:
            self._cache.keep(key, made)
        if is_new and (text := _decode_entry(fields).text):
            self._cache.remember_text(self._owner, text, self._backend)


def _decode_entry(written: str) -> ReasoningEntry:
    """The reasoning in these fields of a chat server's message."""
    fields = _fields(written)
    texts = [fields[name] for name in ("reasoning_content", "reasoning") if isinstance(fields.get(name), str)]
    return ReasoningEntry(content=tuple(text for text in texts[:1] if text), signature=written, origin="chat")


class KeepUnsigned:
    """A policy that stores the origin of thinking that a Messages server did not sign; some servers never do."""

    handles: ClassVar[Kinds] = (ReasoningDelta, ReasoningEnded)
    find_check = pass_any_text

    def __init__(self, cache: ReasoningCache, backend: str, owner: str) -> None:
        self._cache = cache
        self._owner = owner
        self._backend = backend
        self._texts: list[str] = []

    def feed(self, event: Event) -> Events | None:
        if isinstance(event, ReasoningDelta):
            self._texts.append(event.text)
        elif isinstance(event, ReasoningEnded):
            text, self._texts = "".join(self._texts), []
            if text and not event.signature:
                self._cache.remember_text(self._owner, text, self._backend)
        return None


class KeepSignedReasoning:
    """A policy that stores signed reasoning by the calls that follow it, and the origin of its text."""

    handles: ClassVar[Kinds] = (ReasoningDelta, ReasoningEnded, CallStarted, TurnEnded)
    find_check = pass_any_text

    def __init__(self, cache: ReasoningCache, owner: str, entries: Sequence[Entry], backend: str = "") -> None:
        self._cache = cache
        self._owner = owner
        self._entries = entries
        self._keys: CallKeys | None = None
        self._backend = backend
        self._texts: list[str] = []
        self._all: list[str] = []  # all texts of this turn
        self._signed: tuple[ReasoningEntry, ...] = ()
        self._led = False  # whether a call followed the signed reasoning

    def feed(self, event: Event) -> Events | None:
        if isinstance(event, ReasoningDelta):
            self._texts.append(event.text)
        elif isinstance(event, ReasoningEnded):
            text, self._texts = "".join(self._texts), []
            self._all.append(text)
            if event.signature:
                shown = (text,) if text else ()
                thought = ReasoningEntry(event.id, shown, (), event.signature, event.origin, event.redacted)
                self._signed = (thought,) if self._led else (*self._signed, thought)
                self._led = False
        elif isinstance(event, CallStarted) and self._signed:
            self._keys = self._keys or CallKeys(self._owner, self._entries)
            self._cache.keep(self._keys.key(event.id, event.name), CallReasoning(self._backend, self._signed))
            self._led = True
        elif isinstance(event, TurnEnded) and (text := "".join((*self._all, *self._texts))):
            self._cache.remember_text(self._owner, text, self._backend)
        return None
