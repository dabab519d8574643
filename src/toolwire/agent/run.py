"""One run of an agent: its events, then its result or its error."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec

from toolwire.agent.errors import AgentError, AnswerCut, LimitReached, MaxTurnsExceeded, RepeatedCalls, model_failed
from toolwire.agent.events import AgentEvent, TaskEnded, Tokens
from toolwire.agent.history import Item
from toolwire.agent.session import Session
from toolwire.core.errors import BackendFault, BadRequest, InternalError
from toolwire.turns.tools.loop import REPEATED_CALLS

if TYPE_CHECKING:
    from toolwire.agent.runner import Runner
    from toolwire.agent.task import Task

OutputT = TypeVar("OutputT")


class CompletedCall(msgspec.Struct, frozen=True):
    """A call of the model, with its result."""

    id: str
    name: str
    arguments: str
    """As the model wrote them."""
    result: str
    failed: bool
    seconds: float | None
    """Seconds that the tool ran; None if it never ran."""


class RunResult(msgspec.Struct, Generic[OutputT], frozen=True):
    """The result of a run."""

    output: OutputT
    """The output, of the agent's `output_type`; without one, the text."""
    text: str
    """The model's last text."""
    usage: Tokens
    """The tokens of the run, including those of agents that it used as tools."""
    items: tuple[Item, ...]
    """The items that the run added to the history, from the prompt on, or the summary that has replaced them."""
    calls: tuple[CompletedCall, ...]
    """The calls, in the order in which the model made them. After 64 million characters, results are shortened."""
    turns: int
    """The number of turns of the model."""
    session: Session
    """The conversation, which another run can continue."""


class AgentRun(Generic[OutputT]):
    """A run as a stream of events. It begins when it is iterated; leaving the context cancels it.

    async with agent.stream("…") as run:
        async for event in run:
            …
    print(run.result.output)
    """

    def __init__(
        self, start: "Callable[[AsyncExitStack], Awaitable[tuple[Runner, AsyncGenerator[AgentEvent]]]]"
    ) -> None:
        self._start = start
        self._stack = AsyncExitStack()
        self._runner: Runner | None = None
        self._events: AsyncGenerator[AgentEvent] | None = None
        self._result: RunResult[OutputT] | None = None
        self._error: BaseException | None = None
        self._is_left = False

    async def __aenter__(self) -> Self:
        if self._runner is not None:
            raise RuntimeError("this run has already begun; every run needs an `agent.stream` of its own")
        async with self._stack:
            self._runner, events = await self._start(self._stack)
            self._events = await self._stack.enter_async_context(aclosing(self._watch(self._runner, events)))
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_left = True
        await self._stack.aclose()

    def __aiter__(self) -> AsyncIterator[AgentEvent]:
        if self._events is None:
            raise RuntimeError("this run is not open: iterate over it inside `async with agent.stream(…) as run:`")
        return self._events

    async def wait(self) -> RunResult[OutputT]:
        """Wait for the end of the run, and return its result. Raises the error that the run failed with."""
        async for _ in self:
            pass
        return self.result

    @property
    def session(self) -> Session:
        """The conversation, in its current state."""
        if self._runner is None:
            raise RuntimeError("this run has not begun")
        return self._runner.session

    @property
    def result(self) -> RunResult[OutputT]:
        """The result, available after the last event. Raises the error that the run failed with."""
        if self._error is not None:
            raise self._error
        if self._result is None and self._is_left:
            raise RuntimeError("this run was left before its end, so it has no result; `await run.wait()` waits for it")
        if self._result is None:
            raise RuntimeError("this run is not over yet: its result is available after its last event")
        return self._result

    async def _watch(self, runner: "Runner", events: AsyncGenerator[AgentEvent]) -> AsyncGenerator[AgentEvent]:
        """Pass the events on, and set the result or raise the error after the last one."""
        async with aclosing(events):
            async for event in events:
                task = runner.task
                if isinstance(event, TaskEnded) and task is not None:
                    text, usage, session = event.text, event.usage, task.session
                    if event.reason == "done":
                        output: Any = task.text if task.output is None else task.output.outputs[0]
                        calls, turns = tuple(task.calls), task.tools.turns
                        self._result = RunResult(output, text, usage, task.items, calls, turns, session)
                    else:
                        self._error = _error_of(event, task)
                    if isinstance(self._error, AgentError):
                        self._error.session, self._error.text, self._error.usage = session, text, usage
                yield event
        if self._error is not None:
            raise self._error


def _error_of(ended: TaskEnded, task: "Task") -> BaseException:
    """The error for a task that did not end well."""
    match ended.reason:
        case "failed" if isinstance(task.error, BackendFault | BadRequest | InternalError):
            error = model_failed(task.error.failure)
            error.__cause__ = task.error
            return error
        case "failed":
            return task.error or InternalError(ended.error)
        case "cancelled":
            return asyncio.CancelledError()
        case "length" | "filter":
            return AnswerCut(ended.reason)
        case "max_turns":
            return MaxTurnsExceeded(task.tools.turns)
        case reason if reason == REPEATED_CALLS:
            return RepeatedCalls(ended.error)
        case reason:
            return LimitReached(reason)
