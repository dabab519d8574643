"""Which call does a fragment belong to? Decided here and nowhere else.

Backends identify a call in different ways: by item id, by call id, by index, by position in a list, or not at all.
A decoder states what a frame says as a `Fragment`; the `CallTable` finds the call, gives it one id and one name for
good, and returns what is new as events. Calls may interleave here; `sequence.py` puts them in sequence.

Rules, each for servers that were seen to do it:

- An empty string, null or a word for null counts as absent (`NULL_LIKE`), unless a tool is declared under that name.
- An item or an index whose arguments are open is the call; ids are its attributes. A new id beside no name and
  unfinished arguments continues it. A new id beside a new name, or after whole arguments, begins another call.
- The same id under another index, with a name, is another call whose id was not unique. So is an entry of a finished
  list whose id an earlier entry of that list has.
- One item may have several calls: a total that differs from the one it has is another call.
- A fragment before its item waits for the id and the name that the item may bring. Argument text alone is no call.
- An item that ends without arguments waits for them until the turn ends or a final total comes.
- Without id and index a fragment continues the last call, or begins one if it has a name and the last is done.
- A name may come whole, in fragments, repeated, late or never. It is announced once, when no more of it can follow.
- A total adds only what was missing; text that was passed on is never taken back. If the two contradict each other,
  the call ends incomplete.
- After a lost frame no fragment is passed on: only a total closes the gap. Without one the call ends incomplete.
- What follows arguments that are complete and final is dropped.
- Arguments that are said twice are said once; two values that differ make the call incomplete.
- Arguments that came with the start of a block count if no others follow.
- A call without arguments has the arguments `{}`.
"""

import re
from collections.abc import Collection
from itertools import pairwise
from typing import NoReturn

import msgspec

from toolwire.core.cache import Cache
from toolwire.core.errors import BackendFault, Failure
from toolwire.core.events import CallArgs, CallEnded, CallKind, CallStarted, Event, Note
from toolwire.core.sse import Frame
from toolwire.core.text import FirstObject, is_begun_object, is_blank, is_json, json_values, same_json

LIMIT = 64 * 1024 * 1024
"""Most characters that all arguments of one turn may have, unless configured."""

MAX_SIBLINGS = 64
"""How many earlier calls are kept per item: some servers give all calls of a turn the same item."""

NULL_LIKE = frozenset(("", "null", "None", "undefined"))


def minted_prefix(seed: str) -> str:
    """The prefix of the ids that are made up for a turn with this seed."""
    return f"call_{seed}"


class Fragment(msgspec.Struct, frozen=True, gc=False):
    """What one frame says about one call. A field at its default was absent."""

    text: str = ""
    item: str = ""
    """The backend's key of the item that holds the call, if it has one beside the call's id."""
    id: str = ""
    index: int | None = None
    position: int | None = None
    """The position in the frame's list of several calls, used when index and id are missing."""
    name: str = ""
    kind: CallKind = "function"
    total: bool = False
    """The text is all of the arguments so far, not an increment."""
    named: bool = False
    """The name is complete: no fragment of it follows."""
    ended: bool = False
    complete: bool = True
    place: int = 0
    """The position among the calls of a finished list, from 1; 0 outside of one."""
    namespace: str = ""
    final: bool = False
    """The text is a total, and no more of it follows."""
    fallback: str = ""
    """An id that may be the call's, used if the call gets no other."""
    signature: str = ""
    """Opaque data that the server needs back with the call."""
    early: bool = False
    """The fragment is not part of the call's item, which may still bring an id and a name."""
    open: bool = False
    """The call may have ended without its arguments, which may still follow."""
    default: str = ""
    """All of the arguments, if none follow."""


