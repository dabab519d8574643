"""Builds calls from fragments: each call gets one permanent id and name, and new content becomes events.

`call_index.py` finds the call that a fragment belongs to; `sequence.py` puts interleaved calls in sequence.

The rules, each for servers seen in the wild:

- A name may arrive whole, in fragments, repeated, late or never. It is announced once, when it is complete.
- A total adds only what was missing; text that was passed on is never taken back. If the two contradict each other,
  the call ends incomplete.
- After a lost frame no fragment is passed on: only a total closes the gap. Without one the call ends incomplete.
- Text after arguments that are complete and final is dropped.
- Repeated arguments count once; two values that differ make the call incomplete.
- Arguments that came with the start of a block count if no others follow.
- A call without arguments has the arguments `{}`.
- An item that ends without arguments waits for them until the turn ends or a final total comes.
- A block whose arguments are not JSON at its end may have been cut: the next block, or the end of the turn, decides.
"""

from collections.abc import Collection
from itertools import pairwise
from typing import NoReturn

import msgspec

from toolwire.core.cache import Cache
from toolwire.core.call_index import NULL_LIKE, CallIndex, CallRow, Fragment, are_equal, find_repetition
from toolwire.core.errors import BackendFault, Failure
from toolwire.core.events import CallArgs, CallEnded, CallStarted, CallTwin, Event, Note
from toolwire.core.sse import Frame
from toolwire.core.text import is_blank, is_json, is_same_json, split_json_values

MAX_ARGUMENT_CHARS = 64 * 1024 * 1024
"""Maximum characters of all arguments of one turn, unless configured."""


@Cache
def _unambiguous_names(names: frozenset[str]) -> frozenset[str]:
    """The names that are not a prefix of another: such a name is complete as soon as it is received."""
    ordered = sorted(names)
    continued = {name for name, following in pairwise(ordered) if following.startswith(name)}
    return names - continued


def is_fragment(text: str) -> bool:
    """Whether this text cannot begin the arguments of an open call again."""
    return not find_repetition(text) and not text.lstrip().startswith("{")


