"""openai-agents over the Responses endpoint: tool loops, whole and streamed, with state here or there."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import agents
import openai
import pytest
from pydantic import BaseModel

from tests.sdk.recording_client import SETTINGS, transports, watched_async_client
from tests.sdk.turns import QUESTION, turn
from tests.support.frames import text
from tests.support.gateway import Gateway
from tests.support.upstream import Upstream

TWO_CITIES = "What is the weather in Paris and Rome?"
Way = Callable[..., Awaitable[Any]]


class Weather(BaseModel):
    city: str


@agents.function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sun in {city}."


def quiet() -> Any:
    return agents.RunConfig(tracing_disabled=True)


async def whole(agent: Any, prompt: Any, **fields: Any) -> Any:
    return await agents.Runner.run(agent, prompt, run_config=quiet(), **fields)


async def streamed(agent: Any, prompt: Any, **fields: Any) -> Any:
    result = agents.Runner.run_streamed(agent, prompt, run_config=quiet(), **fields)
    async for _ in result.stream_events():
        pass
    return result


@pytest.fixture(params=[whole, streamed])
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


def run(base_url: str, model: str, use: Callable[[Any, openai.AsyncOpenAI], Awaitable[Any]], **fields: Any) -> Any:
    """What `use` makes of an agent and its client."""

    async def run() -> Any:
        async with watched_async_client(base_url) as client:
            chosen = agents.OpenAIResponsesModel(model, openai_client=client)
            agent = agents.Agent(name="Forecaster", model=chosen, **{"tools": [get_weather], **fields})
            return await use(agent, client)

    return asyncio.run(run())


def kinds(result: Any) -> list[str]:
    return [item.type for item in result.new_items]


def test_a_tool_loop_runs_to_its_end(base_url: str, way: Way):
    result = run(base_url, "demo", lambda agent, _: way(agent, QUESTION))
    assert result.final_output == "According to get_weather: Sun in Paris."
    assert kinds(result) == ["reasoning_item", "tool_call_item", "tool_call_output_item", "message_output_item"]
    assert result.new_items[1].raw_item.arguments == '{"city":"Paris"}'


def test_parallel_tools_are_all_answered(base_url: str, way: Way):
    result = run(base_url, "demo", lambda agent, _: way(agent, TWO_CITIES))
    assert result.final_output == "According to get_weather: Sun in Paris. Sun in Rome."
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert outputs == ["Sun in Paris.", "Sun in Rome."]


def test_a_tool_loop_runs_with_nothing_stored(base_url: str, way: Way):
    settings = agents.ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
    result = run(base_url, "demo", lambda agent, _: way(agent, QUESTION), model_settings=settings)
    assert result.final_output == "According to get_weather: Sun in Paris."


def test_a_tool_loop_goes_on_from_stored_responses(base_url: str, way: Way):
    result = run(base_url, "demo", lambda agent, _: way(agent, QUESTION, auto_previous_response_id=True))
    assert result.final_output == "According to get_weather: Sun in Paris."
    first, second = result.raw_responses
    assert first.response_id != second.response_id


def test_only_new_items_are_sent_after_a_stored_response(base_url: str, way: Way, upstream: Upstream):
    async def use(agent: Any, client: openai.AsyncOpenAI) -> None:
        first = await way(agent, "One.")
        await way(agent, "Two.", previous_response_id=first.last_response_id)

    run(base_url, "up/client-text", use, tools=[])
    sent = str(upstream.of("client-text")[-1].body["input"])
    assert [sent.count(words) for words in ("One.", "Hello, world.", "Two.")] == [1, 1, 1]


def test_a_conversation_holds_the_whole_loop(base_url: str, way: Way):
    async def use(agent: Any, client: openai.AsyncOpenAI) -> tuple[Any, list[str]]:
        conversation = await client.conversations.create()
        result = await way(agent, QUESTION, conversation_id=conversation.id)
        items = client.conversations.items.list(conversation.id, order="asc")
        return result.final_output, [item.type async for item in items]

    output, types = run(base_url, "demo", use)
    assert output == "According to get_weather: Sun in Paris."
    assert types == ["message", "reasoning", "function_call", "function_call_output", "message"]


def test_a_session_remembers_in_a_conversation(base_url: str, way: Way, upstream: Upstream):
    async def use(agent: Any, client: openai.AsyncOpenAI) -> list[Any]:
        session = agents.OpenAIConversationsSession(openai_client=client)
        await way(agent, "One.", session=session)
        await way(agent, "Two.", session=session)
        items = await session.get_items()
        await session.pop_item()
        kept = await session.get_items()
        await session.clear_session()
        return [items, kept]

    items, kept = run(base_url, "up/client-text", use, tools=[])
    sent = str(upstream.of("client-text")[-1].body["input"])
    assert sent.index("One.") < sent.index("Hello, world.") < sent.index("Two.")
    assert [item["role"] for item in items] == ["user", "assistant", "user", "assistant"]
    assert kept == items[:-1]


def test_a_tool_loop_runs_in_a_session(base_url: str, way: Way):
    async def use(agent: Any, client: openai.AsyncOpenAI) -> Any:
        session = agents.OpenAIConversationsSession(openai_client=client)
        await way(agent, QUESTION, session=session)
        return await way(agent, TWO_CITIES, session=session)

    assert run(base_url, "demo", use).final_output == "According to get_weather: Sun in Paris. Sun in Rome."


def test_an_agent_hands_over_to_another(base_url: str, way: Way):
    async def use(agent: Any, client: openai.AsyncOpenAI) -> Any:
        desk = agents.Agent(name="Desk", model=agent.model, handoffs=[agent])
        return await way(desk, "Call transfer_to_forecaster.")

    result = run(base_url, "demo", use, tools=[])
    assert result.last_agent.name == "Forecaster"
    assert "handoff_output_item" in kinds(result)


def test_output_is_read_into_a_model(base_url: str, way: Way, upstream: Upstream):
    upstream.replies["structured"] = turn(text('{"city":'), text('"Paris"}'))
    result = run(base_url, "up/structured", lambda agent, _: way(agent, QUESTION), tools=[], output_type=Weather)
    assert result.final_output == Weather(city="Paris")


def test_text_arrives_piece_by_piece(base_url: str):
    async def use(agent: Any, client: openai.AsyncOpenAI) -> list[str]:
        result = agents.Runner.run_streamed(agent, QUESTION, run_config=quiet())
        raw = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
        return [event.delta for event in raw if event.type == "response.output_text.delta"]

    assert run(base_url, "up/client-text", use, tools=[]) == ["Hello", ", world."]


def test_usage_adds_up_over_the_turns(base_url: str, way: Way):
    async def use(agent: Any, client: openai.AsyncOpenAI) -> Any:
        return (await way(agent, QUESTION)).context_wrapper.usage

    usage = run(base_url, "up/client-text", use, tools=[])
    assert (usage.requests, usage.input_tokens, usage.output_tokens) == (1, 20, 5)


@pytest.mark.parametrize("turn", ["error-middle", "error-after-call"])
def test_an_error_in_mid_stream_raises(base_url: str, turn: str):
    with pytest.raises(openai.APIError, match="It broke"):
        run(base_url, f"up/client-{turn}", lambda agent, _: streamed(agent, QUESTION))


def test_a_response_that_is_not_there_cannot_be_continued(base_url: str, way: Way):
    with pytest.raises(openai.NotFoundError) as caught:
        run(base_url, "demo", lambda agent, _: way(agent, QUESTION, previous_response_id="resp_nobody"))
    assert caught.value.code == "previous_response_not_found"


@pytest.mark.parametrize("store", [True, False])
def test_a_tool_loop_runs_over_a_websocket(base_url: str, gateway: Gateway, way: Way, store: bool):
    async def use() -> Any:
        async with openai.AsyncOpenAI(base_url=base_url, **SETTINGS) as client:
            model = agents.models.openai_responses.OpenAIResponsesWSModel("demo", openai_client=client)
            settings = agents.ModelSettings(store=store)
            agent = agents.Agent(name="Forecaster", model=model, tools=[get_weather], model_settings=settings)
            try:
                return await way(agent, TWO_CITIES, auto_previous_response_id=True)
            finally:
                await model.close()

    result = asyncio.run(use())
    assert result.final_output == "According to get_weather: Sun in Paris. Sun in Rome."
    ids = [response.response_id for response in result.raw_responses]
    assert transports(gateway, ids) == ["websocket", "websocket"]
