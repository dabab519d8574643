"""A task: the work on one prompt. The loop and its steps report here."""

import time
from functools import partial

import msgspec

from toolwire.agent import events
from toolwire.agent.events import RateLimit, Tokens
from toolwire.agent.feed import Feed
from toolwire.agent.limits import limits_from_usage
from toolwire.agent.model import Model
from toolwire.agent.session import Session
from toolwire.turns.tools.calls import Approve, CallHooks, Finished
from toolwire.turns.tools.loop import Limits, ToolLoop
from toolwire.turns.tools.registry import Context, Registry

LOOK_EVERY = 60.0
"""Seconds between two requests for the usage of an account."""


class Task:
    """What a task works with, and what it has used so far."""

    def __init__(
        self,
        model: Model,
        session: Session,
        feed: Feed,
        registry: Registry,
        approve: Approve,
        context: Context,
        limits: Limits,
    ) -> None:
        self.model = model
        self.session = session
        self.put = feed.put
        self.room = feed.room
        hooks = CallHooks(
            lambda call: msgspec.structs.replace(context, emit=partial(self._put_out, call.call_id)),
            lambda call: self.put(events.ToolStarted(call.call_id, call.name)),
            self._call_ended,
            approve,
        )
        self.tools = ToolLoop(registry, hooks, limits)
        self.text = ""
        """The last text of the model."""
        self._limits: tuple[RateLimit, ...] = ()
        self._looked = 0.0

    def _put_out(self, call_id: str, text: str) -> None:
        self.put(events.ToolOutput(call_id, text))

    def _call_ended(self, done: Finished) -> None:
        call, result = done.call, done.result
        seconds = round(done.seconds, 3) if done.seconds is not None else None
        self.put(events.CallEnded(call.call_id, call.name, result.text, result.failed, seconds))

    def spend(self, usage: Tokens) -> None:
        """Count the tokens of a turn, for the task and for its session."""
        self.tools.spend(usage)
        self.session.spend(usage)
        self.put(events.UsageUpdated(usage, self.session.usage))

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
