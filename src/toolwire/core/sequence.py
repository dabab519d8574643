"""Puts interleaved calls in sequence: one call at a time, with no other output between its start and its end.

When another event arrives inside an open call, the call's arguments are tested once. If they are complete JSON, the
call ends and later events pass at once; otherwise they are held back until the call ends.
"""

from toolwire.core.errors import BackendFault, Failure
from toolwire.core.events import CallArgs, CallEnded, CallStarted, Event, Note, RawFrame, TurnEnded, TurnFailed, Usage
from toolwire.core.text import is_json

MAX_HELD_CHARS = 32 * 1024 * 1024
"""Maximum characters that are held back behind an open call."""


class OneCallAtATime:
    """A stage that puts interleaved calls in sequence without losing an event."""

    def __init__(self, limit: int = MAX_HELD_CHARS) -> None:
        self._limit = limit
        self._open: CallStarted | None = None
        self._parts: list[str] = []
        self._tested = False
        self._early: set[str] = set()  # calls that were ended here before the backend ended them
        self._queue: list[list[Event]] = []  # held events: those of a call so far, or one other event
        self._queued: dict[str, list[Event]] = {}  # the calls among them
        self.held = 0
        """Characters that are held back."""

    def feed(self, event: Event) -> list[Event]:
        current = self._open
        if current is None:
            if isinstance(event, CallStarted):
                self._start(event)
            elif self._early and isinstance(event, CallArgs | CallEnded):
                return self._drop_late(event)
            return [event]
        if isinstance(event, CallArgs) and event.id == current.id:
            self._parts.append(event.text)
            return [event]
        if isinstance(event, CallEnded) and event.id == current.id:
            self._open = None
            return [event, *self._release()]
        if isinstance(event, Note | RawFrame | Usage | TurnEnded | TurnFailed):
            return [event]
        if isinstance(event, CallArgs | CallEnded) and event.id in self._early:
            return self._drop_late(event)
        if self._is_over(current):
            self._open = None
            self._early.add(current.id)
            return [CallEnded(current.id), *self.feed(event)]
        self._hold(event)
        return []

    def _start(self, event: CallStarted) -> None:
        self._open = event
        self._parts = []
        self._tested = False

    def _drop_late(self, event: CallArgs | CallEnded) -> list[Event]:
        if event.id not in self._early:
            return [event]
        if isinstance(event, CallArgs) and event.text.strip():
            return [Note("arguments_late", event.id)]
        return []

    def _is_over(self, current: CallStarted) -> bool:
        if self._tested or current.kind == "custom":
            return False
        self._tested = True
        return is_json("".join(self._parts))

    def _hold(self, event: Event) -> None:
        if isinstance(event, CallArgs | CallEnded):
            self._queued[event.id].append(event)
            if isinstance(event, CallEnded):
                return
        else:
            entry = [event]
            self._queue.append(entry)
            if isinstance(event, CallStarted):
                self._queued[event.id] = entry
        self.held += len(getattr(event, "text", ""))
        if self.held > self._limit:
            message = f"More than {self._limit} characters wait behind a call that does not end."
            raise BackendFault(Failure(502, "call_too_large", message))

    def _release(self) -> list[Event]:
        """Release held events, up to and including the first call that has not ended."""
        out: list[Event] = []
        queue, self._queue = self._queue, []
        for index, entry in enumerate(queue):
            out += entry
            self.held -= sum(len(getattr(event, "text", "")) for event in entry)
            if not isinstance(entry[0], CallStarted):
                continue
            call = entry[0]
            del self._queued[call.id]
            if isinstance(entry[-1], CallEnded):
                continue
            self._start(call)
            self._parts = [event.text for event in entry if isinstance(event, CallArgs)]
            rest = queue[index + 1 :]
            if rest and self._is_over(call):
                self._open = None
                self._early.add(call.id)
                out.append(CallEnded(call.id))
                continue
            self._queue = rest
            return out
        return out
