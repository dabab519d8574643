"""Which call does a fragment belong to? Decided here and nowhere else.

Backends name a call in different ways: by item id, by call id, by index, by position in a list, or not at all.
A decoder states what a frame said as a `Fragment`; the `CallTable` finds the call, gives it one id and one
name for good, and returns what is new as events. Calls may interleave here; `sequence.py` puts them in a row.

Rules, all from servers that were seen to do it:

- An empty string, null or one of the words for null says nothing (`SILENT`).
- An id decides over an index: a new id under a known index is a new call, except when that call has no id yet.
- The same id under another index, with a name of its own, is another call whose id was not unique.
- One item may have several calls: a total that differs from the one it has, or another id, is another call.
- What comes before its item waits for the id and the name that the item may bring. Argument text alone is no call.
- An item that ends without arguments waits for them until the turn ends or they are said to be over.
- Without id and index a fragment continues the last call, or begins one if it has a name and the last is done.
- A name may come whole, in pieces, repeated, late or never. It is announced once, when no more of it can follow.
- A total adds only what was missing; text that was passed on is never taken back. If the two contradict each other,
  the call ends incomplete.
- Behind a lost frame no fragment is passed on: only a total closes the gap. Without one the call ends incomplete.
- What follows arguments that are whole, and were said to be all, is dropped.
- A call without arguments has the arguments `{}`.
"""

from collections.abc import Collection
from itertools import pairwise

import msgspec

from toolwire.core.cache import Cache
from toolwire.core.errors import BackendFault, Failure
from toolwire.core.events import CallArgs, CallEnded, CallKind, CallStarted, Event, Note
from toolwire.core.sse import Frame
from toolwire.core.text import is_begun_object, is_blank, is_json, same_json

LIMIT = 64 * 1024 * 1024
"""Most characters that all arguments of one turn may have, until told otherwise."""

MOST_SIBLINGS = 64
"""How many calls before its latest an item knows: some servers give all calls of a turn the same item."""

SILENT = frozenset(("", "null", "None", "undefined"))


def minted_prefix(seed: str) -> str:
    """How the ids begin that a turn with this seed makes up."""
    return f"call_{seed}"


class Fragment(msgspec.Struct, frozen=True, gc=False):
    """What one frame says about one call. A field left at its default was not said."""

    text: str = ""
    item: str = ""
    """The backend's own key for the call, if it has one beside the call's id."""
    id: str = ""
    index: int | None = None
    position: int | None = None
    """The place in the frame's list of several calls: all there is to go by when index and id are missing."""
    name: str = ""
    kind: CallKind = "function"
    total: bool = False
    """The text is all of the arguments so far, not an increment."""
    named: bool = False
    """The name is whole: no piece of it follows."""
    ended: bool = False
    complete: bool = True
    reused: bool = False
    """The id belongs to another call of the same list."""
    namespace: str = ""
    final: bool = False
    """The text is a total, and no more of it follows."""
    fallback: str = ""
    """What may be an id of the call: it counts if the call has no other."""
    seal: str = ""
    """What the server wants back with the call."""
    early: bool = False
    """It does not come with the call's item, which may still bring an id and a name."""
    open: bool = False
    """The end came without arguments, which may still follow."""


