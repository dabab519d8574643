"""Policies: stages that change a turn's events according to a rule, each named after its decision.

`handles` lists the events that a policy receives; all others skip it, which keeps the hot path short. When a policy
ends the turn, `Policies` is `closed`: no more events pass, and the backend is no longer read.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import ClassVar, Protocol, TypeAlias

import msgspec

from toolwire.core.collect import Call, CallAssembler
from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    CallTwin,
    Event,
    MessageEnded,
    Note,
    RawFrame,
    Reason,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
)
from toolwire.core.lane import Check, passes_always
from toolwire.core.notes import TurnStats
from toolwire.core.text import canonicalise

Events: TypeAlias = Sequence[Event]
Kinds: TypeAlias = tuple[type[Event], ...]
FindCheck: TypeAlias = Callable[[Event], Check]
"""`find_check` of a policy, which not every policy has."""


_ENDINGS = frozenset((TurnEnded, TurnFailed))


class Policy(Protocol):
    """A stage that may change, drop or add events of the kinds it handles."""

    handles: ClassVar[Kinds]

    def feed(self, event: Event, /) -> Events | None:
        """The events that replace this one; None if it passes unchanged."""
        ...


def pass_any_text(policy: object, event: Event) -> Check:
    """`find_check` of a policy that lets deltas pass, whatever their text is, once one has passed."""
    return passes_always


class Policies:
    """The policies of one turn, in order, as one stage."""

    def __init__(self, *policies: Policy) -> None:
        self._policies = policies
        self._routes = _find_routes(tuple(map(type, policies)))
        self.closed = False

    def feed(self, event: Event) -> Events:
        return self.feed_all((event,))

    def feed_all(self, events: Events) -> list[Event]:
        """The events that remain after all policies."""
        out: list[Event] = []
        if not self.closed:
            self._pass_all(events, 0, out)
        return out

    def find_checks(self, event: Event) -> Sequence[Check] | None:
        """What must hold for the text of further deltas like this one, which passed unchanged, so that they pass too.

        None if a policy must see them.
        """
        checks: list[Check] = []
        for index in self._routes[0].get(type(event), ()):
            find: FindCheck | None = getattr(self._policies[index], "find_check", None)
            if find is None:
                return None
            checks.append(find(event))
        return checks

    def _pass_all(self, events: Events, start: int, out: list[Event]) -> None:
        """Pass these events through the policies from `start` on."""
        policies, routes = self._policies, self._routes[start]
        for event in events:
            for index in routes.get(type(event), ()):
                caused = policies[index].feed(event)
                if caused is not None and (len(caused) != 1 or caused[0] is not event):
                    self._pass_all(caused, index + 1, out)
                    if self.closed:
                        return
                    break
            else:
                out.append(event)
                if type(event) in _ENDINGS:
                    self.closed = True
                    return


@lru_cache(maxsize=256)
def _find_routes(kinds: tuple[type[Policy], ...]) -> list[dict[type[Event], tuple[int, ...]]]:
    """For each start, and each kind of event, the indexes of the policies that handle it."""
    routes: list[dict[type[Event], tuple[int, ...]]] = [{}]
    for index in reversed(range(len(kinds))):
        later = routes[0]
        routes.insert(0, later | {event: (index, *later.get(event, ())) for event in kinds[index].handles})
    return routes


class InferMissingName:
    """Names a nameless call if only one name is possible, or by its position if configured; else fails the turn."""

    handles: ClassVar[Kinds] = (CallStarted,)

    def __init__(self, names: Sequence[str], forced: str = "", fallback: str = "") -> None:
        self._names = names
        self._forced = forced
        self._by_position = fallback == "position"
        self._seen = 0

    def feed(self, event: Event) -> Events | None:
        if not isinstance(event, CallStarted):
            return None
        position, self._seen = self._seen, self._seen + 1
        if event.name:
            return None
        name = self._forced
        if not name and len(self._names) == 1:
            name = self._names[0]
        elif not name and self._by_position and position < len(self._names):
            name = self._names[position]
        if name:
            return Note("name_inferred", event.id), msgspec.structs.replace(event, name=name)
        message = f"The backend sent call {event.id} without a tool name, and the declared tools do not settle it."
        return (TurnFailed(Failure(502, "tool_name_missing", message)),)


class HoldCall:
    """Holds a call back until it is whole; then its start, all arguments in one piece and its end pass."""

    handles: ClassVar[Kinds] = (CallStarted, CallArgs, CallEnded)

    def __init__(self) -> None:
        self._calls = CallAssembler()

    @property
    def is_busy(self) -> bool:
        """Whether a call has started and is still held back."""
        return self._calls.open is not None

    def feed(self, event: Event) -> Events | None:
        started, call = self._calls.open, self._calls.feed(event)
        if started is None or call is None:
            return None if isinstance(event, CallEnded) else ()
        return self._replace(call) or (started, CallArgs(call.id, call.arguments), event)

    def _replace(self, call: Call) -> Events:
        """The events that replace a whole call, if it is withheld."""
        return ()


class DropDuplicates(HoldCall):
    """Holds calls until they are whole, and withholds duplicates.

    Calls with ids from the backend are always different calls. Those with ids minted by Toolwire (they begin with
    `minted`) are duplicates if their names and arguments are equal.
    """

    def __init__(self, minted: str) -> None:
        super().__init__()
        self._minted = minted
        self._seen: set[tuple[str, bytes]] = set()

    def _replace(self, call: Call) -> Events:
        content = (call.name, canonicalise(call.arguments))
        if content in self._seen and call.id.startswith(self._minted):
            return (Note("call_duplicate", call.id),)
        self._seen.add(content)
        return ()


class WithholdCalls:
    """Withholds every call for which `_refuse` returns a note."""

    handles: ClassVar[Kinds] = (CallStarted, CallArgs, CallEnded)
    find_check = pass_any_text
    _dropping = False

    def feed(self, event: Event) -> Events | None:
        if isinstance(event, CallStarted):
            note = self._refuse(event)
            self._dropping = note is not None
            return (note,) if note is not None else None
        return () if self._dropping else None

    def _refuse(self, call: CallStarted) -> Note | None:
        raise NotImplementedError


class CapCalls(WithholdCalls):
    """Withholds every call beyond a limit."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def _refuse(self, call: CallStarted) -> Note | None:
        self._left -= 1
        return Note("call_capped", call.id) if self._left < 0 else None


