"""Policies: stages that change a turn's events by decision, each named after its decision.

A policy says in `handles` which events it wants to see; the others pass it by, which keeps the hot path short. One that
has seen enough ends the turn; `Policies` is then `closed`, lets nothing more pass, and whoever reads the backend stops.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import ClassVar, Protocol, TypeAlias

import msgspec

from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    CallTwin,
    Event,
    Note,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    Told,
    TurnEnded,
    TurnFailed,
)
from toolwire.core.text import canonical

Events: TypeAlias = Sequence[Event]
Kinds: TypeAlias = tuple[type[Event], ...]


_ENDINGS = frozenset((TurnEnded, TurnFailed))


class Policy(Protocol):
    handles: ClassVar[Kinds]

    def feed(self, event: Event, /) -> Events: ...

    def end(self) -> Events: ...


class Policies:
    """The policies of one turn, in order, as one stage."""

    def __init__(self, *policies: Policy) -> None:
        self._policies = policies
        self._routes = _routes(tuple(map(type, policies)))
        self.closed = False

    def feed(self, event: Event) -> Events:
        if self.closed:
            return ()
        places = self._routes.get(type(event))
        if places is None:
            return (event,)
        policies = self._policies
        for place in places:  # nearly always every policy returns the event as it is
            caused = policies[place].feed(event)
            if len(caused) != 1 or caused[0] is not event:
                return self._until_closed([out for each in caused for out in self._pass(each, place + 1)])
        if type(event) in _ENDINGS:
            self.closed = True
        return (event,)

    def end(self) -> Events:
        out: list[Event] = []
        for place, policy in enumerate(self._policies):
            for event in policy.end():
                out += self._pass(event, place + 1)
        return () if self.closed else self._until_closed(out)

    def _pass(self, event: Event, start: int) -> Events:
        for place in self._routes.get(type(event), ()):
            if place < start:
                continue
            caused = self._policies[place].feed(event)
            if len(caused) != 1 or caused[0] is not event:
                return [out for each in caused for out in self._pass(each, place + 1)]
        return (event,)

    def _until_closed(self, events: Events) -> Events:
        for place, event in enumerate(events):
            if type(event) in _ENDINGS:
                self.closed = True
                return events[: place + 1]
        return events


@lru_cache(maxsize=256)
def _routes(kinds: tuple[type[Policy], ...]) -> dict[type[Event], tuple[int, ...]]:
    """For each kind of event, the places of the policies that handle it."""
    events: dict[type[Event], list[int]] = {TurnEnded: [], TurnFailed: []}
    for place, kind in enumerate(kinds):
        for event in kind.handles:
            events.setdefault(event, []).append(place)
    return {event: tuple(places) for event, places in events.items()}


class InferMissingName:
    """Gives a nameless call the only name it can have, or fails the turn."""

    handles: ClassVar[Kinds] = (CallStarted,)

    def __init__(self, names: Sequence[str], forced: str = "", fallback: str = "") -> None:
        self._names = names
        self._forced = forced
        self._by_position = fallback == "position"
        self._seen = 0

    def feed(self, event: Event) -> Events:
        if not isinstance(event, CallStarted):
            return (event,)
        place, self._seen = self._seen, self._seen + 1
        if event.name:
            return (event,)
        name = self._inferred(place)
        if name:
            return Note("name_inferred", event.id), msgspec.structs.replace(event, name=name)
        message = f"The backend sent call {event.id} without a tool name, and the declared tools do not settle it."
        return (TurnFailed(Failure(502, "tool_name_missing", message)),)

    def end(self) -> Events:
        return ()

    def _inferred(self, place: int) -> str:
        if self._forced:
            return self._forced
        if len(self._names) == 1:
            return self._names[0]
        if self._by_position and place < len(self._names):
            return self._names[place]
        return ""


class HoldCall:
    """Lets a call pass only when it is whole: start, all arguments in one piece, end."""

    handles: ClassVar[Kinds] = (CallStarted, CallArgs, CallEnded)

    def __init__(self) -> None:
        self._call: CallStarted | None = None
        self._pieces: list[str] = []

    @property
    def is_busy(self) -> bool:
        """A call is on its way and was not let go."""
        return self._call is not None

    def feed(self, event: Event) -> Events:
        if isinstance(event, CallStarted):
            self._call = event
            return ()
        if isinstance(event, CallArgs):
            self._pieces.append(event.text)
            return ()
        if isinstance(event, CallEnded) and self._call is not None:
            call, self._call = self._call, None
            text = "".join(self._pieces)
            self._pieces = []
            return (call, CallArgs(call.id, text), event)
        return (event,)

    def end(self) -> Events:
        return ()


class DropDuplicates:
    """Withholds a call that came twice. Stands behind `HoldCall`.

    Calls with ids of the backend's own are different calls. Those whose ids were made up here (they begin with
    `minted`) are the same if name and arguments are.
    """

    handles: ClassVar[Kinds] = (CallStarted, CallArgs, CallEnded)

    def __init__(self, minted: str) -> None:
        self._minted = minted
        self._seen: set[tuple[str, bytes]] = set()
        self._call: CallStarted | None = None
        self._dropping = False

    def feed(self, event: Event) -> Events:
        if isinstance(event, CallStarted):
            self._call = event
            return ()
        if isinstance(event, CallArgs) and self._call is not None:
            call, self._call = self._call, None
            content = (call.name, canonical(event.text))
            if content in self._seen and call.id.startswith(self._minted):
                self._dropping = True
                return (Note("call_duplicate", call.id),)
            self._seen.add(content)
            return (call, event)
        if isinstance(event, CallEnded) and self._dropping:
            self._dropping = False
            return ()
        return (event,)

    def end(self) -> Events:
        return ()


class CapCalls:
    """Withholds every call beyond a number, exactly."""

    handles: ClassVar[Kinds] = (CallStarted, CallArgs, CallEnded)

    def __init__(self, most: int) -> None:
        self._left = most
        self._dropping = False

    def feed(self, event: Event) -> Events:
        if isinstance(event, CallStarted):
            self._dropping = self._left == 0
            if self._dropping:
                return (Note("call_capped", event.id),)
            self._left -= 1
        elif self._dropping and isinstance(event, CallArgs | CallEnded):
            return ()
        return (event,)

    def end(self) -> Events:
        return ()


class OnlyAllowed:
    """Withholds calls of tools that the tool choice does not allow; the backend may not know the notion."""

    handles: ClassVar[Kinds] = (CallStarted, CallArgs, CallEnded)

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._dropping = False

    def feed(self, event: Event) -> Events:
        if isinstance(event, CallStarted):
            self._dropping = event.name not in self._names
            if self._dropping:
                return (Note("call_not_allowed", event.name),)
        elif self._dropping:
            return ()
        return (event,)

    def end(self) -> Events:
        return ()


class NoteMissingCall:
    """Says so when the tool choice demands a call and the turn ends without one."""

    handles: ClassVar[Kinds] = (CallStarted, TurnEnded)

    def __init__(self, name: str) -> None:
        self._name = name
        self._called = False

    def feed(self, event: Event) -> Events:
        if isinstance(event, CallStarted):
            self._called = True
        elif not self._called and isinstance(event, TurnEnded) and event.reason in ("stop", "calls"):
            return Note("call_missing", self._name), event
        return (event,)

    def end(self) -> Events:
        return ()


class SuppressTail:
    """Withholds text after the first call: the model is guessing by then."""

    handles: ClassVar[Kinds] = (CallEnded, TextDelta, RefusalDelta)

    def __init__(self) -> None:
        self._called = False
        self._noted = False

    def feed(self, event: Event) -> Events:
        if isinstance(event, CallEnded):
            self._called = True
        elif self._called:
            noted, self._noted = self._noted, True
            return () if noted else (Note("tail_withheld"),)
        return (event,)

    def end(self) -> Events:
        return ()


class StopAfterFirstCall:
    """Ends the turn where anything but its end would follow the first call."""

    handles: ClassVar[Kinds] = (CallStarted, CallEnded, TextDelta, RefusalDelta, ReasoningDelta, ReasoningEnded)

    def __init__(self) -> None:
        self._called = False
        self._stopped = False

    def feed(self, event: Event) -> Events:
        if self._stopped:
            return ()
        if self._called:
            self._stopped = True
            if isinstance(event, CallStarted):
                return Note("call_cut", event.id), TurnEnded("calls")
            if isinstance(event, TextDelta | RefusalDelta):
                return Note("tail_withheld"), TurnEnded("calls")
            return (TurnEnded("calls"),)
        self._called = isinstance(event, CallEnded)
        return (event,)

    def end(self) -> Events:
        return ()


class Busy(Protocol):
    """A policy that holds calls back until they are whole."""

    @property
    def is_busy(self) -> bool: ...


class StopAfterBurst:
    """Says when a burst of calls may be over. Whoever has a clock ends the turn when that lasts.

    A call that is held back is under way too, although it was not seen here.
    """

    handles: ClassVar[Kinds] = (CallStarted, CallEnded, TurnEnded, TurnFailed)

    def __init__(self, holding: Sequence[Busy] = ()) -> None:
        self._holding = holding
        self._idle = False
        self.calls = 0
        """Calls delivered: each begins the grace period anew."""

    @property
    def waiting(self) -> bool:
        """A call was delivered and none is open: the grace period runs."""
        return self._idle and not any(each.is_busy for each in self._holding)

    def feed(self, event: Event) -> Events:
        self._idle = isinstance(event, CallEnded)
        self.calls += self._idle
        return (event,)

    def end(self) -> Events:
        return ()


class FailOnBrokenBlock:
    """Fails a turn whose text holds a block that could not be read as a call."""

    handles: ClassVar[Kinds] = (Note,)

    def feed(self, event: Event) -> Events:
        if not isinstance(event, Note) or event.code != "text_block_kept":
            return (event,)
        message = f"A block of the model's text could not be read as a call: {event.subject}."
        return (TurnFailed(Failure(502, "tool_block_invalid", message)),)

    def end(self) -> Events:
        return ()


class ReportTwins:
    """Tells the backend which call was delivered for one of its own: the result of the one answers the other."""

    handles: ClassVar[Kinds] = (CallTwin,)

    def __init__(self, report: Callable[[str, str], object]) -> None:
        self._report = report

    def feed(self, event: Event) -> Events:
        if isinstance(event, CallTwin):
            self._report(event.twin, event.id)
        return ()

    def end(self) -> Events:
        return ()


class FinishAfterCalls:
    """Finishes a turn that fails after complete calls, where the operator prefers that to an error."""

    handles: ClassVar[Kinds] = (CallStarted, CallEnded, TurnFailed)

    def __init__(self) -> None:
        self._complete = 0
        self._calling = False

    def feed(self, event: Event) -> Events:
        if isinstance(event, CallStarted):
            self._calling = True
        elif isinstance(event, CallEnded):
            self._calling = False
            self._complete += event.complete
        elif isinstance(event, TurnFailed) and self._complete and not self._calling:
            return Note("failure_after_calls", event.failure.code), TurnEnded("calls")
        return (event,)

    def end(self) -> Events:
        return ()


class FinishReason:
    """Ends a turn with the truth: calls if calls were delivered, length if one of them was cut."""

    handles: ClassVar[Kinds] = (CallStarted, CallEnded, TurnEnded)

    def __init__(self) -> None:
        self._called = False
        self._cut = False

    def feed(self, event: Event) -> Events:
        if isinstance(event, CallStarted):
            self._called = True
        elif isinstance(event, CallEnded):
            if not event.complete:
                self._cut = True
                return Note("call_incomplete", event.id), event
        elif isinstance(event, TurnEnded) and event.reason in ("stop", "calls"):
            if self._cut:
                return (TurnEnded("length"),)
            return (TurnEnded("calls" if self._called else "stop"),)
        return (event,)

    def end(self) -> Events:
        return ()


class DropStrayOutputs:
    """Drops results that a server shows though they answer no call of this turn.

    Codex tells of its search for MCP servers in this way, and a client takes it for the result of a tool. Only servers
    of the client's dialect are heard so: what others say of results has no event.
    """

    handles: ClassVar[Kinds] = (CallStarted, Told)

    def __init__(self) -> None:
        self._calls: set[str] = set()
        self._items: set[str] = set()  # what is said of these is dropped
        self._noted: set[str] = set()

    def feed(self, event: Event) -> Events:
        if isinstance(event, CallStarted):
            self._calls.add(event.id)
        if not isinstance(event, Told):
            return (event,)
        if event.item in self._items:
            return ()
        call = _answered(event) if event.shows in _RESULTS else None
        if call is None or call in self._calls:
            return (event,)
        if event.item:
            self._items.add(event.item)
        if call in self._noted:
            return ()
        self._noted.add(call)
        return (Note("output_dropped", call),)

    def end(self) -> Events:
        return ()


class _Output(msgspec.Struct):
    """An item of Responses or a block of Messages, as far as it may be a result."""

    call_id: str | None = None
    tool_use_id: str | None = None


class _Shown(msgspec.Struct):
    item: _Output | None = None
    content_block: _Output | None = None


_decode_shown = msgspec.json.Decoder(_Shown).decode
_RESULTS = frozenset(("function_call_output", "custom_tool_call_output", "tool_result"))


def _answered(event: Told) -> str | None:
    """The call whose result the server shows here, if it can be read."""
    try:
        shown = _decode_shown(event.data)
    except msgspec.DecodeError:
        return None
    output = shown.item or shown.content_block
    return None if output is None else output.call_id or output.tool_use_id or ""
