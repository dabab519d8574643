"""An agent: a model, tools and instructions, shared by any number of runs.

@tool
def weather(city: str) -> str:
    \"\"\"The weather in a city.\"\"\"
    return f"18 degrees in {city}"

agent = Agent("demo", tools=[weather])
result = await agent.run("What is the weather in Paris?")

It holds no conversation: every run has a session, a new one or a given one.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, cast, overload

import msgspec

from toolwire.agent.approval import AfterCall, Approver, BeforeCall, CallOptions
from toolwire.agent.errors import AgentError, ServerFailed
from toolwire.agent.events import AgentEvent, TextDelta
from toolwire.agent.mcp import Server, Servers
from toolwire.agent.model import LocalModel, Model
from toolwire.agent.output import OutputTool, OutputType
from toolwire.agent.resources import Resources, SharedResources
from toolwire.agent.run import AgentRun, RunResult
from toolwire.agent.runner import Runner
from toolwire.agent.session import Session
from toolwire.agent.task import AgentConfig
from toolwire.config.settings import Settings, find_model
from toolwire.turns.tools.call import ToolError
from toolwire.turns.tools.registry import Context, FunctionTool, Tool, Toolset, as_tool

if TYPE_CHECKING:  # `typing.TypeVar` has no `default` before Python 3.13
    from typing_extensions import TypeVar

    DepsT = TypeVar("DepsT", default=None)
    OutputT = TypeVar("OutputT", default=str)
else:
    from typing import TypeVar

    DepsT = TypeVar("DepsT")
    OutputT = TypeVar("OutputT")

NewDeps = TypeVar("NewDeps")
NewOutput = TypeVar("NewOutput")
_log = logging.getLogger("toolwire.agent")
_NO_DEPS: Any = None


class Agent(Generic[DepsT, OutputT]):
    """A model with tools and instructions. It can work on any number of prompts, even at the same time.

    `model` is a model name, as clients of the gateway use it, or a model in this process, such as a `ScriptedModel`.
    A name is looked up in `settings` (default: those of the user and the environment), on one `backend`, given by name
    or as `KIND:URL`, or at `base_url`, the address of an OpenAI-compatible server, with `api_key`.
    `tools` are tools, plain functions and toolsets. `instructions` may be a function of the dependencies.
    `output_type` is the type of the output; a model whose output does not fit gets `output_retries` more attempts.
    `deps_type` is the type of the `deps` of a run, which its tools receive.
    `approver` is asked before calls that need approval (`config.approve`). `before_call` and `after_call` receive
    every call.

    Raises `ValueError` and `TypeError` for invalid arguments.
    """

    def __init__(  # noqa: PLR0913 - all but the first are keyword-only
        self,
        model: str | LocalModel = "demo",
        *,
        tools: Iterable[Tool | Toolset | Callable[..., Any]] = (),
        mcp_servers: Iterable[Server] = (),
        instructions: str | Callable[[DepsT], str] = "",
        output_type: type[OutputT] | None = None,
        deps_type: type[DepsT] | None = None,
        max_turns: int | None = None,
        output_retries: int = 3,
        approver: Approver | None = None,
        before_call: BeforeCall | None = None,
        after_call: AfterCall | None = None,
        config: AgentConfig | None = None,
        backend: str = "",
        base_url: str = "",
        api_key: str = "",
        settings: Settings | None = None,
        cwd: str | Path = ".",
    ) -> None:
        self._arguments: dict[str, Any] = {name: value for name, value in locals().items() if name != "self"}
        if bool(base_url) + bool(backend) + (not isinstance(model, str)) > 1:
            raise ValueError("give only one of a model in this process, a backend and a base_url")
        if not isinstance(model, str) and not hasattr(model, "conversation"):
            raise TypeError(f"model: a name or a model such as a ScriptedModel is needed, not {type(model).__name__}")
        if not isinstance(instructions, str) and not callable(instructions):
            raise TypeError(f"instructions: a text or a function is needed, not {type(instructions).__name__}")
        if output_retries < 0:
            raise ValueError(f"output_retries: {output_retries} is less than 0")
        for name, given in (("tools", tools), ("mcp_servers", mcp_servers)):
            if isinstance(given, str) or not isinstance(cast("object", given), Iterable):
                raise TypeError(f"{name}: a list is needed, not {type(given).__name__}")
            self._arguments[name] = [*given]
        self._servers: list[Server] = self._arguments["mcp_servers"]
        self._toolsets = [each for each in self._arguments["tools"] if isinstance(each, Toolset)]
        self._tools = [as_tool(each) for each in self._arguments["tools"] if not isinstance(each, Toolset)]
        self._model = model
        self._instructions = instructions
        self._deps_type = deps_type
        self._output_type = OutputType(output_type) if output_type not in (None, str) else None
        self._output_retries = output_retries
        self._config = config or AgentConfig()
        if max_turns is not None:
            if max_turns < 0:
                raise ValueError(f"max_turns: {max_turns} is less than 0; 0 means no limit")
            limits = msgspec.structs.replace(self._config.limits, max_turns=max_turns)
            self._config = msgspec.structs.replace(self._config, limits=limits)
        self._calls = CallOptions(approver, before_call, after_call)
        self._resources = SharedResources(self._open)
        self._overrides: tuple[Agent[DepsT, OutputT], ...] = ()  # agents that currently replace this one, newest last

    async def __aenter__(self) -> Self:
        """Keep the model, the toolsets and the MCP servers open for several runs."""
        await self._resources.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._resources.release()

    async def run(
        self,
        prompt: str,
        *,
        session: Session | None = None,
        deps: DepsT = _NO_DEPS,
        images: Sequence[str | Path] = (),
    ) -> RunResult[OutputT]:
        """Work on a prompt until it is done. Raises an `AgentError`, or the `FatalToolError` of a tool.

        With a `session` the run continues that conversation. Images are files as `Path`, or URLs as `str`. Cancellation
        stops the tools and the model.
        """
        async with self.stream(prompt, session=session, deps=deps, images=images) as run:
            return await run.wait()

    def run_sync(
        self,
        prompt: str,
        *,
        session: Session | None = None,
        deps: DepsT = _NO_DEPS,
        images: Sequence[str | Path] = (),
    ) -> RunResult[OutputT]:
        """The same as `run`, for a program without an event loop. Raises `RuntimeError` if one is running."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run(prompt, session=session, deps=deps, images=images))
        raise RuntimeError("run_sync cannot be used inside a running event loop; use `await agent.run(…)`")

    def stream(
        self,
        prompt: str,
        *,
        session: Session | None = None,
        deps: DepsT = _NO_DEPS,
        images: Sequence[str | Path] = (),
    ) -> AgentRun[OutputT]:
        """A run as events: `async with agent.stream(…) as run: async for event in run: …`, then `run.result`."""
        if not isinstance(cast("object", prompt), str):
            raise TypeError(f"prompt: a text is needed, not {type(prompt).__name__}")
        if isinstance(session, str):
            raise TypeError("session: a Session is needed, not its id; `Session.resume(id, directory)` gives one")
        if not isinstance(cast("object", session), Session | None):
            raise TypeError(f"session: a Session is needed, not {type(session).__name__}")
        # The agent that currently replaces this one: the override of this task, else the newest, else this agent.
        own = [each for each in _own_overrides.get() if each in self._overrides]
        agent: Agent[Any, Any] = [self, *self._overrides, *own][-1]
        if deps is None and agent._deps_type not in (None, type(None)):
            raise TypeError(f"this agent needs `deps` of the type {agent._deps_type!r}")
        output = OutputTool(agent._output_type, agent._output_retries) if agent._output_type is not None else None

        async def start(stack: AsyncExitStack) -> tuple[Runner, AsyncGenerator[AgentEvent]]:
            resources = await agent._resources.acquire()
            stack.push_async_callback(agent._resources.release)
            instructions = agent._instructions if isinstance(agent._instructions, str) else agent._instructions(deps)
            runner = Runner(
                resources.model,
                tools=[*agent._tools, *resources.tools],
                config=msgspec.structs.replace(agent._config, instructions=instructions or agent._config.instructions),
                cwd=agent._arguments["cwd"],
                calls=msgspec.structs.replace(agent._calls, deps=deps),
                session=session,
                output=output,
            )
            if resources.servers is not None:
                runner.registry.follow(resources.servers.update)
            if not runner.session.is_held:
                runner.session.hold()
                stack.callback(runner.session.close)
            runner.session.use_model(resources.model.name)
            return runner, runner.stream(prompt, images)

        return AgentRun(start)

    def as_tool(self, name: str, description: str, *, parallel: bool = True, writes: bool = False) -> Tool:
        """A tool with which other agents prompt this one. Each call has a session of its own.

        The call gets the dependencies of the calling run, and its tokens count towards that run too. Its text is
        progress, its output the result. An `AgentError` becomes a tool error; a `FatalToolError` ends both runs.
        """

        async def delegate(prompt: str, context: Context[Any]) -> Any:
            try:
                async with self.stream(prompt, deps=context.deps) as run:
                    try:
                        async for event in run:
                            if isinstance(event, TextDelta):
                                context.emit(event.text)
                    finally:
                        context.spend(run.session.usage)
            except AgentError as error:
                raise ToolError(f"{name} failed: {error}") from error
            return run.result.output

        made = FunctionTool(delegate, name, parallel=parallel, writes=writes)
        made.description = description
        return made

    @overload
    def clone(
        self, *, output_type: type[NewOutput], deps_type: type[NewDeps], **changes: Any
    ) -> "Agent[NewDeps, NewOutput]": ...

    @overload
    def clone(self, *, output_type: type[NewOutput], **changes: Any) -> "Agent[DepsT, NewOutput]": ...

    @overload
    def clone(self, *, deps_type: type[NewDeps], **changes: Any) -> "Agent[NewDeps, OutputT]": ...

    @overload
    def clone(self, **changes: Any) -> "Agent[DepsT, OutputT]": ...

    def clone(self, **changes: Any) -> "Agent[Any, Any]":
        """A copy of this agent with other arguments, typed by a new `output_type` or `deps_type`."""
        return Agent(**{**self._arguments, **changes})

    @contextmanager
    def override(self, **changes: Any) -> "Generator[Agent[DepsT, OutputT]]":
        """Use other arguments, such as another model, in every run of this agent that begins inside the context.

        This applies to all threads and tasks. Tasks that override the agent at the same time use their own override.
        """
        changed: Agent[DepsT, OutputT] = self.clone(**changes)
        token = _own_overrides.set((*_own_overrides.get(), changed))
        with _overrides_lock:
            self._overrides = (*self._overrides, changed)
        try:
            yield changed
        finally:
            with _overrides_lock:
                self._overrides = tuple(each for each in self._overrides if each is not changed)
            _own_overrides.reset(token)

    async def _open(self, stack: AsyncExitStack) -> Resources:
        """Open the model, the toolsets and the MCP servers; the stack closes them. Errors are passed on."""
        given = self._arguments
        if not isinstance(self._model, str):
            model = Model.from_local(self._model)
        else:
            settings, name = find_model(self._model, given["settings"], given["backend"], given["base_url"])
            model = Model(settings, name, idle=self._config.idle, key=given["api_key"])
        await model.open()
        stack.push_async_callback(model.close)
        for toolset in self._toolsets:
            await stack.enter_async_context(toolset)
        servers: Servers | None = None
        if self._servers:
            servers = await stack.enter_async_context(Servers(self._servers, partial(_log.warning, "MCP server %s %s")))
            await servers.ready()
            for remote in servers.remotes:
                if remote.problem:
                    raise ServerFailed(f"the MCP server {remote.server.name} is not running: {remote.problem}")
        return Resources(model, tuple(tool for each in self._toolsets for tool in each.tools), servers)


_own_overrides: ContextVar[tuple[Agent[Any, Any], ...]] = ContextVar("own_overrides", default=())
"""The overrides begun by the current task. A task started inside one keeps it here even after it has ended."""
_overrides_lock = threading.Lock()
