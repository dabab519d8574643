"""A stage for the engine: a scripted far end in the test's own loop, tools that end when told, and somebody who watches.

Only the far end is fake. Nothing here looks at a clock: what comes first is settled by waiting for it.
"""

import asyncio
import gc
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from aiohttp import web

from tests.support import backend_writers
from tests.support.frames import rs
from tests.support.gateway import PROXIES
from tests.support.scripts import Item, Name, Script
from tests.support.upstream import Asked, Cut, Hold, Reply
from toolwire.agent import AgentConfig, Session, TaskEnded
from toolwire.agent.approval import Approver, CallOptions
from toolwire.agent.events import AgentEvent
from toolwire.agent.history import History, OutputItem, ToolCallItem, user_message
from toolwire.agent.model import Model
from toolwire.agent.runner import Runner
from toolwire.agent.task import Task
from toolwire.config.settings import DEMO, Backend, Settings, with_backend
from toolwire.turns.tools.call import FunctionPayload, ToolCall
from toolwire.turns.tools.registry import FunctionTool, Tool, tool

T = TypeVar("T")


class Drip(msgspec.Struct, frozen=True):
    """Send these bytes again and again, until the other side goes away or so many times."""

    data: bytes
    seconds: float
    times: int = 1_000_000


class Sets(msgspec.Struct, frozen=True):
    """Say that everything so far has left."""

    event: asyncio.Event


Step = bytes | asyncio.Event | Sets | Drip | Cut | Hold
"""What a far end does next. An event is waited for."""

PATIENCE = 120.0
"""Seconds after which a test that hangs is over."""


