"""A task: one prompt, and what it has come to so far. The loop and its steps tell here whatever they see."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from toolwire.agent import events as happened
from toolwire.agent.approval import Approvals
from toolwire.agent.call import ToolCall
from toolwire.agent.events import RateLimit, Tokens
from toolwire.agent.feed import Feed
from toolwire.agent.items import AnyItem
from toolwire.agent.limits import limits_from_usage
from toolwire.agent.model import Model
from toolwire.agent.registry import Context, Registry
from toolwire.agent.repeats import Repeats
from toolwire.agent.runtime import Finished, Runtime
from toolwire.agent.session import Session

LOOK_EVERY = 60.0
"""Seconds between two looks at the usage of an account."""


class Task:
    """What a task works with, and its accounts."""

    def __init__(
        self,
        model: Model,
        session: Session,
        registry: Registry,
        approvals: Approvals,
        context: Callable[[ToolCall, Callable[[str], None]], Context],
        feed: Feed,
    ) -> None:
        self.model = model
        self.session = session
        self.registry = registry
        self.repeats = Repeats(registry)
        self._approvals = approvals
        self._context = context
        self._feed = feed
        self.put = feed.put
        self.room = feed.room
        self.began = time.monotonic()
        self.spent = Tokens()
        self.text = ""
        """What the model said last."""
        self._limits: tuple[RateLimit, ...] = ()
        self._looked = 0.0

    def runtime(self) -> Runtime:
        """A runtime for the calls of one step."""
        self.repeats.next_turn()
        return Runtime(
            self.registry,
            lambda call: self._context(call, partial(self._put_out, call.call_id)),
            lambda call: self.put(happened.ToolStarted(call.call_id, call.name)),
            self._call_ended,
            self._approvals.why_not,
            self.repeats.judged,
        )

    def _put_out(self, call_id: str, text: str) -> None:
        self.put(happened.ToolOutput(call_id, text))

    def _call_ended(self, done: Finished) -> None:
        call, result = done.call, done.result
        seconds = round(done.seconds, 3) if done.seconds is not None else None
        self.put(happened.CallEnded(call.call_id, call.name, result.text, result.failed, seconds))

    def keep(self, items: Sequence[AnyItem]) -> None:
        self.session.add(items)

    def spend(self, usage: Tokens) -> None:
        self.spent = self.spent.plus(usage)
        self.session.spend(usage)
        self.put(happened.UsageUpdated(usage, self.session.usage))

    def saw_limits(self, limits: tuple[RateLimit, ...]) -> None:
        if limits and limits != self._limits:
            self._limits = limits
            self.put(happened.LimitsUpdated(limits))

    async def look_at_usage(self) -> None:
        """Ask, now and then, what the account has used."""
        now = time.monotonic()
        if self._looked and now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        told = await self.model.usage()
        if told:
            self.saw_limits(limits_from_usage(told))
