"""The calls of one turn: assembled from its events, run in parallel where their tools allow it, else one at a time.

A call starts as soon as it is complete, while the stream continues. Results are returned in the order of the calls.
When a turn is cancelled, running tools are stopped and their results say so, so that every call has a result.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, cast

import msgspec

from toolwire.core.collect import CallAssembler
from toolwire.core.request import TextPart
from toolwire.core.text import join_surrogates
from toolwire.turns.tools.call import FatalToolError, LocalShellPayload, ToolCall, ToolError
from toolwire.turns.tools.registry import Context, Registry, Result, Tool, ignore

MAX_RESULT_CHARS = 400_000
"""Maximum characters of a result: more than any built-in tool returns, and about as many as a model's window holds."""


class Gate:
    """A fair lock for readers and writers: a waiting writer holds up the readers that come after it."""

    def __init__(self) -> None:
        self._visits: list[tuple[bool, asyncio.Event]] = []  # (is_reader, ended) of holders and waiters

    @asynccontextmanager
    async def pass_through(self, *, shared: bool) -> AsyncGenerator[None]:
        """Hold the lock, as a reader (`shared`) or as a writer."""
        ahead = [ended for is_reader, ended in self._visits if not (shared and is_reader)]
        visit = (shared, asyncio.Event())
        self._visits.append(visit)
        try:
            for ended in ahead:
                await ended.wait()
            yield
        finally:
            self._visits.remove(visit)
            visit[1].set()


class Finished(msgspec.Struct, frozen=True):
    """A call with its result."""

    call: ToolCall
    result: Result
    seconds: float | None
    """How long its tool ran; None if it never did."""


class Running:
    """A call whose task has been started."""

    def __init__(self, call: ToolCall, run: "Callable[[Running], Coroutine[Any, Any, Result]]") -> None:
        self.call = call
        self.began: float | None = None
        """When its tool began to run."""
        self.task = asyncio.get_running_loop().create_task(run(self))
        self.result: Finished | None = None
        self.is_stopping = False


Approve: TypeAlias = Callable[[Tool, ToolCall], Awaitable[str]]
"""Decides whether a call may run: returns the reason against it, or an empty string."""
Judge: TypeAlias = Callable[[ToolCall, Result], Result]
"""Receives every result once, and returns the result that the model reads."""
Before: TypeAlias = Callable[[ToolCall, Context], Awaitable[ToolCall | Result]]
"""Receives a call before its approval, and returns the call to run, or a result instead."""
After: TypeAlias = Callable[[ToolCall, Result, Context], Awaitable[Result]]
"""Receives the result of a tool, failed or not, and returns the result that counts."""


class CallHooks(msgspec.Struct, frozen=True):
    """The callbacks around the calls of a turn."""

    context: Callable[[ToolCall], Context]
    """Makes the context of a call."""
    started: Callable[[ToolCall], None] = ignore
    """Called when the tool of a call begins to run."""
    finished: Callable[[Finished], None] = ignore
    """Called once for every call, when it has its result."""
    approve: Approve | None = None
    before: Before | None = None
    after: After | None = None


class TurnCalls:
    """The calls of one turn: started as they arrive, results in the order of the calls."""

    def __init__(self, registry: Registry, hooks: CallHooks, judge: Judge | None = None) -> None:
        self._registry = registry
        self._hooks = hooks
        self._judge = judge
        self._gate = Gate()
        self._running: list[Running] = []
        self.assembler = CallAssembler()
        """Takes the events of the turn, and returns the calls that they complete. Pass each of them to `start`."""
        self.fatal: FatalToolError | None = None
        """The error of a tool that ends the turn."""
        self.was_cancelled = False
        """Whether waiting for the results was cancelled."""

    def start(self, call: ToolCall) -> None:
        """Run a call now, or as soon as the others allow it."""
        running = Running(call, self._run)
        self._running.append(running)
        running.task.add_done_callback(lambda _: self._finish(running))

    async def results(self) -> list[Finished]:
        """Wait for all results, in the order of the calls. `fatal` is set if one of them must end the turn.

        If this is cancelled, it cancels the calls, still waits for their results, and sets `was_cancelled`.
        """
        while any(not each.task.done() for each in self._running):
            try:
                await asyncio.wait([each.task for each in self._running])
            except asyncio.CancelledError:
                self.was_cancelled = True
                self.cancel()
        running, self._running = self._running, []
        for each in running:
            error = None if each.task.cancelled() else each.task.exception()
            self.fatal = self.fatal or (fatal_in(error) if error is not None else None)
        return [self._finish(each) for each in running]

    def cancel(self) -> None:
        """Cancel each running call, but only once: the clean-up of a tool must not be interrupted."""
        for each in self._running:
            if not each.is_stopping:
                each.is_stopping = True
                each.task.cancel()

    async def _run(self, running: Running) -> Result:
        call = running.call
        tool = self._registry.get(call.name)
        if tool is None:
            raise ToolError(f"unsupported call: {call.name}")
        async with self._gate.pass_through(shared=tool.parallel):
            context = self._hooks.context(call)
            if self._hooks.before is not None:
                changed = await self._hooks.before(call, context)
                if isinstance(changed, Result):
                    return _bound(changed)
                call = same_tool(call, changed)
            if self._hooks.approve is not None:
                refusal = await self._hooks.approve(tool, call)
                if refusal:
                    raise ToolError(refusal)
            running.began = time.monotonic()
            self._hooks.started(call)
            result = await _run_tool(tool, call, context)
            after = self._hooks.after
            return _bound(await after(call, result, context) if after is not None else result)

    def _finish(self, running: Running) -> Finished:
        """The call with its result. It is reported once: when its task is done, or earlier if its result is taken."""
        if running.result is None:
            call, task = running.call, running.task
            seconds = time.monotonic() - running.began if running.began is not None else None
            if task.cancelled():
                result = failure(abort_message(call, seconds))
            else:
                error = task.exception()
                result = task.result() if error is None else failure(_reason(error))
            result = _without_surrogates(result)
            running.result = Finished(call, self._judge(call, result) if self._judge else result, seconds)
            self._hooks.finished(running.result)
        return running.result


