"""Pydantic AI over the Responses endpoint: agents with tools, run whole and streamed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, NativeOutput
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelResponse, ThinkingPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

from tests.sdk.recording_client import transports, watched_async_client
from tests.sdk.turns import QUESTION, turn
from tests.support.frames import text
from tests.support.gateway import Gateway
from tests.support.upstream import Upstream

TWO_CITIES = "What is the weather in Paris and Rome?"
Ran = tuple[Any, list[Any]]
"""The output of a run, and the messages of it."""


class Weather(BaseModel):
    city: str


async def whole(agent: Agent[None, Any], prompt: str, **fields: Any) -> Ran:
    result = await agent.run(prompt, **fields)
    return result.output, result.all_messages()


async def streamed(agent: Agent[None, Any], prompt: str, **fields: Any) -> Ran:
    async with agent.run_stream(prompt, **fields) as result:
        return await result.get_output(), result.all_messages()


@pytest.fixture(params=[whole, streamed])
def way(request: pytest.FixtureRequest) -> Callable[..., Awaitable[Ran]]:
    return request.param


def run(base_url: str, way: Callable[..., Awaitable[Ran]], model: str, *prompts: str, **fields: Any) -> Ran:
    """One agent, asked once or more; each prompt continues the one before."""
    tools = fields.pop("tools", [get_weather])
    settings = fields.pop("settings", {})
    output = fields.pop("output", str)

    async def run() -> Ran:
        async with watched_async_client(base_url) as client:
            chosen = OpenAIResponsesModel(model, provider=OpenAIProvider(openai_client=client))
            agent = Agent(
                chosen, tools=tools, output_type=output, model_settings=OpenAIResponsesModelSettings(**settings)
            )
            answer: Any = None
            history: list[Any] = []
            for prompt in prompts or (QUESTION,):
                answer, history = await way(agent, prompt, message_history=history, **fields)
            return answer, history

    return asyncio.run(run())


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sun in {city}."


def parts(messages: list[Any], kind: type[Any]) -> list[Any]:
    return [part for message in messages for part in message.parts if isinstance(part, kind)]


def test_a_tool_loop_runs_to_its_end(base_url: str, way: Any):
    output, messages = run(base_url, way, "demo")
    assert output == "According to get_weather: Sun in Paris."
    [call], [result] = parts(messages, ToolCallPart), parts(messages, ToolReturnPart)
    assert (call.tool_name, call.args_as_dict(), result.content) == ("get_weather", {"city": "Paris"}, "Sun in Paris.")
    assert call.tool_call_id == result.tool_call_id


def test_parallel_tools_are_all_answered(base_url: str, way: Any):
    output, messages = run(base_url, way, "demo", TWO_CITIES)
    assert output == "According to get_weather: Sun in Paris. Sun in Rome."
    assert [call.args_as_dict() for call in parts(messages, ToolCallPart)] == [{"city": "Paris"}, {"city": "Rome"}]


def test_a_tool_loop_goes_on_from_stored_responses(base_url: str, way: Any, upstream: Upstream):
    settings = {"openai_previous_response_id": "auto", "openai_store": True}
    output, _ = run(base_url, way, "demo", QUESTION, settings=settings)
    assert output == "According to get_weather: Sun in Paris."
    run(base_url, way, "up/client-text", "One.", "Two.", settings=settings, tools=[])
    sent = str(upstream.of("client-text")[-1].body["input"])
    assert [sent.count(words) for words in ("One.", "Hello, world.", "Two.")] == [1, 1, 1]


def test_a_tool_loop_runs_with_nothing_stored(base_url: str, way: Any):
    settings = {"openai_store": False, "openai_include_encrypted_reasoning": True}
    output, _ = run(base_url, way, "demo", settings=settings)
    assert output == "According to get_weather: Sun in Paris."


def test_a_conversation_goes_on_over_several_prompts(base_url: str, way: Any, upstream: Upstream):
    run(base_url, way, "up/client-text", "One.", "Two.", tools=[])
    sent = str(upstream.of("client-text")[-1].body["input"])
    assert sent.index("One.") < sent.index("Hello, world.") < sent.index("Two.")


def test_reasoning_is_kept_apart_from_the_answer(base_url: str, way: Any):
    output, messages = run(base_url, way, "up/client-reasoning", tools=[])
    assert (output, [part.content for part in parts(messages, ThinkingPart)]) == ("Done.", ["Let me think."])


def test_text_arrives_piece_by_piece(base_url: str):
    async def pieces(agent: Agent[None, str], prompt: str, **fields: Any) -> Ran:
        async with agent.run_stream(prompt, **fields) as result:
            return [piece async for piece in result.stream_text(delta=True, debounce_by=None)], []

    assert run(base_url, pieces, "up/client-text", tools=[])[0] == ["Hello", ", world."]


def test_output_is_read_into_a_model_by_a_tool(base_url: str, way: Any):
    assert run(base_url, way, "demo", tools=[], output=Weather)[0] == Weather(city="Paris")


def test_output_is_read_into_a_model_by_a_format(base_url: str, way: Any, upstream: Upstream):
    upstream.replies["structured"] = turn(text('{"city":'), text('"Paris"}'))
    output, _ = run(base_url, way, "up/structured", tools=[], output=NativeOutput(Weather))
    assert output == Weather(city="Paris")
    assert upstream.of("structured")[-1].body["text"]["format"]["type"] == "json_schema"


def test_usage_arrives(base_url: str, way: Any):
    _, messages = run(base_url, way, "up/client-text", tools=[])
    usage = messages[-1].usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (20, 5, 8)


@pytest.mark.parametrize(("turn", "reason"), [("text", "stop"), ("length", "length"), ("filter", "content_filter")])
def test_the_finish_reason_is_the_truth(base_url: str, turn: str, reason: str):
    _, messages = run(base_url, whole, f"up/client-{turn}", tools=[])
    assert messages[-1].finish_reason == reason


def test_a_background_run_is_waited_for(base_url: str):
    output, _ = run(base_url, whole, "demo", settings={"openai_background": True})
    assert output == "According to get_weather: Sun in Paris."


@pytest.mark.parametrize("store", [True, False])
def test_a_tool_loop_runs_over_a_websocket(base_url: str, gateway: Gateway, way: Any, store: bool):
    settings = {"openai_transport": "websocket", "openai_store": store}
    output, messages = run(base_url, way, "demo", TWO_CITIES, settings=settings)
    assert output == "According to get_weather: Sun in Paris. Sun in Rome."
    assert len(parts(messages, ToolReturnPart)) == 2
    ids = [message.provider_response_id for message in messages if isinstance(message, ModelResponse)]
    assert transports(gateway, ids) == ["websocket", "websocket"]


def test_a_refused_request_has_its_status(base_url: str, way: Any):
    with pytest.raises(ModelHTTPError) as caught:
        run(base_url, way, "nobody", tools=[])
    assert (caught.value.status_code, caught.value.body["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("turn", ["error-middle", "error-after-call"])
def test_an_error_in_mid_stream_raises(base_url: str, turn: str):
    with pytest.raises(ModelAPIError, match="It broke"):
        run(base_url, streamed, f"up/client-{turn}")