def play(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end, and see that no task and no complaint is left."""
    complaints: list[dict[str, Any]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(PATIENCE):
            result = await main
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        return result

    with pytest.MonkeyPatch.context() as patch:
        for name in PROXIES:
            patch.delenv(name, raising=False)
        result = asyncio.run(watched())
    gc.collect(1)  # a task whose exception nobody took complains when it is freed
    assert not complaints, complaints
    return result


# The far end


class Far:
    """Answers one request after the other, each with the next reply. One too many is refused for good."""

    def __init__(self, *replies: Reply | Callable[[Asked], Reply], kind: Name = "responses") -> None:
        self.kind: Name = kind
        self.asked: list[Asked] = []
        self.posted: list[bytes] = []
        self.looked: list[Asked] = []
        self.usage: bytes = b""
        """What is answered to a GET."""
        self.came = [asyncio.Event() for _ in range(8)]
        """The first request came, the second, and so on."""
        self.gone = asyncio.Event()
        """Somebody went away before the reply was complete."""
        self._replies = list(replies)
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> "Far":
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/{path:.*}", self._answer)
        app.router.add_get("/{path:.*}", self._show)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def settings(self) -> Settings:
        return Settings(backends=(Backend("up", self.kind, base_url=self.url), DEMO))

    @property
    def inputs(self) -> list[list[dict[str, Any]]]:
        """The histories that were sent, request by request (to a Responses server)."""
        return [asked.body["input"] for asked in self.asked]

    def next(self, *replies: Reply | Callable[[Asked], Reply]) -> None:
        """Answer with these from now on."""
        self._replies = list(replies)

    async def _show(self, request: web.Request) -> web.Response:
        self.looked.append(Asked(request.path, _lower(request.headers), None))
        return web.Response(body=self.usage, status=200 if self.usage else 404)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        asked = Asked(request.path, _lower(request.headers), json.loads(data))
        self.asked.append(asked)
        self.posted.append(data)
        self.came[min(len(self.asked), len(self.came)) - 1].set()
        reply = self._replies.pop(0) if self._replies else refuses(418, "Nothing more is scripted.", kind=self.kind)
        reply = reply if isinstance(reply, Reply) else reply(asked)
        headers = {"content-type": reply.content_type, **reply.headers}
        response = web.StreamResponse(status=reply.status, headers=headers)
        try:
            await self._send(request, response, list(reply.steps))
        except (ConnectionError, asyncio.CancelledError):
            self.gone.set()
            raise
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse, steps: list[Step]) -> None:
        while steps and isinstance(event := steps[0], asyncio.Event):  # before the first byte, headers are bytes too
            del steps[0]
            await event.wait()
        if steps and isinstance(steps[0], Hold):
            await asyncio.Event().wait()
        await response.prepare(request)
        for step in steps:
            await _do(step, request, response)
        await response.write_eof()


async def _do(step: Step, request: web.Request, response: web.StreamResponse) -> None:
    match step:
        case bytes():
            await response.write(step)
            await asyncio.sleep(0)  # so that it can be read before there is more
        case Sets(event):
            event.set()
        case asyncio.Event():
            await step.wait()
        case Hold():
            await asyncio.Event().wait()
        case Drip(data, seconds, times):
            for _ in range(times):
                await response.write(data)
                await asyncio.sleep(seconds)
        case Cut():
            assert request.transport is not None
            request.transport.abort()
            raise ConnectionResetError


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in headers.items()}


def turn(*items: Item, kind: Name = "responses", **script: Any) -> Reply:
    """A turn in the words of a kind of backend: `turn(Says("hi"), Calls("c1", "look"))`."""
    made = backend_writers.reply(Script(tuple(items), **script), kind, stream=True)
    made.steps = [b"".join(step for step in made.steps if isinstance(step, bytes))]
    return made


def streams(*steps: Step, **fields: Any) -> Reply:
    return Reply(list(steps), **fields)


def refuses(status: int, message: str, *, kind: Name = "responses", **headers: str) -> Reply:
    """A refusal with its headers, whose names are written with `_`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = (
        backend_writers.refusal(kind, status, message)
        if status in KNOWN
        else json.dumps({"error": {"message": message}}).encode()
    )
    return Reply([body], status=status, content_type="application/json", headers=named)


KNOWN = (400, 401, 403, 404, 413, 429, 500, 503, 529)


def item_done(item: dict[str, Any], index: int = 0) -> bytes:
    """An item of a Responses stream, which comes whole."""
    return rs("output_item.done", output_index=index, item=item)


# The agent, and who watches it


def runner_on(
    model: str = "demo",
    *,
    settings: Settings,
    backend: str = "",
    config: AgentConfig | None = None,
    approver: Approver | None = None,
    **more: Any,
) -> Runner:
    """An agent at work in one session, as `toolwire run` makes it."""
    chosen, name = with_backend(settings, backend, model)
    opened = Model(chosen, name, idle=config.idle if config is not None else 0.0)
    return Runner(opened, config=config, calls=CallOptions(approver), **more)


def agent_on(
    far: Far,
    *tools: Tool | Callable[..., Any],
    config: AgentConfig | None = None,
    session: Session | None = None,
    **more: Any,
) -> Runner:
    """The same with the far end as its model."""
    chosen = config or AgentConfig(retries=0, approve="never")
    return runner_on("up/m", tools=tools, config=chosen, settings=far.settings, session=session, **more)


async def end_of(agent: Runner, prompt: str, images: Sequence[str | Path] = ()) -> TaskEnded:
    """How the work on a prompt ends."""
    return ended([event async for event in agent.stream(prompt, images)])


async def worked(agent: Runner, prompt: str = "go") -> list[AgentEvent]:
    """Everything that happens while an agent works on a prompt."""
    async with agent:
        return [event async for event in agent.stream(prompt)]


def ended(events: list[AgentEvent]) -> TaskEnded:
    last = events[-1]
    assert isinstance(last, TaskEnded)
    assert sum(isinstance(event, TaskEnded) for event in events) == 1
    return last


def only(events: list[AgentEvent], kind: type[T]) -> list[T]:
    return [event for event in events if isinstance(event, kind)]


class Watcher:
    """Listens to one task, and can wait for what happens in it."""

    def __init__(self, agent: Runner, prompt: str = "go") -> None:
        self.events: list[AgentEvent] = []
        self._agent = agent
        self._prompt = prompt
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Watcher":
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        if not self._task.done():
            self._agent.cancel()
        await self._task

    async def _listen(self) -> None:
        async with aclosing(self._stream()) as stream:
            async for event in stream:
                self.events.append(event)
                self._news.set()
        self._news.set()

    def _stream(self) -> AsyncGenerator[AgentEvent]:
        return self._agent.stream(self._prompt)

    async def sees(self, kind: type[T], **fields: Any) -> T:
        """Wait for an event of this kind, with these fields."""
        while True:
            self._news.clear()
            for event in self.events:
                if isinstance(event, kind) and all(getattr(event, key) == value for key, value in fields.items()):
                    return event
            assert self._task is not None
            assert not self._task.done(), f"no {kind.__name__} with {fields} in {self.events}"
            await self._news.wait()

    async def end(self) -> TaskEnded:
        """Wait for the end."""
        assert self._task is not None
        await self._task
        return ended(self.events)


def engine(model: Model, *tools: Tool, config: AgentConfig | None = None, session: Session | None = None) -> Task:
    """A task on a model of one's own, for what an agent does not let one set."""
    kept = session or Session("s", "m", None)
    kept.add([user_message("go")])
    chosen = config or AgentConfig(retries=0, approve="never")
    return Task(Runner(model, tools=tools, config=chosen, session=kept))


# Tools


class Held:
    """A tool that ends when the test lets it, and a log of what its calls did, in order.

    It takes `which`, the name of the call.
    """

    def __init__(self, name: str = "work", *, parallel: bool = False, writes: bool = False) -> None:
        self.log: list[str] = []
        self._began: dict[str, asyncio.Event] = {}
        self._may_end: dict[str, asyncio.Event] = {}
        self._name, self._parallel, self._writes = name, parallel, writes

    @property
    def tool(self) -> FunctionTool:
        return self.named(self._name, parallel=self._parallel, writes=self._writes)

    def named(self, name: str, *, parallel: bool = False, writes: bool = False) -> FunctionTool:
        """The same with another name, for tools that share the log."""

        async def work(which: str = "") -> str:
            """Work."""
            self.log.append(f"begin {which}")
            self.began(which).set()
            try:
                await self.may_end(which).wait()
            except asyncio.CancelledError:
                self.log.append(f"stop {which}")
                raise
            self.log.append(f"end {which}")
            return f"done {which}"

        return tool(name=name, parallel=parallel, writes=writes)(work)

    def began(self, which: str = "") -> asyncio.Event:
        return self._began.setdefault(which, asyncio.Event())

    def may_end(self, which: str = "") -> asyncio.Event:
        return self._may_end.setdefault(which, asyncio.Event())


def echo(*, parallel: bool = True, writes: bool = False, name: str = "look") -> FunctionTool:
    """A tool that says what it was asked."""

    async def look(path: str = "") -> str:
        """Look at something."""
        return f"saw {path}"

    return tool(name=name, parallel=parallel, writes=writes)(look)


def which(name: str) -> str:
    """The arguments of a held tool's call."""
    return json.dumps({"which": name}, separators=(",", ":"))


def call(name: str, call_id: str = "c1", arguments: str = "{}") -> ToolCall:
    return ToolCall(name, call_id, FunctionPayload(arguments))


async def settle(rounds: int = 25) -> None:
    """Let everything run that can."""
    for _ in range(rounds):
        await asyncio.sleep(0)


# What must always hold


def assert_whole(history: History) -> None:
    """Every call has one result, every result its call, and results stand in the order of the calls."""
    calls = [item for item in history.items if isinstance(item, ToolCallItem)]
    outputs = [item for item in history.items if isinstance(item, OutputItem)]
    assert Counter(item.call.call_id for item in calls) == Counter(item.call_id for item in outputs)
    assert [item.call.call_id for item in calls] == [item.call_id for item in outputs]
    for item in calls:
        answered = next(each for each in outputs if each.call_id == item.call.call_id)
        assert list(history.items).index(item) < list(history.items).index(answered)


def assert_paired(body_input: list[dict[str, Any]]) -> None:
    """The same of a request's items."""
    calls = [item["call_id"] for item in body_input if item["type"] in ("function_call", "custom_tool_call")]
    results = [item["call_id"] for item in body_input if item["type"].endswith("_call_output") and "call_id" in item]
    assert calls == results


def types_of(body_input: list[dict[str, Any]]) -> list[str]:
    return [item["type"] for item in body_input]


def outputs_of(body_input: list[dict[str, Any]]) -> dict[str, Any]:
    """The results in a request, by call."""
    found = {
        item.get("call_id", item.get("id")): item["output"] for item in body_input if item["type"].endswith("_output")
    }
    return {str(key): value for key, value in found.items()}