class CallRow(msgspec.Struct, eq=False):
    """One row of the table: what is known of one call."""

    ordinal: int
    kind: CallKind
    id: str = ""
    item: str = ""
    index: int | None = None
    name: str = ""
    namespace: str = ""
    signature: str = ""
    parts: list[str] = []
    """The arguments, as they came."""
    surplus: list[str] = []
    """Text behind the end of the arguments, which repeats or contradicts them."""
    default: str = ""
    """The arguments, if none come."""
    list_number: int = 0
    """The finished list that it was last found in."""
    raw_name: str = ""
    """The name before it was cleaned."""
    first_object: FirstObject | None = None
    read_parts: int = 0
    """How many of `parts` were read for it."""
    has_backend_id: bool = False
    """The id came from the backend."""
    announced: bool = False
    early: bool = False
    """Its item, which may bring an id and a name, has not come."""
    fallback: str = ""
    """An id to use if no better one comes."""
    sent: bool = False
    """Argument text was passed on."""
    has_total: bool = False
    """A total was received."""
    final: bool = False
    """The backend stated that no more of the arguments follows."""
    awaits_arguments: bool = False
    """The end was seen before any arguments."""
    gap: bool = False
    """A frame was lost since the last total, and it may have held more of this call."""
    broken: bool = False
    """Arguments are missing after the gap, or a total contradicts what was passed on."""
    closing: bool | None = None
    """The end was seen while the name was missing: whether it is complete."""
    ended: bool = False

    @property
    def text(self) -> str:
        """All arguments so far."""
        if len(self.parts) > 1:
            if self.first_object is not None:
                self.is_closed()
                self.read_parts = 1
            self.parts = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""

    @property
    def is_bare(self) -> bool:
        """Whether there is argument text and nothing that identifies it as a call."""
        return self.early and not (self.name or self.final or self.gap)

    def is_blank(self) -> bool:
        """Whether there are no arguments."""
        return is_blank(self.text) if self.kind == "function" else not self.text

    def seems_whole(self) -> bool:
        """Whether the arguments are complete JSON, though the call has not ended."""
        return bool(self.parts) and self.parts[-1].rstrip().endswith("}") and is_json(self.text)

    def is_closed(self) -> bool:
        """Whether the arguments are an object that has ended. Every character is looked at once."""
        found = self.first_object
        if found is None:
            found = self.first_object = FirstObject()
        if not found.is_closed:
            for part in self.parts[self.read_parts :]:
                found.feed(part)
            self.read_parts = len(self.parts)
        return found.is_closed

    def may_be_all(self) -> bool:
        """Whether arguments that are not complete JSON may be all there are: none, or text that is not JSON at all."""
        if self.broken or self.contradicts_itself():
            return False
        return self.is_blank() or not is_begun_object(self.text)

    def is_whole(self) -> bool:
        """Whether the arguments are complete and nothing is missing."""
        if self.broken or (self.surplus and self.contradicts_itself()):
            return False
        return self.kind == "custom" or is_json(self.text)

    def contradicts_itself(self) -> bool:
        """Whether the arguments are several JSON values that are not all equal."""
        if self.kind == "custom":
            return False
        if self.surplus:
            repeated = json_values("".join(self.surplus))
            return not repeated or not _are_equal([self.text, *repeated])
        text = self.text
        return bool(_REPEATS.search(text)) and not is_json(text) and len(json_values(text)) > 1


def _settle(names: frozenset[str]) -> frozenset[str]:
    """The names that are no prefix of another: one of them is complete as soon as it is there."""
    ordered = sorted(names)
    continued = {name for name, following in pairwise(ordered) if following.startswith(name)}
    return names - continued


_settled = Cache(_settle)


