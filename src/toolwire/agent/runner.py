"""An agent at work: a model, tools and one session. `toolwire run` and every run of an `Agent` use it.

async with Runner(Model(settings, "demo"), tools=tools) as runner:
    async for event in runner.stream("What is the weather in Paris?"):
        …
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from toolwire.agent.approval import Approver, why_not
from toolwire.agent.events import AgentEvent, ApprovalAsked, TaskEnded, TaskStarted, Tokens
from toolwire.agent.feed import Feed
from toolwire.agent.history import History, user_message
from toolwire.agent.hooks import AfterCall, BeforeCall, after_hook, before_hook, outcome
from toolwire.agent.images import image_url
from toolwire.agent.loop import AgentConfig, Loop
from toolwire.agent.model import Model
from toolwire.agent.output import FINAL_RESULT, OutputTool
from toolwire.agent.session import Session
from toolwire.agent.task import Task
from toolwire.agent.waiting import wait_through
from toolwire.config.settings import Settings
from toolwire.core.surrogates import whole_text
from toolwire.turns.tools.call import ToolCall
from toolwire.turns.tools.calls import CallHooks
from toolwire.turns.tools.registry import Context, Registry, Tool, as_tool
from toolwire.upstream.environment import inherited


class CallOptions(msgspec.Struct, frozen=True):
    """What happens around calls, and what their tools are given."""

    approver: Approver | None = None
    """Asked where the configuration requires approval."""
    before: BeforeCall | None = None
    after: AfterCall | None = None
    deps: Any = None


class Runner:
    """Works on one prompt after another, in one session.

    A `model` that is open already stays open. `tools` are tools or plain functions. `session` may be a resumed one;
    without one nothing is written to disk. With an `output` the model has to give one through it.
    """

    def __init__(
        self,
        model: Model,
        *,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        config: AgentConfig | None = None,
        cwd: str | Path = ".",
        calls: CallOptions | None = None,
        session: Session | None = None,
        output: OutputTool[Any] | None = None,
    ) -> None:
        self.config = config or AgentConfig()
        self.cwd = Path(cwd).resolve()
        self.registry = Registry(as_tool(each) for each in tools)
        self.session = session or Session.begin(model.name, self.cwd, None)
        self.task: Task | None = None
        """The last piece of work that was begun."""
        self._model = model
        self._owns_model = not model.is_open
        self._calls = calls or CallOptions()
        self._output = output
        self._working: asyncio.Task[None] | None = None
        if output is not None:
            self.registry.add(output)

    async def __aenter__(self) -> "Runner":
        self.session.hold()
        if self._owns_model:
            await self._model.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the running task and release all resources."""
        self.cancel()
        if self._working is not None:
            await asyncio.wait([self._working])
        if self._owns_model:
            await self._model.close()
        self.session.close()

    @property
    def settings(self) -> Settings:
        """Those of the model."""
        return self._model.settings

    @property
    def history(self) -> History:
        """The items of the conversation."""
        return self.session.history

    @property
    def usage(self) -> Tokens:
        """The tokens of the session."""
        return self.session.usage

    async def stream(self, prompt: str, images: Sequence[str | Path] = ()) -> AsyncGenerator[AgentEvent]:
        """Work on a prompt and yield everything that happens. Leaving the iteration cancels the task.

        Images are files, or URLs as text.
        """
        self._check_free()
        prompt = whole_text(prompt)
        message = user_message(prompt, tuple(map(image_url, images)))
        with self.session.in_use():
            loop, feed, task = self._begin()
            feed.put(TaskStarted(self.session.id, self._model.name, prompt))
            self.session.add([message])
            async with aclosing(self._events(loop.work(), task, feed)) as events:
                async for event in events:
                    yield event

    async def compact(self) -> AsyncGenerator[AgentEvent]:
        """Put a summary in place of the conversation, and yield what happens."""
        self._check_free()
        with self.session.in_use():
            loop, feed, task = self._begin()
            async with aclosing(self._events(loop.compact(), task, feed)) as events:
                async for event in events:
                    yield event

    async def use_model(self, name: str) -> None:
        """Ask another model from the next prompt on. If nobody serves it, `BadRequest` says so, and nothing changes."""
        self._check_free()
        model = Model(self.settings, name, idle=self.config.idle)
        await model.open()
        old, self._model = self._model, model
        self.session.use_model(name)
        if self._owns_model:
            await old.close()
        self._owns_model = True

    def _check_free(self) -> None:
        if self._working is not None and not self._working.done():
            raise RuntimeError("this runner is at work already")
        if not self._model.is_open:
            raise RuntimeError("this runner is not open: work with it inside of `async with runner:`")

    def _begin(self) -> tuple[Loop, Feed, Task]:
        feed = Feed()
        hooks = self._hooks(feed)
        limits = self.config.limits
        self.task = task = Task(self._model, self.session, feed, self.registry, hooks, limits, self._output)
        return Loop(task, self.config), feed, task

    def _hooks(self, feed: Feed) -> CallHooks:
        settings, calls = self.settings, self._calls
        inherit = partial(inherited, settings.secret_variables, settings.agent.inherit)
        context = Context(self.cwd, writable=not self.config.read_only, approved=True, inherit=inherit, deps=calls.deps)
        asks = partial(_ask, feed, calls.approver) if calls.approver is not None else None
        approve = partial(why_not, context, self.config.approve, asks)
        output = FINAL_RESULT if self._output is not None else ""
        return CallHooks(
            lambda _: context,
            approve=partial(_approve, approve, output),
            before=before_hook(calls.before, ignored=output) if calls.before is not None else None,
            after=after_hook(calls.after, ignored=output) if calls.after is not None else None,
        )

    async def _events(self, work: Coroutine[Any, Any, None], task: Task, feed: Feed) -> AsyncGenerator[AgentEvent]:
        """Everything that happens while this work is done."""
        self._working = working = asyncio.get_running_loop().create_task(work)
        working.add_done_callback(partial(_end, task, feed))
        try:
            async for event in feed:
                yield event
        finally:
            if not working.done():
                working.cancel()
                await wait_through(working)

    def cancel(self) -> None:
        """Stop the running task and its tools; every call in the history gets a result."""
        if self._working is not None and not self._working.done():
            self._working.cancel()


async def _ask(feed: Feed, approver: Approver, tool: Tool, call: ToolCall) -> bool | str:
    feed.put(ApprovalAsked(call.call_id, call.name, call.text))
    return await outcome(approver, tool, call)


async def _approve(
    approve: Callable[[Tool, ToolCall], Coroutine[Any, Any, str]], output: str, tool: Tool, call: ToolCall
) -> str:
    """Why a call may not run; the tool by which the model gives its output always may."""
    return "" if call.name == output else await approve(tool, call)


def _end(task: Task, feed: Feed, working: "asyncio.Task[None]") -> None:
    """End the feed of work that could not do so itself."""
    error = None if working.cancelled() else working.exception()
    if working.cancelled() or error is not None:
        task.error = error
        feed.put(TaskEnded("cancelled" if error is None else "failed", "", Tokens(), str(error or "")))
