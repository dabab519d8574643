"""A runner works on prompts with a model, tools and one session. `toolwire run` and every run of an `Agent` use it.

async with Runner(Model(settings, "demo"), tools=tools) as runner:
    async for event in runner.stream("What is the weather in Paris?"):
        …
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

from toolwire.agent.approval import CallOptions
from toolwire.agent.changes import Changes
from toolwire.agent.events import AgentEvent, TaskStarted
from toolwire.agent.history import user_message
from toolwire.agent.model import Model
from toolwire.agent.output import OutputTool
from toolwire.agent.sandbox import choose_sandbox
from toolwire.agent.session import Session
from toolwire.agent.task import AgentConfig, Task
from toolwire.agent.tools.image import image_url
from toolwire.core.text import join_surrogates
from toolwire.turns.tools.concurrency import wait_until_done
from toolwire.turns.tools.registry import Registry, Tool, as_tool


class Runner:
    """Works on one prompt after another, in one session.

    A `model` that is already open stays open. `tools` are tools or plain functions. `session` may be a resumed one;
    without a session nothing is written to disk. With an `output` tool, the model must call it to give its output.
    Raises `ValueError` if the sandbox of the `config` does not work.
    """

    def __init__(
        self,
        model: Model,
        *,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        config: AgentConfig | None = None,
        cwd: str | Path = ".",
        calls: CallOptions = CallOptions(),  # noqa: B008 - it is frozen
        session: Session | None = None,
        output: OutputTool[Any] | None = None,
    ) -> None:
        self.config = config or AgentConfig()
        self.sandbox = choose_sandbox(self.config.sandbox, network=self.config.network)
        self.cwd = Path(cwd).resolve()
        self.registry = Registry(as_tool(each) for each in tools)
        self.session = session or Session.begin(model.name, self.cwd, None)
        self.task: Task | None = None
        """The last task that was begun."""
        self.changes = Changes()
        """The changes of files in this session."""
        self.model = model
        self.calls = calls
        self.output = output
        self._owns_model = not model.is_open
        self._working: asyncio.Task[None] | None = None
        if output is not None:
            self.registry.add(output)

    async def __aenter__(self) -> "Runner":
        self.session.hold()
        if self._owns_model:
            await self.model.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel the running task, and release the model and the session."""
        self.cancel()
        if self._working is not None:
            await asyncio.wait([self._working])
        if self._owns_model:
            await self.model.close()
        self.session.close()

    def stream(self, prompt: str, images: Sequence[str | Path] = ()) -> AsyncGenerator[AgentEvent]:
        """Work on a prompt and yield the events. Leaving the iteration cancels the task.

        Images are files as `Path`, or URLs as `str`. Raises `ValueError` for one that cannot be used.
        """

        def begin(task: Task) -> Coroutine[Any, Any, None]:
            message = user_message(join_surrogates(prompt), tuple(map(image_url, images)))
            task.put(TaskStarted(self.session.id, self.model.name, message.text))
            self.session.add([message])
            return task.run(task.work)

        return self._run(begin)

    def compact(self) -> AsyncGenerator[AgentEvent]:
        """Replace the conversation with a summary, and yield the events."""
        return self._run(lambda task: task.run(task.compact))

    async def use_model(self, name: str) -> None:
        """Use another model from the next prompt on. Raises `BadRequest`, and changes nothing, if there is none."""
        self._check_idle()
        model = Model(self.model.settings, name, idle=self.config.idle)
        await model.open()
        old, self.model = self.model, model
        self.session.use_model(name)
        if self._owns_model:
            await old.close()
        self._owns_model = True

    def cancel(self) -> None:
        """Cancel the running task and its tools; every call in the history gets a result."""
        if self._working is not None and not self._working.done():
            self._working.cancel()

    def _check_idle(self) -> None:
        if self._working is not None and not self._working.done():
            raise RuntimeError("this runner is already at work")
        if not self.model.is_open:
            raise RuntimeError("this runner is not open: work with it inside of `async with runner:`")

    async def _run(self, begin: Callable[[Task], Coroutine[Any, Any, None]]) -> AsyncGenerator[AgentEvent]:
        """The events of a new task, up to its end."""
        self._check_idle()
        with self.session.in_use():
            self.changes.begin()
            self.task = task = Task(self)
            self._working = working = asyncio.get_running_loop().create_task(begin(task))
            working.add_done_callback(task.close)
            try:
                async for event in task.events:
                    yield event
            finally:
                if not working.done():
                    working.cancel()
                    await wait_until_done(working)
