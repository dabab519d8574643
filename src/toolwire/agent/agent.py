"""An agent: a model, its tools and a session.

@tool(parallel=True)
def weather(city: str) -> str:
    \"\"\"The weather in a city.\"\"\"
    return f"18 degrees in {city}"

async with Agent("demo", tools=[weather]) as agent:
    print((await agent.run("What is the weather in Paris?")).text)
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import Any

from toolwire.agent.approval import Approver, why_not
from toolwire.agent.events import AgentEvent, ApprovalAsked, TaskEnded, TaskStarted, Tokens
from toolwire.agent.feed import Feed
from toolwire.agent.history import History, user_message
from toolwire.agent.images import image_url
from toolwire.agent.loop import AgentConfig, Loop
from toolwire.agent.model import Model, with_backend
from toolwire.agent.session import Session
from toolwire.agent.task import Task
from toolwire.turns.settings import Settings, load
from toolwire.turns.tools.call import ToolCall
from toolwire.turns.tools.registry import Context, Registry, Tool, as_tool
from toolwire.upstream.environment import inherited


class Agent:
    """Works on one prompt after another, in one conversation.

    `tools` are tools or plain functions. `backend` is the name of a configured backend, or `KIND:URL`. `settings`
    default to the user's configuration file and the environment. `approver` is asked where `config` requires approval.
    `session` may be a resumed one; without one nothing is written to disk.
    """

    def __init__(
        self,
        model: str = "demo",
        *,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        config: AgentConfig | None = None,
        backend: str = "",
        settings: Settings | None = None,
        cwd: str | Path = ".",
        approver: Approver | None = None,
        session: Session | None = None,
    ) -> None:
        chosen, name = with_backend(settings or load(None), backend, model)
        self.config = config or AgentConfig()
        self.cwd = Path(cwd).resolve()
        self.registry = Registry(as_tool(each) for each in tools)
        self.session = session or Session.begin(name, self.cwd, None)
        self.settings = chosen
        """Those that it was given, with the backend that was."""
        self._inherit = partial(inherited, chosen.secret_variables, chosen.agent.inherit)
        self._model = Model(chosen, name, idle=self.config.idle)
        self._approver = approver
        self._task: asyncio.Task[None] | None = None
        self._closers = AsyncExitStack()

    async def __aenter__(self) -> "Agent":
        self.session.hold()
        await self._model.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the running task and release all resources."""
        self.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._closers.aclose()
        await self._model.close()
        self.session.close()

    def on_close(self, closer: Callable[[], Any]) -> None:
        """Register a coroutine function to await when the agent is closed, such as closing MCP servers."""
        self._closers.push_async_callback(closer)

    @property
    def history(self) -> History:
        """The items of the conversation."""
        return self.session.history

    @property
    def usage(self) -> Tokens:
        """The tokens of the session."""
        return self.session.usage

    async def stream(self, prompt: str, images: Sequence[str | Path] = ()) -> AsyncIterator[AgentEvent]:
        """Work on a prompt and yield everything that happens. Leaving the iteration cancels the task.

        Images are files, or URLs as text.
        """
        self._check_free()
        message = user_message(prompt, tuple(map(image_url, images)))
        loop, feed = self._loop()
        feed.put(TaskStarted(self.session.id, self._model.name, prompt))
        self.session.add([message])
        async with aclosing(self._events(loop.work(), feed)) as events:
            async for event in events:
                yield event

    async def compact(self) -> AsyncIterator[AgentEvent]:
        """Put a summary in place of the conversation, and yield what happens."""
        self._check_free()
        loop, feed = self._loop()
        async with aclosing(self._events(loop.compact(), feed)) as events:
            async for event in events:
                yield event

    async def use_model(self, name: str) -> None:
        """Ask another model from the next prompt on. If nobody serves it, `BadRequest` says so, and nothing changes."""
        self._check_free()
        model = Model(self.settings, name, idle=self.config.idle)
        await model.open()
        old, self._model = self._model, model
        self.session.use_model(name)
        await old.close()

    def _check_free(self) -> None:
        if self._task is not None and not self._task.done():
            raise RuntimeError("this agent is at work already")
        if not self._model.is_open:
            raise RuntimeError("this agent is not open: work with it inside of `async with agent:`")

    def _loop(self) -> tuple[Loop, Feed]:
        feed = Feed()
        asks = partial(_ask, feed, self._approver) if self._approver is not None else None
        approve = partial(why_not, self.config.approve, asks, self.config.read_only)
        context = Context(self.cwd, writable=not self.config.read_only, inherit=self._inherit)
        work = Task(self._model, self.session, feed, self.registry, approve, context, self.config.limits)
        return Loop(work, self.config), feed

    async def _events(self, work: Coroutine[Any, Any, None], feed: Feed) -> AsyncGenerator[AgentEvent]:
        """Everything that happens while this work is done."""
        self._task = task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(partial(_end, feed))
        try:
            async for event in feed:
                yield event
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    async def run(self, prompt: str, images: Sequence[str | Path] = ()) -> TaskEnded:
        """Work on a prompt until it is done, and return how it ended."""
        ended: TaskEnded | None = None
        async for event in self.stream(prompt, images):
            if isinstance(event, TaskEnded):
                ended = event
        assert ended is not None
        return ended

    def cancel(self) -> None:
        """Stop the running task and its tools; every call in the history gets a result."""
        if self._task is not None and not self._task.done():
            self._task.cancel()


async def _ask(feed: Feed, approver: Approver, tool: Tool, call: ToolCall) -> bool | str:
    feed.put(ApprovalAsked(call.call_id, call.name, call.text))
    return await approver(tool, call)


def _end(feed: Feed, task: "asyncio.Task[None]") -> None:
    """End the feed of a task that could not do so itself."""
    error = None if task.cancelled() else task.exception()
    if task.cancelled() or error is not None:
        feed.put(TaskEnded("cancelled" if error is None else "failed", "", Tokens(), str(error or "")))