class Call:
    """One row of the table."""

    __slots__ = (
        "announced",
        "broken",
        "closing",
        "early",
        "ended",
        "fallback",
        "final",
        "gap",
        "given",
        "id",
        "index",
        "item",
        "kind",
        "name",
        "namespace",
        "ordinal",
        "parts",
        "seal",
        "sent",
        "summed",
        "waits",
    )

    def __init__(self, ordinal: int, kind: CallKind) -> None:
        self.ordinal = ordinal
        self.kind: CallKind = kind
        self.id = ""
        self.item = ""
        self.index: int | None = None
        self.name = ""
        self.namespace = ""
        self.seal = ""
        self.parts: list[str] = []
        self.given = False  # the id came from the backend
        self.announced = False
        self.early = False  # its item has not come, which may bring an id and a name
        self.fallback = ""  # an id for want of a better one
        self.sent = False  # argument text was passed on
        self.summed = False  # a total was told
        self.final = False  # the backend said that no more of the arguments follows
        self.waits = False  # the end was seen before any arguments
        self.gap = False  # a frame was lost since the last total, and it may have held more of this call
        self.broken = False  # arguments are missing behind the gap, or a total contradicts what was passed on
        self.closing: bool | None = None  # the end was seen while the name was missing; says whether complete
        self.ended = False

    @property
    def text(self) -> str:
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""

    @property
    def is_bare(self) -> bool:
        """Whether there is argument text and nothing that says that it is a call."""
        return self.early and not self.name and not self.final

    def is_blank(self) -> bool:
        return is_blank(self.text) if self.kind == "function" else not self.text

    def seems_whole(self) -> bool:
        """Whether the arguments are whole, as far as they can be without the end of the call."""
        return bool(self.parts) and self.parts[-1].rstrip().endswith("}") and is_json(self.text)

    def stands(self) -> bool:
        """Whether arguments that are not whole may be all there is: none, or something that is no JSON."""
        return not self.broken and (self.is_blank() or not is_begun_object(self.text))

    def is_whole(self) -> bool:
        return not self.broken and (self.kind == "custom" or is_json(self.text))


def _settle(names: frozenset[str]) -> frozenset[str]:
    """The names that no other name continues: when one of them is there, it is whole."""
    ordered = sorted(names)
    continued = {name for name, following in pairwise(ordered) if following.startswith(name)}
    return names - continued


_settled = Cache(_settle)