class WithholdForbidden(WithholdCalls):
    """Withholds calls of tools that the tool choice does not allow, for backends that ignore it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def _refuse(self, call: CallStarted) -> Note | None:
        return Note("call_not_allowed", call.name) if call.name not in self._names else None


class NoteMissingCall:
    """Adds a note when the tool choice demands a call and the turn ends without one."""

    handles: ClassVar[Kinds] = (CallStarted, TurnEnded)

    def __init__(self, name: str) -> None:
        self._name = name
        self._called = False

    def feed(self, event: Event) -> Events | None:
        if isinstance(event, CallStarted):
            self._called = True
        elif not self._called and isinstance(event, TurnEnded) and event.reason in ("stop", "calls"):
            return Note("call_missing", self._name), event
        return None


class SuppressTail:
    """Withholds text after the first call, and its separators: the model is guessing by then."""

    handles: ClassVar[Kinds] = (CallEnded, MessageEnded, TextDelta, RefusalDelta)
    find_check = pass_any_text

    def __init__(self) -> None:
        self._called = False
        self._noted = False

    def feed(self, event: Event) -> Events | None:
        if isinstance(event, CallEnded):
            self._called = True
        elif self._called and isinstance(event, MessageEnded):
            return None if event.item else ()
        elif self._called:
            noted, self._noted = self._noted, True
            return () if noted else (Note("tail_withheld"),)
        return None


class StopAfterFirstCall:
    """Ends the turn at the first output after the first call."""

    handles: ClassVar[Kinds] = (CallStarted, CallEnded, TextDelta, RefusalDelta, ReasoningDelta, ReasoningEnded)
    find_check = pass_any_text

    def __init__(self) -> None:
        self._called = False
        self._stopped = False

    def feed(self, event: Event) -> Events | None:
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
        return None


class CallHolder(Protocol):
    """A policy that holds calls back until they are whole."""

    @property
    def is_busy(self) -> bool:
        """Whether it holds a call back now."""
        ...


class StopAfterBurst:
    """Reports when a burst of calls may be over; the reader of the turn has a clock and ends it after a grace period.

    A call that another policy holds back counts as open.
    """

    handles: ClassVar[Kinds] = (CallStarted, CallEnded, TurnEnded, TurnFailed)

    def __init__(self, holding: Sequence[CallHolder] = ()) -> None:
        self._holding = holding
        self._idle = False
        self.calls = 0
        """Number of delivered calls; each restarts the grace period."""

    @property
    def waiting(self) -> bool:
        """A call was delivered and none is open: the grace period runs."""
        return self._idle and not any(each.is_busy for each in self._holding)

    def feed(self, event: Event) -> Events | None:
        self._idle = isinstance(event, CallEnded)
        self.calls += self._idle
        return None


class FailOnBrokenBlock:
    """Fails a turn whose text holds a block that could not be read as a call."""

    handles: ClassVar[Kinds] = (Note,)

    def feed(self, event: Event) -> Events | None:
        if not isinstance(event, Note) or event.code != "text_block_kept":
            return None
        message = f"A block of the model's text could not be read as a call: {event.subject}."
        return (TurnFailed(Failure(502, "tool_block_invalid", message)),)


class ReportTwins:
    """Reports to the backend which call was delivered instead of its own, so that it can match the result."""

    handles: ClassVar[Kinds] = (CallTwin,)

    def __init__(self, report: Callable[[str, str], object]) -> None:
        self._report = report

    def feed(self, event: Event) -> Events | None:
        if isinstance(event, CallTwin):
            self._report(event.twin, event.id)
        return ()


class FinishAfterCalls:
    """Finishes a turn that fails after complete calls, where the operator prefers that to an error."""

    handles: ClassVar[Kinds] = (CallStarted, CallEnded, TurnFailed)

    def __init__(self) -> None:
        self._complete = 0
        self._calling = False

    def feed(self, event: Event) -> Events | None:
        if isinstance(event, CallStarted):
            self._calling = True
        elif isinstance(event, CallEnded):
            self._calling = False
            self._complete += event.complete
        elif isinstance(event, TurnFailed) and self._complete and not self._calling:
            return Note("failure_after_calls", event.failure.code), TurnEnded("calls")
        return None


class CorrectFinishReason:
    """Corrects the finish reason: calls if calls were delivered, length if one was cut. `TurnStats` must follow."""

    handles: ClassVar[Kinds] = (CallEnded, TurnEnded)

    def __init__(self, stats: TurnStats) -> None:
        self._stats = stats
        self._cut = False

    def feed(self, event: Event) -> Events | None:
        if isinstance(event, CallEnded):
            if not event.complete:
                self._cut = True
                return Note("call_incomplete", event.id), event
        elif isinstance(event, TurnEnded) and event.reason in ("stop", "calls"):
            reason: Reason = "length" if self._cut else "calls" if self._stats.call_ids else "stop"
            if reason != event.reason:
                return (TurnEnded(reason),)
        return None


class FillArguments:
    """Gives a function call that ends without arguments the empty object, because every dialect requires them."""

    handles: ClassVar[Kinds] = (CallStarted, CallArgs, CallEnded)

    def __init__(self) -> None:
        self._is_empty = False

    def feed(self, event: Event) -> Events | None:
        if isinstance(event, CallStarted):
            self._is_empty = event.kind == "function"
        elif isinstance(event, CallArgs):
            self._is_empty = self._is_empty and not event.text
        elif isinstance(event, CallEnded) and self._is_empty and event.complete:
            return CallArgs(event.id, "{}"), event
        return None


class DropStrayOutputs:
    """Drops results in the server's output that answer no call of this turn.

    Codex reports its search for MCP servers in this way, and a client would take it for the result of a tool. Such
    items only come from servers of the client's dialect: results have no event.
    """

    handles: ClassVar[Kinds] = (CallStarted, RawFrame)

    def __init__(self) -> None:
        self._calls: set[str] = set()
        self._items: set[str] = set()  # all frames of these are dropped
        self._noted: set[str] = set()

    def feed(self, event: Event) -> Events | None:
        if isinstance(event, CallStarted):
            self._calls.add(event.id)
        if not isinstance(event, RawFrame):
            return None
        if event.item in self._items:
            return ()
        call = event.answers
        if call is None or call in self._calls:
            return None
        if event.item:
            self._items.add(event.item)
        if call in self._noted:
            return ()
        self._noted.add(call)
        return (Note("output_dropped", call),)