class CallTable(CallIndex):
    """Turns the fragments of one choice of a turn into call events.

    `names` are the declared tools, which tell when a name in fragments is complete. `with_items`: a `CallStarted`
    carries the id of the backend's item.
    """

    def __init__(
        self, seed: str, names: Collection[str] = (), limit: int = MAX_ARGUMENT_CHARS, *, with_items: bool = False
    ) -> None:
        super().__init__(seed, names)
        self._with_items = with_items
        self._limit = limit
        self._size = 0
        self._has_gap = False  # a frame was lost
        self._names = frozenset(names)
        self._unambiguous = _unambiguous_names[self._names]
        self._ended_block: Fragment | None = None  # the end of a call that may have been cut

    def feed(self, fragment: Fragment) -> list[Event]:
        """Read a fragment, and return what is new."""
        call = self.find(fragment)
        events: list[Event] = []
        if call is None:
            is_named = fragment.name not in self._no_name
            if not (is_named or fragment.text or fragment.total or fragment.default) and fragment.id in NULL_LIKE:
                return events  # the end of a block that is not a call
            if fragment.ended and fragment.total and (whole := self._add_whole(fragment)):
                return whole
            call = CallRow(len(self.calls), fragment.kind, early=fragment.early)
            if self._has_gap and not is_named:  # its beginning was in the lost frame
                call.gap = call.broken = True
            self.calls.append(call)
        if self.record(call, fragment):
            events.append(Note("id_reused", call.id))
        self._record_attributes(call, fragment, events)
        self._grow(call, fragment, events)
        if fragment.ended and fragment.open and fragment.complete and not call.final and call.is_blank():
            call.awaits_arguments = True
        elif fragment.ended or (call.awaits_arguments and call.final):
            self._close(call, fragment.complete, events)
        return events

    def _add_whole(self, fragment: Fragment) -> list[Event]:
        """Add a whole call that needs none of the rules, as in most plain replies; returns no events for any other."""
        if fragment.id in NULL_LIKE or fragment.id in self._by_id or fragment.kind != "function":
            return []
        is_named = fragment.name in self._names or (not self._names and fragment.name not in self._no_name)
        if not is_named or is_blank(fragment.text) or find_repetition(fragment.text):
            return []
        self._count_chars(len(fragment.text))
        call = CallRow(len(self.calls), fragment.kind, fragment.id, list_number=self._list_number, has_backend_id=True)
        call.name = call.raw_name = fragment.name
        call.namespace, call.signature, call.parts = fragment.namespace, fragment.signature, [fragment.text]
        call.fallback, call.final, call.closing = fragment.fallback, fragment.final, fragment.complete
        call.announced = call.sent = call.has_total = call.ended = True
        self.calls.append(call)
        self.record(call, fragment)
        return [self._start_event(call), CallArgs(call.id, fragment.text), CallEnded(call.id, fragment.complete)]

    def extend(self, item: str, text: str, frame: Frame | None = None) -> CallArgs | None:
        """A faster `feed` for the most frequent case: more text of an open call, found by its item."""
        return self._extend(self._by_item.get(item), text, frame)

    def extend_at(self, index: int, text: str) -> CallArgs | None:
        """The same for a call found by its index."""
        return self._extend(self._by_index.get(index), text)

    def _extend(self, call: CallRow | None, text: str, frame: Frame | None = None) -> CallArgs | None:
        if call is None or not call.sent or call.ended or call.gap or call.final or not text or call.surplus:
            return None
        if "}{" in text or (text[0] == "{" and call.parts[-1].endswith("}")):  # the arguments may be repeated
            return None
        self._size += len(text)
        if self._size > self._limit:
            self._refuse_size()
        call.parts.append(text)
        return CallArgs(call.id, text, frame)

    def extends(self, id: str) -> bool:
        """Whether more text of this call is passed on as it is, if `is_fragment` holds for it."""
        call = next((call for call in reversed(self.calls) if call.id == id), None)
        return call is not None and call.sent and not (call.ended or call.gap or call.final or call.surplus)

    def end_block(self, end: Fragment) -> list[Event]:
        """End the call of a block. If its arguments are not JSON, the end waits for `close_block`."""
        call = self.find_latest(end.item)
        if call is None or is_json(call.text) or (call.default and call.is_blank()):
            return self.feed(end)
        self._ended_block = end
        return []

    def close_block(self, *, complete: bool = True) -> list[Event]:
        """End the call that waits after `end_block`, because the model went on or the turn has ended."""
        end, self._ended_block = self._ended_block, None
        return self.feed(msgspec.structs.replace(end, complete=complete)) if end is not None else []

    def record_gap(self) -> None:
        """Record that a frame was lost: nothing more of an open call is passed on until its total arrives.

        A call whose arguments were complete is unaffected; any other ends incomplete unless a total arrives.
        """
        self._has_gap = True
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

    def settle_names(self) -> list[Event]:
        """Announce every call that has a name: all names are complete."""
        events: list[Event] = []
        for call in self.calls:
            if call.name:
                self._announce(call, events)
        return events

    def finish(self, cut: bool) -> list[Event]:
        """End every open call; it is complete only if its arguments are. `cut`: the turn ran out of tokens."""
        events: list[Event] = []
        for call in self.calls:
            is_known = call.name or call.has_backend_id or call.parts or call.gap
            if call.ended or not is_known:
                continue
            self._apply_default(call)
            complete = True if call.awaits_arguments and call.is_blank() else call.closing
            if complete is None:
                complete = call.is_whole() or (not cut and call.may_be_whole())
            call.closing = complete
            self._announce(call, events)
            self._end(call, events)
        return events

    def _record_attributes(self, call: CallRow, fragment: Fragment, events: list[Event]) -> None:
        """Record what a fragment holds besides arguments."""
        if fragment.default:
            call.default = fragment.default
        if fragment.fallback and not (call.fallback and fragment.early):
            call.fallback = fragment.fallback
        if not fragment.early or fragment.id not in NULL_LIKE:
            call.early = False
        call.final = call.final or fragment.final
        if fragment.signature and fragment.signature != call.signature:
            call.signature, call.is_signed_late = fragment.signature, call.announced
        name = fragment.name
        if name in self._no_name:
            return
        if call.announced:
            if name != call.name and name not in call.raw_name:
                call.raw_name = name  # noted once
                events.append(Note("name_changed", call.id))
            return
        if fragment.named or name.startswith(call.name):
            call.name = name
        elif call.name not in self._unambiguous:
            call.name += name
        call.namespace = call.namespace or fragment.namespace

    def _grow(self, call: CallRow, fragment: Fragment, events: list[Event]) -> None:
        new = fragment.text
        if fragment.total:
            new = self._read_total(call, new, events)
        elif new and (call.gap or (call.final and call.seems_whole())):
            if not call.broken and not new.isspace():
                events.append(Note("arguments_late", call.id))
            new = ""
        elif new and call.kind == "function" and not call.ended:
            new = self._cut_surplus(call, new)
        if new:
            if call.ended:
                events.append(Note("arguments_late", call.id))
                return
            self._count_chars(len(new))
            call.parts.append(new)
        if not call.announced and call.name and not call.early:
            is_whole_name = fragment.named or call.name in self._unambiguous or call.parts or fragment.ended
            if is_whole_name or call.closing is not None:
                self._announce(call, events)
        elif call.announced and new:
            self._send(call, new, events)
        if call.announced and call.closing is not None and not call.ended:
            self._end(call, events)

    def _cut_surplus(self, call: CallRow, text: str) -> str:
        """The text up to the end of the arguments; the rest is stored until the call ends."""
        if not call.surplus and not find_repetition(text) and not (call.parts and text.lstrip().startswith("{")):
            return text
        end: int | None = 0
        if not call.is_closed():
            assert call.first_object is not None
            end = call.first_object.feed(text)
            call.read_parts += 1  # the text becomes a part
        if end is not None and end < len(text) and (call.surplus or text[end:].lstrip().startswith("{")):
            self._count_chars(len(text) - end)
            call.surplus.append(text[end:])
            return text[:end]
        return text

    def _count_chars(self, chars: int) -> None:
        self._size += chars
        if self._size > self._limit:
            self._refuse_size()

    def _refuse_size(self) -> NoReturn:
        message = f"The arguments of this turn's calls exceed the limit of {self._limit} characters."
        raise BackendFault(Failure(502, "arguments_too_large", message))

    def _read_total(self, call: CallRow, total: str, events: list[Event]) -> str:
        """The part of a total that was missing."""
        before = call.text
        if find_repetition(total) and (values := split_json_values(total)) and are_equal(values):
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
            if had_total and not is_same_json(before, total):
                events.append(Note("arguments_differ", call.id or call.item))
            call.parts, call.first_object, call.read_parts = [], None, 0
            return total
        self._end_contradicted(call, total, events)
        return ""

    def _end_contradicted(self, call: CallRow, total: str, events: list[Event]) -> None:
        """End a call as incomplete if a total contradicts what was passed on, which cannot be taken back."""
        if call.kind == "function" and is_json(call.text):
            if is_same_json(call.text, total):
                return
            if not is_json(total):  # no reason to doubt arguments that are complete
                events.append(Note("arguments_differ", call.id))
                return
        if not call.broken or call.gap:
            events.append(Note("arguments_differ", call.id))
        call.gap, call.broken = False, True
        self._close(call, False, events)

    def _send(self, call: CallRow, new: str, events: list[Event]) -> None:
        if call.sent:
            events.append(CallArgs(call.id, new))
        elif call.kind == "custom" or not (new.isspace() or call.is_blank()):
            call.sent = True
            events.append(CallArgs(call.id, call.text))

    def _announce(self, call: CallRow, events: list[Event]) -> None:
        if call.announced:
            return
        self.assign_id(call)
        call.raw_name, call.announced = call.name, True
        if self._names and call.name and call.name not in self._names:
            # A model's control tokens are removed if that gives a declared name.
            clean = call.name.partition("<|")[0].strip().removeprefix("functions.")
            if clean in self._names:
                call.name = clean
                events.append(Note("name_cleaned", call.id))
            elif "<|" in call.name:
                events.append(Note("name_suspect", call.id))
        events.append(self._start_event(call))
        if call.parts:
            self._send(call, "", events)

    def _start_event(self, call: CallRow) -> CallStarted:
        item = call.item if self._with_items else ""
        return CallStarted(call.id, call.name, call.kind, call.namespace, item, call.signature)

    def _close(self, call: CallRow, complete: bool, events: list[Event]) -> None:
        """End a call if it has a name; otherwise its end waits for the name."""
        if call.ended:
            return
        self._apply_default(call)
        call.closing = complete
        if call.name:
            self._announce(call, events)
            self._end(call, events)

    def _apply_default(self, call: CallRow) -> None:
        """Use the arguments that came with the start if none followed."""
        if call.default and call.is_blank() and not call.sent:
            self._count_chars(len(call.default))
            call.parts, call.default = [call.default], ""

    def _end(self, call: CallRow, events: list[Event]) -> None:
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
        if call.is_signed_late:
            events.append(CallTwin(call.id, call.id, call.signature))
