"""Turns made up by hypothesis: every sequence of events that the table in `order.py` allows."""

import json
from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st

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
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.order import TRANSITIONS, State, TurnOrder

FAILED = TurnFailed(Failure(429, "rate_limit_exceeded", "slow down"))


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
names = st.sampled_from(("", "msg_1", "msg_2", "rs_1", "x"))


class Walk:
    """One way through the table of `order.py`, with the contracts that it cannot state.

    Each call has an id of its own. Parts are counted upwards. A call that was cut is the last thing in its turn, and the
    turn says so.
    """

    def __init__(self, draw: st.DrawFn, *, same_dialect: bool) -> None:
        self._draw = draw
        self._same_dialect = same_dialect
        self._calls = 0
        self._parts: dict[tuple[str, ...], int] = {}
        self._thinking = ""
        self._cut = False
        self.events: list[Event] = []

    @property
    def _something_came_inside(self) -> bool:
        """An item of another kind may have begun since the call did."""
        kinds = [type(event) for event in self.events]
        return RawFrame in kinds[len(kinds) - kinds[::-1].index(CallStarted) :]

    @property
    def state(self) -> State:
        order = TurnOrder()
        for event in self.events:
            order.check((event,))
        return order.state

    def run(self) -> list[Event]:
        for _ in range(self._draw(st.integers(0, 14))):
            kinds = [kind for kind in TRANSITIONS[self.state] if self._may_come(kind)]
            self._add(self._draw(st.sampled_from(kinds)))
        self._finish()
        return self.events

    def _may_come(self, kind: type[Event]) -> bool:
        if kind in (TurnEnded, TurnFailed) or (self._cut and kind not in (Note, Usage)):
            return False
        return self._same_dialect or kind not in (RawFrame, MessageEnded)

    def _finish(self) -> None:
        if self.state is State.WAITING and self._draw(st.booleans()):
            self.events.append(FAILED)
            return
        if self.state is State.WAITING:
            self.events.append(TurnStarted())
        if self._draw(st.integers(0, 4)) == 0:
            self.events.append(FAILED)
            return
        if self.state is State.CALLING:
            self._add(CallEnded)
        reasons = ("length", "filter") if self._cut else ("stop", "calls", "length", "filter")
        self.events.append(TurnEnded(self._draw(st.sampled_from(reasons))))

    def _add(self, kind: type[Event]) -> None:
        self.events.append(self._make[kind](self))

    def _text(self) -> Event:
        name = self._name()
        return TextDelta(self._draw(texts), name, self._part(name))

    def _refusal(self) -> Event:
        name = self._name()
        return RefusalDelta(self._draw(texts), name, self._part(name))

    def _thought(self) -> Event:
        kind = self._draw(st.sampled_from(("summary", "content")))
        name = self._name()
        if kind != self._thinking:  # nobody goes back to a part
            self._thinking = kind
            self._parts[kind,] = self._parts.get((kind,), -1) + 1
        return ReasoningDelta(self._draw(texts), kind, self._part(kind), name)

    def _thought_ended(self) -> Event:
        return ReasoningEnded(self._name(), self._draw(st.sampled_from(("", "signature"))))

    def _call(self) -> Event:
        self._calls += 1
        kind = self._draw(st.sampled_from(("function", "custom")))
        item = self._draw(st.sampled_from(("", f"fc_{self._calls}", "fc_1", f"call_{self._calls}")))
        return CallStarted(f"call_{self._calls}", "f", kind, self._draw(st.sampled_from(("", "n"))), item)

    def _arguments(self) -> Event:
        return CallArgs(f"call_{self._calls}", self._draw(texts))

    def _call_ended(self) -> Event:
        self._cut = self._draw(st.integers(0, 3)) == 0 and not self._something_came_inside
        return CallEnded(f"call_{self._calls}", not self._cut)

    def _usage(self) -> Event:
        return Usage(*(self._draw(st.integers(0, 9)) for _ in range(5)))

    def _told(self) -> Event:
        return self._draw(frames)

    def _part(self, *where: str) -> int:
        """Parts are counted upwards."""
        self._parts[where] = self._parts.get(where, 0) + self._draw(st.integers(0, 1))
        return self._parts[where]

    def _name(self) -> str:
        return self._draw(names) if self._same_dialect else ""

    _make: ClassVar[dict[type[Event], Callable[["Walk"], Event]]] = {
        TurnStarted: lambda self: TurnStarted("up", "m2"),
        TextDelta: _text,
        RefusalDelta: _refusal,
        MessageEnded: lambda self: MessageEnded(self._draw(names)),
        ReasoningDelta: _thought,
        ReasoningEnded: _thought_ended,
        CallStarted: _call,
        CallArgs: _arguments,
        CallEnded: _call_ended,
        Usage: _usage,
        Note: lambda self: Note("retried"),
        CallTwin: lambda self: CallTwin("call_1", "call_9"),
        RawFrame: _told,
    }


def told(type: str, about: str = "", **fields: Any) -> RawFrame:
    return RawFrame(
        f"response.{type}", about, json.dumps({"type": f"response.{type}", "x_event": 1, **fields}).encode()
    )


SEARCH = {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "x"}}
frames = st.sampled_from(
    (
        told("created", response={"id": "up", "x_response": 1}),
        told("in_progress", response={"id": "up", "output": []}),
        told("output_item.added", "msg_1", item={"type": "message", "id": "msg_1", "x_item": 1, "content": []}),
        told("output_item.done", "msg_1", item={"type": "message", "id": "msg_1", "x_item": 2, "content": []}),
        told("output_item.done", "rs_1", item={"type": "reasoning", "id": "rs_1", "x_item": 3}),
        told("output_item.added", "fc_1", item={"type": "function_call", "id": "fc_1", "x_item": 4}),
        told("content_part.added", "msg_1", part={"type": "output_text", "text": "", "x_part": 1}),
        told("output_item.added", "ws_1", item={**SEARCH, "status": "in_progress"}),
        told("web_search_call.searching", "ws_1", output_index=5, item_id="ws_1"),
        told("output_item.done", "ws_1", item={**SEARCH, "status": "completed"}),
        told("brand_new.thing", ""),
        told("brand_new.thing", "msg_1", item_id="msg_1"),
    )
)


@st.composite
def turns(draw: st.DrawFn, *, same_dialect: bool) -> list[Event]:
    return Walk(draw, same_dialect=same_dialect).run()