class CallTable:
    """Fragments in, call events out, for one turn of one choice.

    `names` are the declared tools, which settle a name that comes in pieces. `seed` makes minted ids unique.
    `tells_items`: a call that starts says which item of the backend it is.
    """

    def __init__(
        self, seed: str, names: Collection[str] = (), limit: int = LIMIT, *, tells_items: bool = False
    ) -> None:
        self._seed = seed
        self._tells_items = tells_items
        self._limit = limit
        self._size = 0
        self._gap = False  # a frame was lost
        self._names = frozenset(names)
        self._settled = _settled[self._names]
        self.calls: list[Call] = []
        self._by_item: dict[str, Call] = {}
        self._shared: dict[str, list[Call]] = {}  # the items that have several calls, and are not in that table
        self._by_id: dict[str, Call] = {}
        self._by_index: dict[int, Call] = {}

    def feed(self, fragment: Fragment) -> list[Event]:
        call = self._by_item.get(fragment.item)
        if call is None and fragment.ended and fragment.total and self._is_new(fragment):
            return self._add_whole(fragment)
        events: list[Event] = []
        if (
            call is None
            or fragment.reused
            or self._has_other_id(call, fragment)
            or self._is_another_total(call, fragment)
        ):
            call = self._find(fragment) or self._add(fragment, events)
        if not call.id and self._by_id.get(fragment.id, call) is not call:
            self._reuse_id(call, events)
        self._learn(call, fragment)
        self._grow(call, fragment, events)
        if fragment.ended and fragment.open and fragment.complete and not call.final and call.is_blank():
            call.waits = True
        elif fragment.ended or (call.waits and call.final):
            self._close(call, fragment.complete, events)
        return events

    def _is_new(self, fragment: Fragment) -> bool:
        """A whole call of which nothing was known: the common case where nothing is streamed."""
        if fragment.reused or fragment.index in self._by_index or fragment.id in SILENT or fragment.id in self._by_id:
            return False
        if fragment.item in self._shared:
            return False
        named = fragment.name in self._names or (not self._names and fragment.name not in SILENT)
        return named and fragment.kind == "function" and not is_blank(fragment.text)

    def _add_whole(self, fragment: Fragment) -> list[Event]:
        call = Call(len(self.calls), fragment.kind)
        self.calls.append(call)
        self._learn(call, fragment)
        self._count(len(fragment.text))
        call.parts = [fragment.text]
        call.announced = call.sent = call.summed = call.ended = True
        call.closing = fragment.complete
        return [self._started(call), CallArgs(call.id, fragment.text), CallEnded(call.id, fragment.complete)]

    def _started(self, call: Call) -> CallStarted:
        item = call.item if self._tells_items else ""
        return CallStarted(call.id, call.name, call.kind, call.namespace, item, call.seal)

    def extend(self, item: str, text: str, frame: Frame | None = None) -> CallArgs | None:
        """The same as `feed` for what comes most: more text of a call that is known by its item and under way."""
        return self._extended(self._by_item.get(item), text, frame)

    def extend_at(self, index: int, text: str) -> CallArgs | None:
        """The same for a call that is known by its index."""
        return self._extended(self._by_index.get(index), text)

    def _extended(self, call: Call | None, text: str, frame: Frame | None = None) -> CallArgs | None:
        if call is None or not call.sent or call.ended or call.gap or call.final or not text:
            return None
        self._count(len(text))
        call.parts.append(text)
        return CallArgs(call.id, text, frame)

    def gap(self) -> None:
        """A frame of the stream was lost: nothing is passed on of an open call until a total tells all of it.

        A call whose arguments were whole before lacks nothing; any other ends incomplete if no such total comes.
        """
        self._gap = True
        for call in self.calls:
            if not call.ended and not call.gap:
                call.gap = True
                call.broken = call.kind == "custom" or not is_json(call.text)

    def drop_unclaimed(self) -> list[Event]:
        """Leave out bare argument text: no item, name, id or total ever said that it is a call."""
        bare = [call for call in self.calls if call.is_bare]
        if bare:
            self.calls = [call for call in self.calls if not call.is_bare]
        return [Note("arguments_unclaimed", call.item) for call in bare]

    def ordinal(self, id: str) -> int:
        """The place of a call among all calls of the turn."""
        return self._by_id[id].ordinal

    def settle_names(self) -> list[Event]:
        """No piece of a name follows: announce every call that has one."""
        events: list[Event] = []
        for call in self.calls:
            if call.name:
                self._announce(call, events)
        return events

    def finish(self, cut: bool) -> list[Event]:
        """The turn is over: every open call ends, complete only if its arguments are. `cut`: it ran out of tokens."""
        events: list[Event] = []
        for call in self.calls:
            if call.ended or not (call.name or call.given or call.parts or call.gap):  # nothing was ever said of it
                continue
            complete = True if call.waits and call.is_blank() else call.closing
            if complete is None:
                complete = call.is_whole() or (not cut and call.stands())
            call.closing = complete
            self._announce(call, events)
            self._settle(call, events)
        return events

    def _find(self, fragment: Fragment) -> Call | None:
        given = "" if fragment.id in SILENT else fragment.id
        there = self._at_index(fragment)
        if fragment.reused:
            return there
        if fragment.item in self._shared or (there is not None and self._is_another_total(there, fragment)):
            return self._of_item(fragment)
        if given:
            call = self._by_id.get(given)
            if call is not None:
                return None if self._is_another(call, fragment) else call
            return there if there is not None and not there.given and not self._begins_again(there, fragment) else None
        if there is not None:
            return None if self._begins_again(there, fragment) else there
        if fragment.index is not None or fragment.item or not self.calls:
            return None
        return self._after_the_last(fragment)

    def _of_item(self, fragment: Fragment) -> Call | None:
        """One of several calls of an item: by its id, its name or its index, else by the text or the order."""
        given = "" if fragment.id in SILENT else fragment.id
        if given in self._by_id:
            return self._by_id[given]
        calls = [call for call in self._shared.get(fragment.item, ()) if not (given and call.given)]
        if fragment.name not in SILENT:
            calls = [call for call in calls if call.name in ("", fragment.name)]
        if fragment.index is not None and len({call.index for call in calls}) > 1:
            there = [call for call in calls if call.index == fragment.index]
            calls = there or [call for call in calls if call.index is None]
        waiting = [call for call in calls if not call.summed and not call.ended]
        if not fragment.total:
            begun = [call for call in waiting if call.parts and not call.seems_whole()]
            fresh = [call for call in waiting if not call.parts]
            return next(iter((*begun[-1:], *fresh, *calls[-1:])), None)
        alike = [call for call in calls if call.parts and fragment.text.startswith(call.text)]
        others = [call for call in calls if not fragment.final and (not call.name or is_blank(fragment.text))]
        return next(iter((*alike, *waiting, *others)), None)

    def _at_index(self, fragment: Fragment) -> Call | None:
        if fragment.index is None:
            return None
        call = self._by_index.get(fragment.index)
        if call is not None and call.item and fragment.item and call.item != fragment.item:
            # Some servers count every item as 0, others give one item a new key in every event.
            return None if fragment.name or fragment.id else call
        return call

    def _after_the_last(self, fragment: Fragment) -> Call | None:
        last = self.calls[-1]
        if not fragment.name:
            place = fragment.position
            return last if place is None or place >= len(self.calls) else self.calls[place]
        grows = not last.parts or (fragment.total and not fragment.ended and fragment.text.startswith(last.text))
        continues = not last.name or (last.name == fragment.name and grows)
        return last if continues and not last.ended else None

    def _has_other_id(self, call: Call, fragment: Fragment) -> bool:
        """Two calls in one item: the key is the same, the id is not."""
        told = bool(fragment.name) or fragment.total
        return call.given and told and fragment.id not in SILENT and fragment.id != call.id

    def _is_another_total(self, call: Call, fragment: Fragment) -> bool:
        """Two calls in one item: it has all the arguments of one of them, and now come others."""
        if not (fragment.total and fragment.item and call.summed) or is_blank(fragment.text):
            return False
        if fragment.text.startswith(call.text) or same_json(fragment.text, call.text):
            return False
        if fragment.final and not call.announced:
            return True
        said = ((fragment.name, call.name), (fragment.fallback, call.fallback), (fragment.index, call.index))
        return any(one not in (None, "") and other not in (None, "") and one != other for one, other in said)

    def _is_another(self, call: Call, fragment: Fragment) -> bool:
        if not fragment.name or fragment.index is None or call.index in (None, fragment.index):
            return False
        if not fragment.total:
            return True
        # A call that is told once more is the same. Another item with other arguments is not.
        return call.ended and bool(call.item and fragment.item) and fragment.text != call.text

    def _begins_again(self, call: Call, fragment: Fragment) -> bool:
        """A name and a fresh object after complete arguments: a second call under the same index."""
        if not (fragment.name and call.name and fragment.text.lstrip().startswith("{")) or fragment.total:
            return False
        return call.text.rstrip().endswith("}") and is_json(call.text)

    def _add(self, fragment: Fragment, events: list[Event]) -> Call:
        call = Call(len(self.calls), fragment.kind)
        self.calls.append(call)
        call.early = fragment.early
        if self._gap and fragment.name in SILENT:  # its beginning was in the lost frame
            call.gap = call.broken = True
        return call

    def _reuse_id(self, call: Call, events: list[Event]) -> None:
        """Another call has the id that this one was given."""
        self._name_id(call, "")
        events.append(Note("id_reused", call.id))

    def _learn(self, call: Call, fragment: Fragment) -> None:
        if fragment.item:
            call.item = call.item or fragment.item
            self._learn_item(call, fragment.item)
        if fragment.fallback and not (call.fallback and fragment.early):
            call.fallback = fragment.fallback
        if not fragment.early or fragment.id not in SILENT:
            call.early = False
        call.final = call.final or fragment.final
        if fragment.seal:
            call.seal = fragment.seal
        if fragment.index is not None:
            self._by_index[fragment.index] = call
            if call.index is None:
                call.index = fragment.index
        if fragment.id not in SILENT and not fragment.reused:
            self._name_id(call, fragment.id)
        if fragment.name not in SILENT and not call.announced:
            call.name = self._joined_name(call.name, fragment)
            call.namespace = call.namespace or fragment.namespace

    def _learn_item(self, call: Call, item: str) -> None:
        shared = self._shared.get(item)
        if shared is not None:
            if call not in shared:
                self._shared[item] = [*shared[-MOST_SIBLINGS:], call]
            return
        known = self._by_item.setdefault(item, call)
        if known is not call and known.item == call.item == item:
            del self._by_item[item]
            self._shared[item] = [known, call]
        else:
            self._by_item[item] = call

    def _name_id(self, call: Call, given: str) -> None:
        """Give the call an id, once. An id that comes after another was announced stays an alias."""
        if not call.id:
            fallback = "" if call.fallback in SILENT or call.fallback in self._by_id else call.fallback
            call.id = given or fallback or f"{minted_prefix(self._seed)}{call.ordinal + 1:02d}"
            call.given = bool(given)
        self._by_id.setdefault(given or call.id, call)

    def _joined_name(self, known: str, fragment: Fragment) -> str:
        name = fragment.name
        if fragment.named or not known or name.startswith(known):
            return name
        if known in self._settled:
            return known
        return known + name

    def _grow(self, call: Call, fragment: Fragment, events: list[Event]) -> None:
        new = fragment.text
        if fragment.total:
            new = self._missing(call, new, events)
        elif new and (call.gap or (call.final and call.seems_whole())):
            if not call.broken and not new.isspace():
                events.append(Note("arguments_late", call.id))
            new = ""
        if new:
            if call.ended:
                events.append(Note("arguments_late", call.id))
                return
            self._count(len(new))
            call.parts.append(new)
        if not call.announced and call.name and not call.early:
            whole = fragment.named or call.name in self._settled or call.parts or fragment.ended
            if whole or call.closing is not None:
                self._announce(call, events)
        elif call.announced and new:
            self._pass_on(call, new, events)
        if call.announced and call.closing is not None and not call.ended:
            self._settle(call, events)

    def _count(self, letters: int) -> None:
        self._size += letters
        if self._size > self._limit:
            message = f"The arguments of this turn's calls exceed the limit of {self._limit} characters."
            raise BackendFault(Failure(502, "arguments_too_large", message))

    def _missing(self, call: Call, total: str, events: list[Event]) -> str:
        known = call.text
        if not total or (call.kind == "function" and is_blank(total)):
            return ""
        fits = total.startswith(known)
        summed, call.summed = call.summed, True
        if call.gap and (fits or not call.sent):
            call.gap = call.broken = False
        if fits:
            return total[len(known) :]
        if not call.sent:
            if summed and not same_json(known, total):
                events.append(Note("arguments_differ", call.id or call.item))
            call.parts = []
            return total
        self._contradict(call, total, events)
        return ""

    def _contradict(self, call: Call, total: str, events: list[Event]) -> None:
        """What was passed on cannot be taken back: unless the total means the same, the call must not be run."""
        if call.kind == "function" and is_json(call.text):
            if same_json(call.text, total):
                return
            if not is_json(total):  # it says nothing against arguments that are whole
                events.append(Note("arguments_differ", call.id))
                return
        if not call.broken or call.gap:
            events.append(Note("arguments_differ", call.id))
        call.gap, call.broken = False, True
        self._close(call, False, events)

    def _pass_on(self, call: Call, new: str, events: list[Event]) -> None:
        if call.sent:
            events.append(CallArgs(call.id, new))
        elif call.kind == "custom" or not (new.isspace() or call.is_blank()):
            call.sent = True
            events.append(CallArgs(call.id, call.text))

    def _announce(self, call: Call, events: list[Event]) -> None:
        if call.announced:
            return
        self._name_id(call, "")
        call.name = self._cleaned(call, events)
        call.announced = True
        events.append(self._started(call))
        if call.parts:
            self._pass_on(call, "", events)

    def _cleaned(self, call: Call, events: list[Event]) -> str:
        """A name with the model's control tokens in it, cut back to a declared one."""
        name = call.name
        if not self._names or name in self._names or not name:
            return name
        clean = name.partition("<|")[0].strip().removeprefix("functions.")
        if clean in self._names:
            events.append(Note("name_cleaned", call.id))
            return clean
        if "<|" in name:
            events.append(Note("name_suspect", call.id))
        return name

    def _close(self, call: Call, complete: bool, events: list[Event]) -> None:
        if call.ended:
            return
        call.closing = complete
        if call.name:
            self._announce(call, events)
            self._settle(call, events)

    def _settle(self, call: Call, events: list[Event]) -> None:
        call.closing = complete = bool(call.closing) and not call.broken
        if not call.sent and call.kind == "function":
            text = call.text if call.text.strip() not in ("", "null") else "{}" if complete else ""
            if text:
                call.parts = [text]
                call.sent = True
                events.append(CallArgs(call.id, text))
        call.ended = True
        if call.broken and call.gap:
            events.append(Note("arguments_gap", call.id))
        events.append(CallEnded(call.id, complete, call.broken))
