"""A task: the work on one prompt. The loop and its steps report here."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from toolwire.agent import events
from toolwire.agent.events import RateLimit, Tokens
from toolwire.agent.feed import Feed
from toolwire.agent.history import AnyItem
from toolwire.agent.limits import limits_from_usage
from toolwire.agent.model import Model
from toolwire.agent.output import OutputTool
from toolwire.agent.session import Session
from toolwire.core.surrogates import whole_text
from toolwire.turns.tools.call import ToolCall
from toolwire.turns.tools.calls import CallHooks, Finished
from toolwire.turns.tools.loop import Limits, ToolLoop
from toolwire.turns.tools.registry import Context, Registry

LOOK_EVERY = 60.0
"""Seconds between two requests for the usage of an account."""


class Task:
    """What a task works with, and what it has used and done so far. `hooks` are those of the agent for its calls."""

    def __init__(
        self,
        model: Model,
        session: Session,
        feed: Feed,
        registry: Registry,
        hooks: CallHooks,
        limits: Limits,
        output: OutputTool[Any] | None = None,
    ) -> None:
        self.model = model
        self.session = session
        self.put = feed.put
        self.room = feed.room
        self.output = output
        """The tool by which the model gives a typed output, if one is wanted."""
        self._context = hooks.context
        own = {"context": self._context_of, "started": self._call_started, "finished": self._call_ended}
        self.tools = ToolLoop(registry, msgspec.structs.replace(hooks, **own), limits)
        self.text = ""
        """The last text of the model."""
        self.error: BaseException | None = None
        """Why the task failed, if it did."""
        self._first = len(session.history)  # the item that was added first
        self._limits: tuple[RateLimit, ...] = ()
        self._looked = 0.0

    @property
    def items(self) -> tuple[AnyItem, ...]:
        """What was added to the history; all of it, once a summary has taken the place of what was before."""
        return tuple(self.session.history.items[self._first :])

    def replace_history(self, items: Sequence[AnyItem]) -> None:
        """Put a summary in place of the history."""
        before = len(self.session.history)
        self._first = 0
        self.session.replace(items)
        self.put(events.Compacted(before, len(items)))

    def _context_of(self, call: ToolCall) -> Context:
        put_out = partial(self._put_out, call.call_id)
        return msgspec.structs.replace(self._context(call), emit=put_out, spend=self._spend_elsewhere)

    def _call_started(self, call: ToolCall) -> None:
        self.put(events.ToolStarted(call.call_id, call.name))

    def _put_out(self, call_id: str, text: str) -> None:
        self.put(events.ToolOutput(call_id, whole_text(text)))

    def _call_ended(self, done: Finished) -> None:
        call, result = done.call, done.result
        seconds = round(done.seconds, 3) if done.seconds is not None else None
        self.put(events.CallEnded(call.call_id, call.name, result.text, result.failed, seconds))

    def spend(self, usage: Tokens) -> None:
        """Count the tokens of a turn, for the task and for its session."""
        self.tools.spend(usage)
        self.session.spend(usage)
        self.put(events.UsageUpdated(usage, self.session.usage))

    def _spend_elsewhere(self, usage: Tokens) -> None:
        self.tools.spend(usage)
        self.session.spend_elsewhere(usage)

    def saw_limits(self, limits: tuple[RateLimit, ...]) -> None:
        """Report the account's rate limits, if they have changed."""
        if limits and limits != self._limits:
            self._limits = limits
            self.put(events.LimitsUpdated(limits))

    async def look_at_usage(self) -> None:
        """Ask the server what the account has used, at most once in `LOOK_EVERY` seconds."""
        now = time.monotonic()
        if self._looked and now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        usage = await self.model.usage()
        if usage:
            self.saw_limits(limits_from_usage(usage))
