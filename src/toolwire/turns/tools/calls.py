"""The calls of one turn: assembled from its events, run side by side where their tools allow it, else one at a time.

A call starts as soon as it is whole, while the stream goes on. Results are returned in the order of the calls. When a
turn is cancelled, running tools are stopped and their results say so, so that every call has a result.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, cast

import msgspec

from toolwire.core.collect import CallAssembler
from toolwire.core.request import TextPart
from toolwire.core.surrogates import whole_text
from toolwire.turns.tools.call import FatalToolError, LocalShellPayload, ToolCall, ToolError
from toolwire.turns.tools.registry import Context, Registry, Result, Tool, ignore

MAX_CHARS = 400_000
"""Characters of a result: more than any tool here returns, and about as much as a model's window may hold."""


class Gate:
    """A lock for readers and writers, in the order in which they come: a writer who waits holds up later readers."""

    def __init__(self) -> None:
        self._visits: list[tuple[bool, asyncio.Event]] = []  # who is inside or waits: a reader or not, and its end

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
    """A call under way."""

    def __init__(self, call: ToolCall, run: "Callable[[Running], Coroutine[Any, Any, Result]]") -> None:
        self.call = call
        self.began: float | None = None
        """Since when its tool runs."""
        self.task = asyncio.get_running_loop().create_task(run(self))
        self.result: Finished | None = None
        self.is_stopping = False


Approve: TypeAlias = Callable[[Tool, ToolCall], Awaitable[str]]
"""Asks whether a call may run; the answer is why not, or nothing."""
Judge: TypeAlias = Callable[[ToolCall, Result], Result]
"""Sees every result once, and returns what the model is to read."""


Before: TypeAlias = Callable[[ToolCall, Context], Awaitable[ToolCall | Result]]
"""Sees a call before anybody is asked about it, and returns the call to run, or a result in its place."""
After: TypeAlias = Callable[[ToolCall, Result, Context], Awaitable[Result]]
"""Sees what a tool returned, or why it failed, and returns the result that counts."""


class CallHooks(msgspec.Struct, frozen=True):
    """What the owner of a turn adds to the running of its calls."""

    context: Callable[[ToolCall], Context]
    """Makes what the tool may know."""
    started: Callable[[ToolCall], None] = ignore
    """Called when the tool of a call begins to run."""
    finished: Callable[[Finished], None] = ignore
    """Called once for every call, when its result is there."""
    approve: Approve | None = None
    before: Before | None = None
    after: After | None = None


class TurnCalls:
    """The calls of one turn: started as they come, results in the order of the calls."""

    def __init__(self, registry: Registry, hooks: CallHooks, judge: Judge | None = None) -> None:
        self._registry = registry
        self._hooks = hooks
        self._judge = judge
        self._gate = Gate()
        self._running: list[Running] = []
        self.assembler = CallAssembler()
        """Takes the events of the turn in, and returns the calls that they end, which the owner may start."""
        self.fatal: FatalToolError | None = None
        """The error of a tool after which the turn cannot go on."""
        self.was_cancelled = False
        """Whoever waited for the results was cancelled."""

    def start(self, call: ToolCall) -> None:
        """Run a call now, or as soon as the others let it."""
        running = Running(call, self._run)
        self._running.append(running)
        running.task.add_done_callback(lambda _: self._finished(running))

    async def results(self) -> list[Finished]:
        """All results, in the order of the calls. `fatal` is set if one of them must end the turn.

        Whoever cancels this cancels the calls; their results are waited for all the same, and `was_cancelled` is set.
        """
        while any(not each.task.done() for each in self._running):
            try:
                await asyncio.wait([each.task for each in self._running])
            except asyncio.CancelledError:
                self.was_cancelled = True
                self.cancel()
        running, self._running = self._running, []
        for each in running:
            self.fatal = self.fatal or _fatal(each.task)
        return [self._finished(each) for each in running]

    def cancel(self) -> None:
        """Stop what runs, once: what a tool does in order to end must not be stopped too. Its results say so."""
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
                    return bounded(changed)
                call = same_tool(call, changed)
            if self._hooks.approve is not None:
                why_not = await self._hooks.approve(tool, call)
                if why_not:
                    raise ToolError(why_not)
            running.began = time.monotonic()
            self._hooks.started(call)
            return bounded(await self._result(tool, call, context))

    async def _result(self, tool: Tool, call: ToolCall, context: Context) -> Result:
        """What a tool returns, or what is made of that."""
        after = self._hooks.after
        try:
            result = await tool.run(call, context)
        except asyncio.CancelledError as error:
            if _is_being_cancelled():
                raise
            result = failure(_reason(error))
        except (Exception, SystemExit, KeyboardInterrupt, BaseExceptionGroup) as error:
            if fatal_in(error) is not None:
                raise
            result = failure(_reason(error))
        return await after(call, result, context) if after is not None else result

    def _finished(self, running: Running) -> Finished:
        """The call with its result, reported once: when its task is done, or when its result is taken before that."""
        if running.result is None:
            call, began = running.call, running.began
            seconds = time.monotonic() - began if began is not None else None
            result = whole(_result_of(running.task, call, seconds))
            running.result = Finished(call, self._judge(call, result) if self._judge else result, seconds)
            self._hooks.finished(running.result)
        return running.result


