# pyright: strict
"""A user's program: what pyright and mypy, both strict, know of its types. It is checked, and it runs."""

import asyncio
import dataclasses
from typing import Any, TypedDict, assert_type, cast

import msgspec
import pydantic

from toolwire.agent import (
    Agent,
    AgentConfig,
    AgentError,
    AgentEvent,
    AgentRun,
    CompletedCall,
    Context,
    FatalToolError,
    Limits,
    MaxTurnsExceeded,
    Result,
    RunResult,
    Server,
    Session,
    Tool,
    ToolCall,
    ToolError,
    Toolset,
    tool,
)
from toolwire.agent.events import TextDelta
from toolwire.agent.tools import builtin
from toolwire.testing import Calls, Fails, ModelRequest, Says, ScriptedModel, Thinks, Waits


@dataclasses.dataclass
class Deps:
    name: str


class Weather(msgspec.Struct):
    city: str
    degrees: int


class Report(pydantic.BaseModel):
    city: str


class Movie(TypedDict):
    title: str


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"18 degrees in {city}"


@tool(parallel=True, writes=True)
async def greet(context: Context[Deps], loudly: bool = False) -> str:
    """Greet the user."""
    if context.is_cancelled:
        raise FatalToolError("too late")
    context.emit("greeting")
    return assert_type(context.deps, Deps).name.upper() if loudly else context.deps.name


def plain(city: str) -> list[str]:
    """Not decorated."""
    raise ToolError(city)


def approve(tool: Tool, call: ToolCall) -> bool | str:
    return True if call.arguments.get("loudly") else "only loudly"


async def before(call: ToolCall, context: Context[Any]) -> ToolCall | None:
    return call.with_arguments(**call.arguments) if call.name == "plain" else None


def after(call: ToolCall, result: Result, context: Context[Any]) -> str | None:
    return "failed" if result.failed else None


class Tools(Toolset):
    def __init__(self) -> None:
        super().__init__([self.look])

    def look(self) -> str:
        """Look."""
        return "nothing"


assert_type(get_weather("Rome"), str)
text_agent = Agent("demo", tools=[get_weather, plain, Tools(), builtin(["read"])], max_turns=5)
assert_type(text_agent, Agent[None, str])
weather_agent = Agent("demo", output_type=Weather, instructions="Be brief.")
assert_type(weather_agent, Agent[None, Weather])
full = Agent(
    ScriptedModel([Thinks("Hm."), Calls("greet")], Calls("final_result", city="Paris", degrees=18)),
    tools=[greet, text_agent.as_tool("ask", "Asks.")],
    mcp_servers=list[Server](),
    instructions=lambda deps: f"The user is {deps.name}.",
    output_type=Weather,
    deps_type=Deps,
    approver=approve,
    before_call=before,
    after_call=after,
    config=AgentConfig(limits=Limits(tokens=100_000)),
)
assert_type(full, Agent[Deps, Weather])
assert_type(Agent("demo", output_type=Report), Agent[None, Report])
assert_type(Agent("demo", output_type=Movie), Agent[None, Movie])
assert_type(Agent("demo", output_type=int), Agent[None, int])
assert_type(Agent("demo", output_type=list[str]), Agent[None, list[str]])
assert_type(Agent("demo", deps_type=Deps), Agent[Deps, str])
assert_type(text_agent.clone(output_type=int), Agent[None, int])
assert_type(text_agent.clone(deps_type=Deps), Agent[Deps, str])
assert_type(full.clone(output_type=int, model="demo"), Agent[Deps, int])
assert_type(text_agent.clone(output_type=int, deps_type=Deps), Agent[Deps, int])
assert_type(full.clone(model="demo"), Agent[Deps, Weather])
assert_type(Agent("demo", output_type=cast("type[int | None]", int | None)), Agent[None, int | None])


def answer(request: ModelRequest) -> list[Says | Waits | Fails]:
    return [Says(request.prompt)]


async def main() -> None:
    result = await full.run("go", deps=Deps("Ada"), session=Session())
    assert_type(result, RunResult[Weather])
    assert_type(result.output, Weather)
    assert_type(result.text, str)
    assert_type(result.turns, int)
    assert_type(result.calls, tuple[CompletedCall, ...])
    assert_type(result.session, Session)
    print(result.output.city, result.usage.input > 0, [call.name for call in result.calls])

    async with text_agent, text_agent.stream("What is the weather in Rome?") as run:
        assert_type(run, AgentRun[str])
        async for event in run:
            assert_type(event, AgentEvent)
            if isinstance(event, TextDelta):
                print(event.text, end="")
    print()
    assert_type(run.result.output, str)
    try:
        await text_agent.clone(model=ScriptedModel(answer, otherwise=Calls("plain")), max_turns=2).run("hello")
        await text_agent.clone(model=ScriptedModel(otherwise=Calls("plain")), max_turns=2).run("hello")
    except MaxTurnsExceeded as error:
        assert_type(error.limit, str)
    except AgentError as error:
        assert_type(error.session, Session | None)


if __name__ == "__main__":
    asyncio.run(main())
