"""Finds the call that a fragment belongs to. No other module decides that.

Backends identify a call in different ways: by item id, by call id, by index, by position in a list, or not at all.
A decoder turns the content of a frame into a `Fragment`; the `CallIndex` finds its call. Calls may interleave.

The rules, each for servers seen in the wild:

- An empty string, null or a word for null counts as absent (`NULL_LIKE`), unless a tool is declared under that name.
- While a call's arguments are unfinished, its item or index identifies it, and a new id without a name continues it.
  A new id with a new name, or after complete arguments, begins another call.
- The same id under another index, with a name, is another call whose id was not unique. So is an entry of a finished
  list that repeats the id of an earlier entry.
- One item may hold several calls: a second total that differs from the first is another call.
- A fragment that precedes its item waits for the item's id and name. Argument text alone is not a call.
- Without id and index a fragment continues the last call, or begins one if it has a name and the last is done.
"""

import re
from collections.abc import Collection

import msgspec

from toolwire.core.events import CallKind
from toolwire.core.text import FirstObject, is_begun_object, is_blank, is_json, is_same_json, split_json_values

MAX_CALLS_PER_ITEM = 64
"""Maximum earlier calls that are searched per item: some servers give all calls of a turn the same item."""

NULL_LIKE = frozenset(("", "null", "None", "undefined"))

find_repetition = re.compile(r"\}\s*\{").search
"""Finds where a second JSON object may begin."""


def make_id_prefix(seed: str) -> str:
    """The prefix of the ids that are minted for a turn with this seed."""
    return f"call_{seed}"


class Fragment(msgspec.Struct, frozen=True, gc=False):
    """The content of one frame about one call. A field at its default was absent."""

    text: str = ""
    item: str = ""
    """The backend's key of the item that holds the call, if it has one besides the call's id."""
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
    list_position: int = 0
    """The position among the calls of a finished list, from 1; 0 outside of one."""
    namespace: str = ""
    final: bool = False
    """The text is a total, and no more of it follows."""
    fallback: str = ""
    """An id that may be the call's, used if the call gets no other."""
    signature: str = ""
    """Opaque data that the server needs back with the call."""
    early: bool = False
    """The fragment is not part of the call's item, which may still supply an id and a name."""
    open: bool = False
    """The arguments may still follow the end of the call."""
    default: str = ""
    """The arguments to use if none follow."""


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
    """The arguments, in fragments as received."""
    surplus: list[str] = []
    """Text after the end of the arguments, which repeats or contradicts them."""
    default: str = ""
    """The arguments, if no others are received."""
    list_number: int = 0
    """Number of the finished list that it was last found in."""
    raw_name: str = ""
    """The name before it was cleaned."""
    first_object: FirstObject | None = None
    read_parts: int = 0
    """Number of `parts` that `first_object` has read."""
    has_backend_id: bool = False
    """The id came from the backend."""
    announced: bool = False
    is_signed_late: bool = False
    """Its signature came after it was announced."""
    early: bool = False
    """Its item, which may supply an id and a name, has not arrived yet."""
    fallback: str = ""
    """The id to use if no better one is received."""
    sent: bool = False
    """Argument text was passed on."""
    has_total: bool = False
    """A total was received."""
    final: bool = False
    """The backend stated that no more of the arguments follows."""
    awaits_arguments: bool = False
    """The end was seen before any arguments."""
    gap: bool = False
    """A frame was lost since the last total, and it may have held part of this call."""
    broken: bool = False
    """Arguments are missing after the gap, or a total contradicts what was passed on."""
    closing: bool | None = None
    """Whether the call is complete, once its end was seen."""
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
        """Whether the arguments are an object that has ended. Every character is read once."""
        found = self.first_object
        if found is None:
            found = self.first_object = FirstObject()
        if not found.is_closed:
            for part in self.parts[self.read_parts :]:
                found.feed(part)
            self.read_parts = len(self.parts)
        return found.is_closed

    def may_be_whole(self) -> bool:
        """Whether arguments that are not complete JSON may still be whole: they are blank, or not a cut object."""
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
            repeated = split_json_values("".join(self.surplus))
            return not repeated or not are_equal([self.text, *repeated])
        text = self.text
        return bool(find_repetition(text)) and not is_json(text) and len(split_json_values(text)) > 1