def same_tool(call: ToolCall, changed: ToolCall) -> ToolCall:
    """A changed call, of the same tool: whoever approves it must see the name of the tool that runs."""
    return msgspec.structs.replace(changed, name=call.name, call_id=call.call_id)


def _is_being_cancelled() -> bool:
    """Whether somebody has cancelled this call; otherwise its tool raised the `CancelledError` by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _fatal(task: "asyncio.Task[Result]") -> FatalToolError | None:
    error = None if task.cancelled() else task.exception()
    return fatal_in(error) if error is not None else None


def fatal_in(error: BaseException) -> FatalToolError | None:
    """The error that ends the turn: this one, or one in a group of them, as an `asyncio.TaskGroup` raises."""
    return next((each for each in _single_errors(error) if isinstance(each, FatalToolError)), None)


def _single_errors(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
        yield from _single_errors(each)


def _result_of(task: "asyncio.Task[Result]", call: ToolCall, seconds: float | None) -> Result:
    if task.cancelled():
        return failure(aborted(call, seconds))
    error = task.exception()
    if error is None:
        return task.result()
    return failure(_reason(error))


def _reason(error: BaseException) -> str:
    """What the model reads about an error; of a group, about each of its errors."""
    return "\n".join(_named(each) for each in _single_errors(error))


def _named(error: BaseException) -> str:
    if isinstance(error, ToolError | FatalToolError):
        return str(error) or "the tool failed without a reason"
    if isinstance(error, asyncio.CancelledError):
        return "CancelledError: the tool cancelled itself"
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def aborted(call: ToolCall, seconds: float | None) -> str:
    """What a model reads about a call that was stopped, while it ran or before."""
    if seconds is None:
        return "aborted by user before it started"
    shown = f"{max(0.1, seconds):.1f}"
    if isinstance(call.payload, LocalShellPayload) or call.name in ("exec_command", "Bash"):
        return f"Wall time: {shown} seconds\naborted by user"
    return f"aborted by user after {shown}s"


def bounded(result: Result) -> Result:
    """A result that fits into a request: of a text that is far too long, the beginning and the end."""
    if sum(len(part.text) for part in result.parts if isinstance(part, TextPart)) <= MAX_CHARS:
        return result
    most = MAX_CHARS // sum(isinstance(part, TextPart) for part in result.parts)
    parts = (TextPart(shortened(part.text, most)) if isinstance(part, TextPart) else part for part in result.parts)
    return Result(tuple(parts), result.failed)


def whole(result: Result) -> Result:
    """A result that can be written as JSON: half a character that stands alone is replaced."""
    if all(part.text.isascii() for part in result.parts if isinstance(part, TextPart)):
        return result
    parts = (TextPart(whole_text(part.text)) if isinstance(part, TextPart) else part for part in result.parts)
    return Result(tuple(parts), result.failed)


def shortened(text: str, most: int) -> str:
    """The text, or of one that is longer the beginning and the end."""
    if len(text) <= most:
        return text
    head, tail = most * 3 // 4, most // 4
    return f"{text[:head]}\n… {len(text) - head - tail} characters left out …\n{text[len(text) - tail :]}"


def failure(text: str) -> Result:
    """The result of a call that failed for this reason."""
    return Result((TextPart(text),), failed=True)
