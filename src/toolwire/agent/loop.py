"""The agent's loop: asks the model turn by turn until a task is done, asks again when a stream fails, and summarises a
history that gets too long. The tools, the limits and what repeats are those of the shared tool loop.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar, get_args

import msgspec

from toolwire.agent import events as happened
from toolwire.agent.approval import Policy
from toolwire.agent.history import AnyItem, OtherItem, newest, read_items, size_of, user_message
from toolwire.agent.step import FOREVER, Step
from toolwire.agent.task import Task
from toolwire.core.errors import CONTEXT_LENGTH_EXCEEDED, BackendFault, Failure, ToolwireError
from toolwire.core.events import TurnFailed, Usage
from toolwire.core.surrogates import whole_text
from toolwire.core.tokens import CHARS_PER_TOKEN
from toolwire.dialects.responses import compaction
from toolwire.pauses import backoff
from toolwire.turns.tools.loop import REPEATED_CALLS, Limits
from toolwire.turns.tools.router import declared

Answer = TypeVar("Answer")

LEAST_WINDOW = 2048
"""Tokens; no model that can use tools takes fewer."""
TOO_LARGE = 413
HALVINGS = 6
"""How often a history that is too long to be summarised is halved."""


class AgentConfig(msgspec.Struct, frozen=True):
    """How an agent works."""

    instructions: str = ""
    effort: str = ""
    limits: Limits = Limits()
    retries: int = 5
    longest_wait: float = 600.0
    """The longest pause that a server may ask for."""
    idle: float = 0.0
    """Seconds without an event after which a stream counts as broken; 0: as `[timeouts]` of the settings says."""
    context_window: int = 0
    """Tokens that the model takes; 0: as its backend's settings or its server say."""
    compact_at: float = 0.9
    """The share of it at which the history is summarised."""
    approve: Policy = "on-write"
    """When somebody is asked before a call runs."""
    read_only: bool = False
    """Nothing may be changed."""

    def __post_init__(self) -> None:
        if self.approve not in get_args(Policy):
            raise ValueError(f"approve: {self.approve!r} is none of {', '.join(get_args(Policy))}")
        if self.retries < 0:
            raise ValueError(f"retries: {self.retries} is less than 0")