async def _run_tool(tool: Tool, call: ToolCall, context: Context) -> Result:
    """The result of a tool. An exception becomes a failed result, unless it ends the turn or cancels the call."""
    try:
        return await tool.run(call, context)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # otherwise the tool itself has raised it
            raise
        return failure(_reason(error))
    except (Exception, SystemExit, KeyboardInterrupt, BaseExceptionGroup) as error:
        if fatal_in(error) is not None:
            raise
        return failure(_reason(error))


def same_tool(call: ToolCall, changed: ToolCall) -> ToolCall:
    """A changed call, of the same tool: the approver must see the name of the tool that runs."""
    return msgspec.structs.replace(changed, name=call.name, call_id=call.call_id)


def fatal_in(error: BaseException) -> FatalToolError | None:
    """The error that ends the turn: this one, or one inside a group, as an `asyncio.TaskGroup` raises it."""
    return next((each for each in _flatten(error) if isinstance(each, FatalToolError)), None)


def _flatten(error: BaseException) -> Iterator[BaseException]:
    """The single errors of a group, at any depth."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
        yield from _flatten(each)


def _reason(error: BaseException) -> str:
    """The text for the model about an error; for a group, one line for each of its errors."""

    def describe(error: BaseException) -> str:
        if isinstance(error, ToolError | FatalToolError):
            return str(error) or "the tool failed without a reason"
        if isinstance(error, asyncio.CancelledError):
            return "CancelledError: the tool cancelled itself"
        return f"{type(error).__name__}: {error}".removesuffix(": ")

    return "\n".join(map(describe, _flatten(error)))


def abort_message(call: ToolCall, seconds: float | None) -> str:
    """The text for the model about a call that was cancelled, while it ran or before."""
    if seconds is None:
        return "aborted by user before it started"
    shown = f"{max(0.1, seconds):.1f}"
    if isinstance(call.payload, LocalShellPayload) or call.name in ("exec_command", "Bash"):
        return f"Wall time: {shown} seconds\naborted by user"
    return f"aborted by user after {shown}s"


def _bound(result: Result) -> Result:
    """The result, small enough for a request: only the beginning and the end of long texts are kept."""
    texts = [part.text for part in result.parts if isinstance(part, TextPart)]
    if sum(map(len, texts)) <= MAX_RESULT_CHARS:
        return result
    limit = MAX_RESULT_CHARS // len(texts)
    parts = (TextPart(shorten(part.text, limit)) if isinstance(part, TextPart) else part for part in result.parts)
    return Result(tuple(parts), result.failed)


def _without_surrogates(result: Result) -> Result:
    """A result that can be written as JSON: lone surrogates are replaced."""
    if all(part.text.isascii() for part in result.parts if isinstance(part, TextPart)):
        return result
    parts = (TextPart(join_surrogates(part.text)) if isinstance(part, TextPart) else part for part in result.parts)
    return Result(tuple(parts), result.failed)


def shorten(text: str, limit: int) -> str:
    """The text; if it is longer than the limit, its beginning and its end."""
    if len(text) <= limit:
        return text
    head, tail = limit * 3 // 4, limit // 4
    return f"{text[:head]}\n… {len(text) - head - tail} characters left out …\n{text[len(text) - tail :]}"


def failure(text: str) -> Result:
    """The result of a call that failed for this reason."""
    return Result((TextPart(text),), failed=True)