class CallIndex:
    """The calls of one turn, found by the keys in a fragment.

    `names` are the declared tools. `seed` makes minted ids unique.
    """

    def __init__(self, seed: str, names: Collection[str] = ()) -> None:
        self.calls: list[CallRow] = []
        self._seed = seed
        self._no_name = NULL_LIKE.difference(names)
        self._list_number = 0  # of the finished list that is being read
        self._listed_ids: dict[str, int] = {}  # number of its entries with each id
        self._by_item: dict[str, CallRow] = {}
        self._shared: dict[str, list[CallRow]] = {}  # items with several calls, which are not in `_by_item`
        self._by_id: dict[str, CallRow] = {}
        self._same_id: dict[str, list[CallRow]] = {}  # ids that the backend gave to several calls
        self._by_index: dict[int | None, CallRow] = {}

    def find(self, fragment: Fragment) -> CallRow | None:
        """The call that a fragment belongs to; None if it begins another one."""
        if fragment.list_position == 1:
            self._list_number += 1
            self._listed_ids = {}
        call = self._by_item.get(fragment.item)
        if call is not None and not (
            fragment.list_position
            or self._has_other_id(call, fragment)
            or self._is_another_total(call, fragment)
            or _begins_anew(call, fragment)
        ):
            return call
        given = "" if fragment.id in NULL_LIKE else fragment.id
        there = self._by_index.get(fragment.index)
        is_elsewhere = there is not None and there.item and fragment.item not in ("", there.item)
        if is_elsewhere and (fragment.name or fragment.id):
            there = None  # some servers give every item the index 0, others one item a new key in each event
        if fragment.list_position:
            return self._find_listed(fragment, given, there)
        if fragment.item in self._shared or (there is not None and self._is_another_total(there, fragment)):
            return self._find_in_item(fragment, given)
        call = self._by_id.get(given)
        if there is not None and (call is None or call.index not in (None, fragment.index)):
            return there if self._continues(there, fragment, given) else None
        if call is not None:
            other_index = fragment.name and fragment.index is not None and call.index not in (None, fragment.index)
            # The end of a call without arguments may have another index.
            is_end = fragment.total and fragment.ended and not call.ended and call.is_blank()
            return None if (other_index and not is_end) or _begins_anew(call, fragment) else call
        if fragment.index is not None or fragment.item or not self.calls:
            return None
        if not given:
            return self._find_last(fragment)
        last = self.calls[-1]
        return last if fragment.name in self._no_name and self._may_go_on(last, fragment) else None

    def record(self, call: CallRow, fragment: Fragment) -> bool:
        """Index a call under all keys in a fragment.

        Returns whether a new id was minted because the fragment's belongs to another call.
        """
        is_reused = not call.id and self._by_id.get(fragment.id, call) is not call
        if is_reused:
            self._same_id.setdefault(fragment.id, [self._by_id[fragment.id]]).append(call)
            self.assign_id(call)
        if fragment.list_position:
            call.list_number = self._list_number
        item = fragment.item
        if item:
            call.item = call.item or item
            shared = self._shared.get(item)
            previous = self._by_item.get(item, call)
            if shared is not None:
                if call not in shared:
                    self._shared[item] = [*shared[-MAX_CALLS_PER_ITEM:], call]
            elif previous is not call and previous.item == call.item == item:
                del self._by_item[item]
                self._shared[item] = [previous, call]
            else:
                self._by_item[item] = call
        if fragment.index is not None:
            self._by_index[fragment.index] = call
            if call.index is None:
                call.index = fragment.index
        if fragment.id not in NULL_LIKE:
            self.assign_id(call, fragment.id)
        return is_reused

    def assign_id(self, call: CallRow, given: str = "") -> None:
        """Give the call an id, once. An id that is received after another was announced becomes an alias."""
        if not call.id:
            call.id = given or self.id_of(call)
            call.has_backend_id = bool(given)
        self._by_id.setdefault(given or call.id, call)

    def id_of(self, call: CallRow) -> str:
        """The id of a call, or the id that it will get if none is received."""
        if call.id:
            return call.id
        fallback = "" if call.fallback in NULL_LIKE or call.fallback in self._by_id else call.fallback
        return fallback or f"{make_id_prefix(self._seed)}{call.ordinal + 1:02d}"

    def find_latest(self, item: str) -> CallRow | None:
        """The latest call in an item."""
        shared = self._shared.get(item)
        return shared[-1] if shared else self._by_item.get(item)

    def ordinal_of(self, id: str) -> int:
        """The position of a call among all calls of the turn."""
        return self._by_id[id].ordinal

    def _find_listed(self, fragment: Fragment, given: str, there: CallRow | None) -> CallRow | None:
        """The call that an entry of a finished list repeats. No two entries of one list are the same call."""
        if given:
            count = self._listed_ids[given] = self._listed_ids.get(given, 0) + 1
            if given in self._by_id:
                calls = self._same_id.get(given, [self._by_id[given]])
                return calls[count - 1] if count <= len(calls) else None
        if fragment.item in self._shared:
            call = self._find_in_item(fragment, given)
        else:
            call = self._by_item.get(fragment.item, there)
            if call is None and not given and fragment.index is None and self.calls:
                call = self._find_last(fragment)
            if call is not None and given and call.has_backend_id:
                # With another id it is the same call only in the same item, with the same name and arguments.
                same_item = fragment.item and call.item == fragment.item and call.name == fragment.name
                if not same_item or not (call.is_blank() or is_same_json(call.text, fragment.text)):
                    return None
        return call if call is not None and call.list_number != self._list_number else None

    def _find_in_item(self, fragment: Fragment, given: str) -> CallRow | None:
        """One of several calls of an item: found by id, name or index, else by the text or the order."""
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

    def _find_last(self, fragment: Fragment) -> CallRow | None:
        """The call that a fragment without id, index and item continues."""
        last = self.calls[-1]
        if not fragment.name:
            position = fragment.position
            return last if position is None or position >= len(self.calls) else self.calls[position]
        grows = not last.parts or (fragment.total and not fragment.ended and fragment.text.startswith(last.text))
        continues = not last.name or (last.name == fragment.name and grows)
        return last if continues and not last.ended else None

    def _continues(self, call: CallRow, fragment: Fragment, given: str) -> bool:
        """Whether a fragment at the index of a call belongs to it."""
        if _begins_anew(call, fragment):
            return False
        if given and call.has_backend_id and given != call.id and self._by_id.get(given) is not call:
            return self._may_go_on(call, fragment)
        # A name and a new object after complete arguments are a second call under the same index.
        is_start = fragment.name and call.name and not fragment.total and fragment.text.lstrip().startswith("{")
        return given == call.id or not (is_start and call.is_closed())

    def _may_go_on(self, call: CallRow, fragment: Fragment) -> bool:
        """Whether a fragment with a new id continues this call: some servers mint an id for every fragment."""
        if call.ended:
            return False
        is_named = fragment.name not in self._no_name
        if is_named and call.name and fragment.name != call.name:
            return False
        if fragment.total:
            if is_blank(fragment.text) or call.is_blank():
                return fragment.ended or not is_named
            return fragment.text.startswith(call.text) or is_same_json(fragment.text, call.text)
        if not is_named:
            return not fragment.text or not call.is_closed()
        return not (call.is_blank() or fragment.text.lstrip().startswith("{") or call.is_closed())

    def _has_other_id(self, call: CallRow, fragment: Fragment) -> bool:
        """Whether this is a second call of one item: the same key, and an id that is not an alias of this call."""
        if not (fragment.name or fragment.total) or fragment.id in NULL_LIKE or fragment.id == call.id:
            return False
        return call.has_backend_id and self._by_id.get(fragment.id) is not call and not self._may_go_on(call, fragment)

    def _is_another_total(self, call: CallRow, fragment: Fragment) -> bool:
        """Whether this is a second call of one item: its total differs from the complete arguments of the first."""
        if not (fragment.total and fragment.item and call.has_total) or is_blank(fragment.text):
            return False
        if fragment.text.startswith(call.text) or is_same_json(fragment.text, call.text):
            return False
        if fragment.final and not call.announced:
            return True
        pairs = ((fragment.name, call.name), (fragment.fallback, call.fallback), (fragment.index, call.index))
        return any(one not in (None, "") and other not in (None, "") and one != other for one, other in pairs)


def _begins_anew(call: CallRow, fragment: Fragment) -> bool:
    """Whether a block starts under the key of a call that has ended: some servers give all blocks one index."""
    is_start = fragment.name not in NULL_LIKE and not (fragment.total or fragment.text or fragment.early)
    return call.ended and is_start


def are_equal(values: list[str]) -> bool:
    """Whether all of these JSON texts are the same value."""
    return all(is_same_json(values[0], value) for value in values[1:])
