"""Sealed thoughts on behalf of clients that cannot carry them: kept by the calls they led to, and put back before them.

Chat has no place for encrypted reasoning or signatures, and a model that calls tools loses its thread without them.
What is kept is bounded, and belongs to whoever asked.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from toolwire.core.events import CallStarted, Event, ReasoningDelta, ReasoningEnded
from toolwire.core.policies import Kinds
from toolwire.core.request import CallEntry, Entry, Message, ReasoningEntry, Request

KEPT = 4096
"""Calls whose thoughts are kept; the oldest go first."""


class Thoughts:
    """What models thought before their calls, by owner and call."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], tuple[ReasoningEntry, ...]] = OrderedDict()

    def keep(self, owner: str, call_id: str, thoughts: tuple[ReasoningEntry, ...]) -> None:
        self._kept[owner, call_id] = thoughts
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def restored(self, owner: str, request: Request) -> Request:
        """The request with the thoughts of its calls in front of them."""
        if not self._kept or not any(isinstance(entry, CallEntry) for entry in request.entries):
            return request
        out: list[Entry] = []
        known: set[int] = set()  # the same thoughts led to all calls of a batch
        for entry in request.entries:
            thoughts = self._kept.get((owner, entry.id)) if isinstance(entry, CallEntry) else None
            if thoughts is not None and id(thoughts) not in known:
                known.add(id(thoughts))
                _put_back(thoughts, out)
            out.append(entry)
        return msgspec.structs.replace(request, entries=tuple(out)) if known else request


def _put_back(thoughts: tuple[ReasoningEntry, ...], out: list[Entry]) -> None:
    """Thoughts come before what was said with the calls, in place of what the client could carry of them."""
    place = len(out)
    if out and isinstance(out[-1], Message) and out[-1].role == "assistant":
        place -= 1
    if place and isinstance(out[place - 1], ReasoningEntry):
        place -= 1
        del out[place]
    out[place:place] = thoughts


class KeepThoughts:
    """A policy that keeps what is sealed for the calls that follow it."""

    handles: ClassVar[Kinds] = (ReasoningDelta, ReasoningEnded, CallStarted)

    def __init__(self, thoughts: Thoughts, owner: str) -> None:
        self._thoughts = thoughts
        self._owner = owner
        self._texts: list[str] = []
        self._sealed: tuple[ReasoningEntry, ...] = ()

    def feed(self, event: Event) -> Sequence[Event]:
        if isinstance(event, ReasoningDelta):
            self._texts.append(event.text)
        elif isinstance(event, ReasoningEnded):
            text, self._texts = "".join(self._texts), []
            if event.seal:
                shown = (text,) if text else ()
                thought = ReasoningEntry(event.id, shown, (), event.seal, event.issuer, event.redacted)
                self._sealed = (*self._sealed, thought)
        elif isinstance(event, CallStarted) and self._sealed:
            self._thoughts.keep(self._owner, event.id, self._sealed)
        return (event,)

    def end(self) -> Sequence[Event]:
        return ()
