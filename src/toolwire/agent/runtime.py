"""Runs the calls of a turn: at once, side by side where they may, one at a time where they must.

A call starts the moment its item is done, while the stream goes on. Results are given back in the order of the calls.
When a turn is cancelled, what still runs is stopped and says so, so that every call has a result.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec

from toolwire.agent.call import Fatal, LocalShellPayload, ToolCall, ToolError
from toolwire.agent.registry import Context, Registry, Result, Tool
from toolwire.core.request import Part, TextPart

MOST_LETTERS = 400_000
"""Of a result: more than any tool here gives, and about as much as a model's window may hold."""


class Gate:
    """A lock for readers and writers, in the order in which they come: a writer who waits holds up later readers."""

    def __init__(self) -> None:
        self._readers = 0
        self._writing = False
        self._waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def pass_through(self, *, shared: bool) -> AsyncGenerator[None]:
        await self._enter(shared)
        try:
            yield
        finally:
            self._leave(shared)

    async def _enter(self, shared: bool) -> None:
        if not self._waiting and self._is_free(shared):
            self._take(shared)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (shared, turn)
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(shared)  # it was let in just now
            else:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                self._admit()
            raise

    def _is_free(self, shared: bool) -> bool:
        return not self._writing and (shared or not self._readers)

    def _take(self, shared: bool) -> None:
        if shared:
            self._readers += 1
        else:
            self._writing = True

    def _leave(self, shared: bool) -> None:
        if shared:
            self._readers -= 1
        else:
            self._writing = False
        self._admit()

    def _admit(self) -> None:
        while self._waiting and (self._waiting[0][1].done() or self._is_free(self._waiting[0][0])):
            shared, turn = self._waiting.popleft()
            if not turn.done():  # else it was cancelled just now
                self._take(shared)
                turn.set_result(None)


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
"""Sees every result once, and gives what the model is to read."""


class Runtime:
    """The calls of one step: started as they come, given back in order."""

    def __init__(
        self,
        registry: Registry,
        context: Callable[[ToolCall], Context],
        started: Callable[[ToolCall], None],
        finished: Callable[[Finished], None],
        approve: Approve | None = None,
        judge: Judge | None = None,
    ) -> None:
        self._registry = registry
        self._context = context
        self._started = started
        self._finished = finished
        self._approve = approve
        self._judge = judge
        self._gate = Gate()
        self._running: list[Running] = []
        self.fatal: Fatal | None = None
        self.was_cancelled = False

    def start(self, call: ToolCall) -> None:
        """Run a call now, or as soon as the others let it."""
        running = Running(call, self._run)
        self._running.append(running)
        running.task.add_done_callback(lambda _: self._note(running))

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
            self._note(each)
        return [self._result(each) for each in running]

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
            raise ToolError(_unknown(call))
        async with self._gate.pass_through(shared=tool.parallel):
            if self._approve is not None:
                why_not = await self._approve(tool, call)
                if why_not:
                    raise ToolError(why_not)
            running.began = time.monotonic()
            self._started(call)
            try:
                return bounded(await tool.run(call, self._context(call)))
            except (SystemExit, KeyboardInterrupt) as error:
                # A tool that wants to leave has failed; nobody else leaves with it.
                raise ToolError(_named(error)) from None

    def _note(self, running: Running) -> None:
        """Tell once that a call has ended: when its task is done, or when its result is taken before that is heard."""
        if running.result is None:
            self._finished(self._result(running))

    def _result(self, running: Running) -> Finished:
        if running.result is None:
            call, began = running.call, running.began
            seconds = time.monotonic() - began if began is not None else None
            result = _result_of(running.task, call, seconds)
            running.result = Finished(call, self._judge(call, result) if self._judge else result, seconds)
        return running.result


def _unknown(call: ToolCall) -> str:
    return f"unsupported call: {call.name}"


def _fatal(task: "asyncio.Task[Result]") -> Fatal | None:
    error = None if task.cancelled() else task.exception()
    return error if isinstance(error, Fatal) else None


def _result_of(task: "asyncio.Task[Result]", call: ToolCall, seconds: float | None) -> Result:
    if task.cancelled():
        return failure(aborted(call, seconds))
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, ToolError | Fatal):
        return failure(str(error))
    return failure(_named(error))


def _named(error: BaseException) -> str:
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
    if sum(len(part.text) for part in result.parts if isinstance(part, TextPart)) <= MOST_LETTERS:
        return result
    most = MOST_LETTERS // sum(isinstance(part, TextPart) for part in result.parts)
    return Result(tuple(_shortened(part, most) for part in result.parts), result.failed)


def _shortened(part: Part, most: int) -> Part:
    return TextPart(shortened(part.text, most)) if isinstance(part, TextPart) else part


def shortened(text: str, most: int) -> str:
    """The text, or of one that is longer the beginning and the end."""
    if len(text) <= most:
        return text
    head, tail = most * 3 // 4, most // 4
    return f"{text[:head]}\n… {len(text) - head - tail} letters left out …\n{text[len(text) - tail :]}"


def failure(text: str) -> Result:
    return Result((TextPart(text),), failed=True)