class Loop:
    """Works on one task: from a prompt in the history to the end of the model's work."""

    def __init__(self, task: Task, setup: AgentConfig) -> None:
        self._task = task
        self._setup = setup
        self._has_made_room = False  # by a summary, and the window is still full

    async def work(self) -> None:
        """Work until the task is over, and say how it ended."""
        await self._until_ended(self._work)

    async def compact(self) -> None:
        """Put a summary in place of the whole history, and say how that ended."""
        await self._until_ended(self._compact_everything)

    async def _until_ended(self, work: Callable[[], Awaitable[str]]) -> None:
        error = ""
        try:
            async with asyncio.timeout(self._setup.limits.seconds or None):
                reason = await work()
        except asyncio.CancelledError:
            reason = "cancelled"
        except TimeoutError:
            reason = "seconds"
        except ToolwireError as fault:
            reason, error = "failed", str(fault)
            self._task.error = fault
        tools = self._task.tools
        if reason == REPEATED_CALLS:
            error = tools.repeats.reason
        self._task.put(happened.TaskEnded(reason, self._task.text, tools.usage or Usage(), error))

    async def _work(self) -> str:
        task, tools = self._task, self._task.tools
        while not (stop_reason := tools.stop_reason):
            if not self._has_made_room and await self._is_full():
                await self._compact(keeps_work=True)
            number = tools.begin_turn()
            task.put(happened.TurnStarted(number))
            step = await self._turn_that_fits()
            task.put(happened.TurnEnded(number, step.calls, step.response_id))
            task.model.told_window(step.context_window.tokens)
            if self._is_last(step):
                return "filter" if not step.calls and step.reason == "filter" else "done"
            if not step.calls and step.reason != "length":
                continue  # it was told to give its output
            is_full = step.context_window.is_full or await self._is_full()
            if not step.calls and (self._has_made_room or not is_full):
                return "length"
            self._has_made_room = self._has_made_room and is_full
            if not step.calls:
                await self._compact(keeps_work=False)
        return stop_reason

    def _is_last(self, step: Step) -> bool:
        """Whether the model has answered. One that was asked for a typed output, and gave none, is told so."""
        output = self._task.output
        has_answered = not step.calls and step.reason != "length"
        if output is None or (has_answered and step.reason == "filter"):
            return has_answered
        told = output.take_text(step.text) if has_answered and not output.outputs else ""
        output.check()
        if told:
            self._task.session.add([user_message(told)])
        return bool(output.outputs)

    async def _turn_that_fits(self) -> Step:
        """A turn. If the history does not fit into the model's window it is summarised, once."""
        try:
            return await self._asked(self._turn)
        except BackendFault as broken:
            history = self._task.session.history
            is_only_prompt = len(history) <= len(history.tail()[:1])  # which stays as it is
            if not _is_overflow(broken) or is_only_prompt:
                raise
        await self._compact(keeps_work=False)
        return await self._asked(self._turn)

    async def _asked(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """What the model answers. It is asked again when its stream fails."""
        attempt = 0
        while True:
            try:
                return await ask()
            except BackendFault as broken:
                attempt += 1
                seconds = backoff(broken.failure, attempt, self._setup.longest_wait)
                if seconds is None or attempt > self._setup.retries:
                    raise
                reason = broken.failure.message
                self._task.put(happened.Retrying(attempt, self._setup.retries, round(seconds, 3), reason))
                await asyncio.sleep(seconds)

    async def _turn(self) -> Step:
        model = self._task.model
        step = Step(self._task, model.run(model.request(self._fields()), owner=self._task.session.id))
        await step.take()
        return step

    def _fields(self) -> dict[str, Any]:
        """The request, as a body of the Responses API."""
        registry = self._task.tools.registry
        registry.refresh()
        effort = self._setup.effort
        fields: dict[str, Any] = {
            "input": self._task.session.history.raw,
            "instructions": whole_text("\n\n".join(filter(None, (self._setup.instructions, registry.advice)))),
            "reasoning": {"effort": effort, "summary": "auto"} if effort else None,
            "tools": [declared(tool) for tool in registry],
        }
        return {name: value for name, value in fields.items() if value}

    async def _is_full(self) -> bool:
        """Whether the last turn has nearly filled the model's window, whose size is only looked up when it matters."""
        used, window = self._task.session.last.total, self._setup.context_window
        if not window and used >= LEAST_WINDOW * self._setup.compact_at:
            window = await self._task.model.context_window()
        return bool(window) and used >= window * self._setup.compact_at

    async def _compact_everything(self) -> str:
        self._task.replace_history(await self._summary())
        return "done"

    async def _compact(self, *, keeps_work: bool) -> None:
        """Put a summary in place of the history; the last prompt stays, and what was done about it if that is small."""
        tail = self._task.session.history.tail()
        summary = await self._summary()
        window = self._setup.context_window or await self._task.model.context_window()
        is_small = keeps_work and size_of(tail) // CHARS_PER_TOKEN < window // 5
        self._task.replace_history([*summary, *(tail if is_small else tail[:1])])
        self._has_made_room = True

    async def _summary(self) -> Sequence[AnyItem]:
        """The history as one item, made by the model. Of a history that is too long for that, the newest part is."""
        history = self._task.session.history
        items, chars = list(history.items), size_of(history.items)
        for _ in range(HALVINGS):
            try:
                return await self._asked(partial(self._summary_of, items))
            except BackendFault as broken:
                if not _is_overflow(broken):
                    raise
            chars //= 2
            items = newest(history.items, chars)
        return await self._asked(partial(self._summary_of, items))

    async def _summary_of(self, items: Sequence[AnyItem]) -> Sequence[AnyItem]:
        model = self._task.model
        fields = {**self._fields(), "input": [*(item.raw for item in items), {"type": "compaction_trigger"}]}
        policies: tuple[Callable[[], Any], ...] = ()
        request = model.request(fields)
        if not model.compacts:
            request = compaction.summarising(request)
            policies = (partial(compaction.IntoCompaction, f"cmp_{time.time_ns():x}"),)
        turn = model.run(request, policies, owner=self._task.session.id)
        try:
            while not turn.run.finished:
                for event in await turn.run.read(FOREVER):
                    if isinstance(event, TurnFailed):
                        raise BackendFault(event.failure)
                    if isinstance(event, Usage):
                        self._task.spend(event)
                    turn.feed(event)
        finally:
            turn.run.close()
        output = read_items(turn.encoder.output)
        made = [item for item in output if isinstance(item, OtherItem) and item.type == "compaction"]
        if not made:
            raise BackendFault(Failure(502, "no_summary", "The model gave no summary of the conversation."))
        return made


def _is_overflow(broken: BackendFault) -> bool:
    """Whether the request was too long for the model, or too large for its server."""
    return broken.failure.code == CONTEXT_LENGTH_EXCEEDED or broken.failure.status == TOO_LARGE