class CallTable:
    """Fragments in, call events out, for one turn of one choice.

    `names` are the declared tools, which tell when a name in fragments is complete. `seed` makes minted ids unique.
    `with_items`: a `CallStarted` carries the id of the backend's item.
    """

    def __init__(self, seed: str, names: Collection[str] = (), limit: int = LIMIT, *, with_items: bool = False) -> None:
        self._seed = seed
        self._with_items = with_items
        self._limit = limit
        self._size = 0
        self._gap = False  # a frame was lost
        self._names = frozenset(names)
        self._settled = _settled[self._names]
        self._no_name = NULL_LIKE - self._names
        self.calls: list[CallRow] = []
        self._list_number = 0  # of the finished list that is being read
        self._listed_ids: dict[str, int] = {}  # how many of its entries have each id
        self._by_item: dict[str, CallRow] = {}
        self._shared: dict[str, list[CallRow]] = {}  # items with several calls, which are not in `_by_item`
        self._by_id: dict[str, CallRow] = {}
        self._same_id: dict[str, list[CallRow]] = {}  # ids that several calls came with
        self._by_index: dict[int, CallRow] = {}

    def feed(self, fragment: Fragment) -> list[Event]:
        if fragment.place == 1:
            self._list_number += 1
            self._listed_ids = {}
        call = self._by_item.get(fragment.item)
        if call is None and fragment.ended and fragment.total and self._is_new(fragment):
            return self._add_whole(fragment)
        events: list[Event] = []
        if (
            call is None
            or fragment.place
            or self._has_other_id(call, fragment)
            or self._is_another_total(call, fragment)
            or _begins_anew(call, fragment)
        ):
            call = self._find(fragment)
            if call is None:
                if (
                    not (fragment.text or fragment.total or fragment.default)
                    and fragment.id in NULL_LIKE
                    and fragment.name in self._no_name
                ):
                    return events  # the end of a block that is no call
                call = self._add(fragment)
        if not call.id and self._by_id.get(fragment.id, call) is not call:  # another call has the id that came with it
            self._same_id.setdefault(fragment.id, [self._by_id[fragment.id]]).append(call)
            self._assign_id(call, "")
            events.append(Note("id_reused", call.id))
        self._learn(call, fragment, events)
        self._grow(call, fragment, events)
        if fragment.ended and fragment.open and fragment.complete and not call.final and call.is_blank():
            call.awaits_arguments = True
        elif fragment.ended or (call.awaits_arguments and call.final):
            self._close(call, fragment.complete, events)
        return events

    def _is_new(self, fragment: Fragment) -> bool:
        """Whether this is a whole call that was not seen before: the common case of a plain reply."""
        if fragment.index in self._by_index or fragment.id in NULL_LIKE or fragment.id in self._by_id:
            return False
        if fragment.item in self._shared:
            return False
        named = fragment.name in self._names or (not self._names and fragment.name not in self._no_name)
        return named and fragment.kind == "function" and not (is_blank(fragment.text) or _REPEATS.search(fragment.text))

    def _add_whole(self, fragment: Fragment) -> list[Event]:
        call = CallRow(len(self.calls), fragment.kind, list_number=self._list_number)
        self.calls.append(call)
        if fragment.item:
            call.item = fragment.item
            self._by_item[fragment.item] = call
        if fragment.index is not None:
            call.index = fragment.index
            self._by_index[fragment.index] = call
        call.id, call.has_backend_id = fragment.id, True
        self._by_id[fragment.id] = call
        call.name, call.raw_name, call.namespace = fragment.name, fragment.name, fragment.namespace
        call.fallback, call.final, call.signature = fragment.fallback, fragment.final, fragment.signature
        if fragment.place:
            self._listed_ids[fragment.id] = 1
        self._count(len(fragment.text))
        call.parts = [fragment.text]
        call.announced = call.sent = call.has_total = call.ended = True
        call.closing = fragment.complete
        return [self._started(call), CallArgs(call.id, fragment.text), CallEnded(call.id, fragment.complete)]

    def _started(self, call: CallRow) -> CallStarted:
        item = call.item if self._with_items else ""
        return CallStarted(call.id, call.name, call.kind, call.namespace, item, call.signature)

    def extend(self, item: str, text: str, frame: Frame | None = None) -> CallArgs | None:
        """The same as `feed` for the most frequent case: more text of an open call, found by its item."""
        return self._extended(self._by_item.get(item), text, frame)

    def extend_at(self, index: int, text: str) -> CallArgs | None:
        """The same for a call found by its index."""
        return self._extended(self._by_index.get(index), text)

    def _extended(self, call: CallRow | None, text: str, frame: Frame | None = None) -> CallArgs | None:
        if call is None or not call.sent or call.ended or call.gap or call.final or not text or call.surplus:
            return None
        if "}{" in text or (text[0] == "{" and call.parts[-1].endswith("}")):  # perhaps they are repeated
            return None
        self._size += len(text)
        if self._size > self._limit:
            self._refuse_size()
        call.parts.append(text)
        return CallArgs(call.id, text, frame)

    def gap(self) -> None:
        """Note that a frame was lost: nothing more of an open call is passed on until a total of it comes.

        A call whose arguments were complete before lacks nothing; any other ends incomplete if no total comes.
        """
        self._gap = True
        for call in self.calls:
            if not call.ended and not call.gap:
                call.gap = True
                call.broken = call.kind == "custom" or not is_json(call.text)

    def drop_unclaimed(self) -> list[Event]:
        """Drop argument text that no item, name, id or total ever identified as a call."""
        bare = [call for call in self.calls if call.is_bare]
        if bare:
            self.calls = [call for call in self.calls if not call.is_bare]
        return [Note("arguments_unclaimed", call.item) for call in bare]

    def in_item(self, item: str) -> CallRow | None:
        """The latest call in an item."""
        shared = self._shared.get(item)
        return shared[-1] if shared else self._by_item.get(item)

    def ordinal(self, id: str) -> int:
        """The position of a call among all calls of the turn."""
        return self._by_id[id].ordinal

    def id_of(self, call: CallRow) -> str:
        """The id of a call; for one that waits for it, the id that it gets if no other comes."""
        if call.id:
            return call.id
        fallback = "" if call.fallback in NULL_LIKE or call.fallback in self._by_id else call.fallback
        return fallback or f"{minted_prefix(self._seed)}{call.ordinal + 1:02d}"

    def settle_names(self) -> list[Event]:
        """Announce every call that has a name, because no more of it follows."""
        events: list[Event] = []
        for call in self.calls:
            if call.name:
                self._announce(call, events)
        return events

    def finish(self, cut: bool) -> list[Event]:
        """End every open call, complete only if its arguments are. `cut`: the turn ran out of tokens."""
        events: list[Event] = []
        for call in self.calls:
            if call.ended or not (
                call.name or call.has_backend_id or call.parts or call.gap
            ):  # nothing was ever said of it
                continue
            self._use_default(call)
            complete = True if call.awaits_arguments and call.is_blank() else call.closing
            if complete is None:
                complete = call.is_whole() or (not cut and call.may_be_all())
            call.closing = complete
            self._announce(call, events)
            self._settle(call, events)
        return events

    def _find(self, fragment: Fragment) -> CallRow | None:
        given = "" if fragment.id in NULL_LIKE else fragment.id
        there = self._at_index(fragment)
        if fragment.place:
            return self._find_listed(fragment, given, there)
        if fragment.item in self._shared or (there is not None and self._is_another_total(there, fragment)):
            return self._of_item(fragment)
        call = self._by_id.get(given)
        if there is not None and (call is None or call.index not in (None, fragment.index)):
            return there if self._continues(there, fragment, given) else None
        if call is not None:
            return None if self._is_another(call, fragment) or _begins_anew(call, fragment) else call
        if fragment.index is not None or fragment.item or not self.calls:
            return None
        if not given:
            return self._after_the_last(fragment)
        last = self.calls[-1]
        return last if fragment.name in self._no_name and self._goes_on(last, fragment) else None

    def _find_listed(self, fragment: Fragment, given: str, there: CallRow | None) -> CallRow | None:
        """The call that an entry of a finished list repeats. No two entries of one list are the same call."""
        if given:
            count = self._listed_ids[given] = self._listed_ids.get(given, 0) + 1
            if given in self._by_id:
                calls = self._same_id.get(given, [self._by_id[given]])
                return calls[count - 1] if count <= len(calls) else None
        if fragment.item in self._shared:
            call = self._of_item(fragment)
        else:
            call = self._by_item.get(fragment.item, there)
            if call is None and not given and fragment.index is None and self.calls:
                call = self._after_the_last(fragment)
            if call is not None and given and call.has_backend_id and not self._repeats(call, fragment):
                return None
        return call if call is not None and call.list_number != self._list_number else None

    def _repeats(self, call: CallRow, fragment: Fragment) -> bool:
        """Whether an entry with another id is a call of the same item, with the same name and arguments."""
        same_item = bool(fragment.item) and call.item == fragment.item and call.name == fragment.name
        return same_item and (call.is_blank() or same_json(call.text, fragment.text))

    def _continues(self, call: CallRow, fragment: Fragment, given: str) -> bool:
        """Whether a fragment at the index of a call belongs to it."""
        if _begins_anew(call, fragment):
            return False
        if given and call.has_backend_id and given != call.id and self._by_id.get(given) is not call:
            return self._goes_on(call, fragment)
        return given == call.id or not self._begins_again(call, fragment)

    def _goes_on(self, call: CallRow, fragment: Fragment) -> bool:
        """Whether a fragment with a new id continues this call: some servers make up an id for every fragment."""
        if call.ended:
            return False
        is_named = fragment.name not in self._no_name
        if is_named and call.name and fragment.name != call.name:
            return False
        if fragment.total:
            if is_blank(fragment.text) or call.is_blank():
                return fragment.ended or not is_named
            return fragment.text.startswith(call.text) or same_json(fragment.text, call.text)
        if not is_named:
            return not fragment.text or not call.is_closed()
        return not (call.is_blank() or fragment.text.lstrip().startswith("{") or call.is_closed())

    def _of_item(self, fragment: Fragment) -> CallRow | None:
        """One of several calls of an item: found by id, name or index, else by the text or the order."""
        given = "" if fragment.id in NULL_LIKE else fragment.id
        if given in self._by_id:
            return self._by_id[given]
        calls = [call for call in self._shared.get(fragment.item, ()) if not (given and call.has_backend_id)]
        if fragment.name not in self._no_name:
            calls = [call for call in calls if call.name in ("", fragment.name)]
        if fragment.index is not None and len({call.index for call in calls}) > 1:
            there = [call for call in calls if call.index == fragment.index]
            calls = there or [call for call in calls if call.index is None]
        waiting = [call for call in calls if not call.has_total and not call.ended]
        if not fragment.total:
            begun = [call for call in waiting if call.parts and not call.seems_whole()]
            fresh = [call for call in waiting if not call.parts]
            return next(iter((*begun[-1:], *fresh, *calls[-1:])), None)
        alike = [call for call in calls if call.parts and fragment.text.startswith(call.text)]
        others = [call for call in calls if not fragment.final and (not call.name or is_blank(fragment.text))]
        return next(iter((*alike, *waiting, *others)), None)

    def _at_index(self, fragment: Fragment) -> CallRow | None:
        if fragment.index is None:
            return None
        call = self._by_index.get(fragment.index)
        if call is not None and call.item and fragment.item and call.item != fragment.item:
            # Some servers count every item as 0, others give one item a new key in every event.
            return None if fragment.name or fragment.id else call
        return call

    def _after_the_last(self, fragment: Fragment) -> CallRow | None:
        last = self.calls[-1]
        if not fragment.name:
            position = fragment.position
            return last if position is None or position >= len(self.calls) else self.calls[position]
        grows = not last.parts or (fragment.total and not fragment.ended and fragment.text.startswith(last.text))
        continues = not last.name or (last.name == fragment.name and grows)
        return last if continues and not last.ended else None

    def _has_other_id(self, call: CallRow, fragment: Fragment) -> bool:
        """Whether this is a second call of one item: the same key, and an id that is not another one of this call."""
        if not (fragment.name or fragment.total) or fragment.id in NULL_LIKE or fragment.id == call.id:
            return False
        return call.has_backend_id and self._by_id.get(fragment.id) is not call and not self._goes_on(call, fragment)

    def _is_another_total(self, call: CallRow, fragment: Fragment) -> bool:
        """Whether this is a second call of one item: its total differs from the complete arguments of the first."""
        if not (fragment.total and fragment.item and call.has_total) or is_blank(fragment.text):
            return False
        if fragment.text.startswith(call.text) or same_json(fragment.text, call.text):
            return False
        if fragment.final and not call.announced:
            return True
        pairs = ((fragment.name, call.name), (fragment.fallback, call.fallback), (fragment.index, call.index))
        return any(one not in (None, "") and other not in (None, "") and one != other for one, other in pairs)

    def _is_another(self, call: CallRow, fragment: Fragment) -> bool:
        if not fragment.name or fragment.index is None or call.index in (None, fragment.index):
            return False
        # The end of a call that has only begun may have another index.
        return not (fragment.total and fragment.ended) or call.ended or not call.is_blank()

    def _begins_again(self, call: CallRow, fragment: Fragment) -> bool:
        """Whether a name and a new object follow complete arguments: a second call under the same index."""
        if not (fragment.name and call.name and fragment.text.lstrip().startswith("{")) or fragment.total:
            return False
        return call.is_closed()

    def _add(self, fragment: Fragment) -> CallRow:
        call = CallRow(len(self.calls), fragment.kind)
        self.calls.append(call)
        call.early = fragment.early
        if self._gap and fragment.name in self._no_name:  # its beginning was in the lost frame
            call.gap = call.broken = True
        return call

    def _learn(self, call: CallRow, fragment: Fragment, events: list[Event]) -> None:
        if fragment.place:
            call.list_number = self._list_number
        if fragment.default:
            call.default = fragment.default
        if fragment.item:
            call.item = call.item or fragment.item
            self._learn_item(call, fragment.item)
        if fragment.fallback and not (call.fallback and fragment.early):
            call.fallback = fragment.fallback
        if not fragment.early or fragment.id not in NULL_LIKE:
            call.early = False
        call.final = call.final or fragment.final
        if fragment.signature:
            call.signature = fragment.signature
        if fragment.index is not None:
            self._by_index[fragment.index] = call
            if call.index is None:
                call.index = fragment.index
        if fragment.id not in NULL_LIKE:
            self._assign_id(call, fragment.id)
        if fragment.name not in self._no_name:
            self._learn_name(call, fragment, events)

    def _learn_name(self, call: CallRow, fragment: Fragment, events: list[Event]) -> None:
        if not call.announced:
            call.name = self._joined_name(call.name, fragment)
            call.namespace = call.namespace or fragment.namespace
        elif fragment.name != call.name and fragment.name not in call.raw_name:
            call.raw_name = fragment.name  # noted once
            events.append(Note("name_changed", call.id))

    def _learn_item(self, call: CallRow, item: str) -> None:
        shared = self._shared.get(item)
        if shared is not None:
            if call not in shared:
                self._shared[item] = [*shared[-MAX_SIBLINGS:], call]
            return
        previous = self._by_item.setdefault(item, call)
        if previous is not call and previous.item == call.item == item:
            del self._by_item[item]
            self._shared[item] = [previous, call]
        else:
            self._by_item[item] = call

    def _assign_id(self, call: CallRow, given: str) -> None:
        """Give the call an id, once. An id that comes after another was announced becomes an alias."""
        if not call.id:
            call.id = given or self.id_of(call)
            call.has_backend_id = bool(given)
        self._by_id.setdefault(given or call.id, call)

    def _joined_name(self, before: str, fragment: Fragment) -> str:
        name = fragment.name
        if fragment.named or not before or name.startswith(before):
            return name
        if before in self._settled:
            return before
        return before + name

    def _grow(self, call: CallRow, fragment: Fragment, events: list[Event]) -> None:
        new = fragment.text
        if fragment.total:
            new = self._missing(call, new, events)
        elif new and (call.gap or (call.final and call.seems_whole())):
            if not call.broken and not new.isspace():
                events.append(Note("arguments_late", call.id))
            new = ""
        elif new and call.kind == "function" and not call.ended:
            new = self._without_surplus(call, new)
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

    def _without_surplus(self, call: CallRow, text: str) -> str:
        """The text up to the end of the arguments; what follows that is kept until the call ends."""
        if not call.surplus and not _REPEATS.search(text) and not (call.parts and text.lstrip().startswith("{")):
            return text
        end = 0 if call.is_closed() else self._end_of_arguments(call, text)
        if end < len(text) and (call.surplus or text[end:].lstrip().startswith("{")):
            self._count(len(text) - end)
            call.surplus.append(text[end:])
            return text[:end]
        return text

    def _end_of_arguments(self, call: CallRow, text: str) -> int:
        assert call.first_object is not None
        end = call.first_object.feed(text)
        call.read_parts += 1  # the text becomes a part
        return len(text) if end is None else end

    def _count(self, chars: int) -> None:
        self._size += chars
        if self._size > self._limit:
            self._refuse_size()

    def _refuse_size(self) -> NoReturn:
        message = f"The arguments of this turn's calls exceed the limit of {self._limit} characters."
        raise BackendFault(Failure(502, "arguments_too_large", message))

    def _missing(self, call: CallRow, total: str, events: list[Event]) -> str:
        before = call.text
        if _REPEATS.search(total) and (values := json_values(total)) and _are_equal(values):
            total = values[0]
        if not total or (call.kind == "function" and is_blank(total)):
            return ""
        fits = total.startswith(before)
        had_total, call.has_total = call.has_total, True
        if call.gap and (fits or not call.sent):
            call.gap = call.broken = False
        if fits:
            return total[len(before) :]
        if not call.sent:
            if had_total and not same_json(before, total):
                events.append(Note("arguments_differ", call.id or call.item))
            call.parts, call.first_object, call.read_parts = [], None, 0
            return total
        self._contradict(call, total, events)
        return ""

    def _contradict(self, call: CallRow, total: str, events: list[Event]) -> None:
        """End a call as incomplete if a total contradicts what was passed on, which cannot be taken back."""
        if call.kind == "function" and is_json(call.text):
            if same_json(call.text, total):
                return
            if not is_json(total):  # no reason to doubt arguments that are complete
                events.append(Note("arguments_differ", call.id))
                return
        if not call.broken or call.gap:
            events.append(Note("arguments_differ", call.id))
        call.gap, call.broken = False, True
        self._close(call, False, events)

    def _pass_on(self, call: CallRow, new: str, events: list[Event]) -> None:
        if call.sent:
            events.append(CallArgs(call.id, new))
        elif call.kind == "custom" or not (new.isspace() or call.is_blank()):
            call.sent = True
            events.append(CallArgs(call.id, call.text))

    def _announce(self, call: CallRow, events: list[Event]) -> None:
        if call.announced:
            return
        self._assign_id(call, "")
        call.raw_name, call.name = call.name, self._cleaned(call, events)
        call.announced = True
        events.append(self._started(call))
        if call.parts:
            self._pass_on(call, "", events)

    def _cleaned(self, call: CallRow, events: list[Event]) -> str:
        """The name without a model's control tokens, if that gives a declared name."""
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

    def _close(self, call: CallRow, complete: bool, events: list[Event]) -> None:
        if call.ended:
            return
        self._use_default(call)
        call.closing = complete
        if call.name:
            self._announce(call, events)
            self._settle(call, events)

    def _use_default(self, call: CallRow) -> None:
        """Take the arguments that came with the start, if no others did."""
        if call.default and call.is_blank() and not call.sent:
            self._count(len(call.default))
            call.parts, call.default = [call.default], ""

    def _settle(self, call: CallRow, events: list[Event]) -> None:
        if call.contradicts_itself():
            events.append(Note("arguments_differ", call.id))
            call.broken = True
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


_REPEATS = re.compile(r"\}\s*\{")
"""Where a second value may begin."""


def _begins_anew(call: CallRow, fragment: Fragment) -> bool:
    """Whether a block starts where a call has ended: some servers give all of them one index."""
    is_start = fragment.name not in NULL_LIKE and not (fragment.total or fragment.text or fragment.early)
    return call.ended and is_start


def _are_equal(values: list[str]) -> bool:
    return all(same_json(values[0], value) for value in values[1:])
