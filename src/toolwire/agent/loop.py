"""The turn loop: ask, run the tools while the stream goes on, keep their results, ask again, until nothing is left."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from toolwire.agent import events as happened
from toolwire.agent.approval import Policy
from toolwire.agent.call import Fatal
from toolwire.agent.history import read_items
from toolwire.agent.items import AnyItem, OtherItem
from toolwire.agent.limits import Limits
from toolwire.agent.retry import pause
from toolwire.agent.router import declared
from toolwire.agent.session import SessionError
from toolwire.agent.step import FOREVER, Step
from toolwire.agent.task import Task
from toolwire.core.errors import BackendFault, Failure, ToolwireError
from toolwire.core.events import TurnFailed, Usage
from toolwire.dialects.responses import compaction

Answer = TypeVar("Answer")


class Setup(msgspec.Struct, frozen=True):
    """How an agent works."""

    instructions: str = ""
    effort: str = ""
    limits: Limits = Limits()
    retries: int = 5
    longest_wait: float = 600.0
    """The longest pause that a server may ask for."""
    idle: float = 300.0
    """Seconds without an event after which a stream counts as broken."""
    context_window: int = 0
    """Tokens that the model can be given; 0: unknown, and nothing is compacted."""
    compact_at: float = 0.9
    """The share of it at which the history is summarised."""
    approve: Policy = "never"
    """When somebody is asked before a call runs."""
    read_only: bool = False
    """Nothing may be changed."""


class Loop:
    """Works off one task: from a prompt in the history to the end of the model's work."""

    def __init__(self, task: Task, setup: Setup) -> None:
        self._task = task
        self._setup = setup
        self._rounds = 0

    async def work(self) -> None:
        """Work until the task is over, and say how it ended."""
        error = ""
        try:
            async with asyncio.timeout(self._setup.limits.seconds or None):
                reason = await self._work()
        except asyncio.CancelledError:
            reason = "cancelled"
        except TimeoutError:
            reason = "seconds"
        except (Fatal, SessionError, ToolwireError) as fault:
            reason, error = "failed", str(fault)
        self._task.put(happened.TaskEnded(reason, self._task.text, self._task.spent, error))

    async def _work(self) -> str:
        task = self._task
        while True:
            limit = self._setup.limits.reached(self._rounds, task.spent, time.monotonic() - task.began)
            if limit:
                return limit
            await self._compact_if_due()
            self._rounds += 1
            task.put(happened.TurnStarted(self._rounds))
            step = await self._asked(self._turn)
            task.put(happened.TurnEnded(self._rounds, step.calls))
            if not step.calls:
                return step.reason if step.reason in ("length", "filter") else "done"

    async def _asked(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """What the model answers, which is asked again when its stream fails."""
        attempt = 0
        while True:
            try:
                return await ask()
            except BackendFault as broken:
                attempt += 1
                seconds = pause(broken.failure, attempt, self._setup.longest_wait)
                if seconds is None or attempt > self._setup.retries:
                    raise
                reason = broken.failure.message
                self._task.put(happened.Retrying(attempt, self._setup.retries, round(seconds, 3), reason))
                await asyncio.sleep(seconds)

    async def _turn(self) -> Step:
        step = Step(self._task, self._task.model.turn(self._fields()))
        await step.take()
        return step

    def _fields(self) -> dict[str, Any]:
        """What is asked, as a body of the Responses API."""
        registry = self._task.registry
        registry.refresh()
        fields: dict[str, Any] = {"input": self._task.session.history.raw}
        instructions = "\n\n".join(filter(None, (self._setup.instructions, registry.advice)))
        if instructions:
            fields["instructions"] = instructions
        if self._setup.effort:
            fields["reasoning"] = {"effort": self._setup.effort, "summary": "auto"}
        tools = [declared(tool) for tool in registry]
        if tools:
            fields["tools"] = tools
        return fields

    async def _compact_if_due(self) -> None:
        session, window = self._task.session, self._setup.context_window
        if not window or session.last.total < window * self._setup.compact_at:
            return
        before, tail = len(session.history), session.history.tail()
        summary = await self._asked(self._summary)
        whole = sum(len(bytes(item.raw)) for item in tail) // 4 < window // 5
        session.replace([*summary, *(tail if whole else tail[:1])])
        self._task.put(happened.Compacted(before, len(session.history)))

    async def _summary(self) -> Sequence[AnyItem]:
        """The history as one item, made by the model."""
        model = self._task.model
        fields = {**self._fields(), "input": [*self._task.session.history.raw, {"type": "compaction_trigger"}]}
        policies: tuple[Callable[[], Any], ...] = ()
        request = model.request(fields)
        if not model.compacts:
            request = compaction.summarising(request)
            policies = (partial(compaction.IntoCompaction, f"cmp_{time.time_ns():x}"),)
        turn = model.run(request, policies)
        try:
            while not turn.run.finished:
                for event in await turn.run.read(FOREVER):
                    if isinstance(event, TurnFailed):
                        raise BackendFault(event.failure)
                    if isinstance(event, Usage):
                        self._task.spend(event)
                    turn.encoder.feed(event)
        finally:
            turn.run.close()
        items = read_items(turn.encoder.output)
        made = [item for item in items if isinstance(item, OtherItem) and item.type == "compaction"]
        if not made:
            raise BackendFault(Failure(502, "no_summary", "The model gave no summary of the conversation."))
        return made
