"""The SDKs through a whole tool loop on a real `codex app-server`: two calls at once, one more, and an answer.

All of it is one turn of app-server's, which waits while the client runs its tools.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import agents
import anthropic
import httpx
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.clients.app_server import (
    USUAL,
    AppServer,
    called,
    history,
    message,
    result,
    running,
    table,
    tells,
    thread_of,
)
from tests.clients.codex import needs_codex
from tests.sdk.recording_client import (
    GET_TIME,
    GET_WEATHER,
    SETTINGS,
    output_of,
    watched_async_client,
    watched_client,
)
from tests.sdk.turns import QUESTION, TIME, WEATHER
from tests.support.scripts import Calls, Says, Thinks

Json = dict[str, Any]
ANSWER = "Sun in Paris and Rome, at noon."
PARIS = called("c1", "get_weather", '{"city":"Paris"}')
ROME = called("c2", "get_weather", '{"city":"Rome"}')
NOW = called("c3", "get_time", "{}")


def carried_out(name: str, arguments: Json) -> str:
    return f"Sun in {arguments['city']}." if name == "get_weather" else "Noon."


@pytest.fixture(scope="module", autouse=True)
def codex_is_there() -> None:
    needs_codex()


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory, http: httpx.Client) -> Iterator[AppServer]:
    with running(tmp_path_factory.mktemp("sdks"), http, table("codex", base_url='"{url}"')) as stand:
        yield stand


@pytest.fixture
def model(stand: AppServer) -> Iterator[str]:
    """A model that calls two tools, then one, then answers; in the end it must have seen all results, in one thread."""
    calls = [Calls(each["call_id"], each["name"], each["arguments"]) for each in (PARIS, ROME, NOW)]
    model = stand.model(tells(Thinks("Let me look.", "signed"), *calls[:2]), tells(calls[2]), tells(Says(ANSWER)))
    yield model
    asked = stand.asked(model)
    assert (len(asked), len({thread_of(each) for each in asked})) == (3, 1)
    results = [result("c1", "Sun in Paris."), result("c2", "Sun in Rome.")]
    shown = [item for item in history(asked[-1]) if item["type"] != "reasoning" and item.get("role") != "developer"]
    assert shown == [message("user", QUESTION), PARIS, ROME, *results, NOW, result("c3", "Noon.")]


# openai-python, chat


def plain(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**fields)


def chunks(client: openai.OpenAI, **fields: Any) -> Any:
    state = ChatCompletionStreamState()
    for chunk in client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}):
        state.handle_chunk(chunk)
    return state.current_completion_snapshot


def helper(client: openai.OpenAI, **fields: Any) -> Any:
    with client.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
        return stream.get_final_completion()


@pytest.mark.parametrize("ask", [plain, chunks, helper])
def test_openai_python_runs_a_chat_loop(stand: AppServer, model: str, ask: Callable[..., Any]):
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    with openai.OpenAI(base_url=stand.gateway.base_url, **SETTINGS) as client:
        while True:
            completion = ask(client, model=model, messages=messages, tools=[WEATHER, TIME])
            assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (USUAL.input, USUAL.output)
            said = completion.choices[0].message
            if not said.tool_calls:
                break
            assert completion.choices[0].finish_reason == "tool_calls"
            messages.append(said.to_dict())
            for call in said.tool_calls:
                output = carried_out(call.function.name, json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    assert (said.content, completion.choices[0].finish_reason) == (ANSWER, "stop")


# openai-python, Responses


def created(client: openai.OpenAI, **fields: Any) -> Any:
    return client.responses.create(**fields)


def streamed(client: openai.OpenAI, **fields: Any) -> Any:
    *_, last = client.responses.create(**fields, stream=True)
    return last.response


def gathered(client: openai.OpenAI, **fields: Any) -> Any:
    with client.responses.stream(**fields) as stream:
        return stream.get_final_response()


@pytest.mark.parametrize("chained", [True, False], ids=["chained", "stateless"])
@pytest.mark.parametrize("ask", [created, streamed, gathered])
def test_openai_python_runs_a_responses_loop(stand: AppServer, model: str, ask: Callable[..., Any], chained: bool):
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    fields: Json = {"model": model, "tools": [GET_WEATHER, GET_TIME], "store": chained}
    fields["include"] = ["reasoning.encrypted_content"]
    with watched_client(stand.gateway.base_url) as client:
        while True:
            response = ask(client, **fields, input=items)
            calls = [item for item in response.output if item.type == "function_call"]
            outputs = [output_of(call.call_id, carried_out(call.name, json.loads(call.arguments))) for call in calls]
            if not calls:
                break
            if chained:
                fields["previous_response_id"], items = response.id, outputs
            else:
                items += [*(item.to_dict() for item in response.output), *outputs]
    assert (response.output_text, response.status) == (ANSWER, "completed")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (USUAL.input, USUAL.output)


# anthropic-python


@pytest.mark.parametrize("way", ["create", "stream"])
def test_anthropic_python_runs_a_loop(stand: AppServer, model: str, way: str):
    tools: Any = [
        {"name": each["function"]["name"], "input_schema": each["function"]["parameters"]} for each in (WEATHER, TIME)
    ]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    fields: Json = {"model": model, "max_tokens": 4096, "tools": tools}
    fields["thinking"] = {"type": "enabled", "budget_tokens": 2048}
    with anthropic.Anthropic(base_url=stand.gateway.url, api_key="k", max_retries=0) as client:
        while True:
            if way == "create":
                said = client.messages.create(**fields, messages=messages)
            else:
                with client.messages.stream(**fields, messages=messages) as stream:
                    said = stream.get_final_message()
            if said.stop_reason != "tool_use":
                break
            blocks = [block.model_dump(exclude_none=True) for block in said.content]
            used = [block for block in said.content if block.type == "tool_use"]
            results = [
                {"type": "tool_result", "tool_use_id": use.id, "content": carried_out(use.name, use.input)}
                for use in used
            ]
            messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
    assert (said.content[-1].text, said.stop_reason) == (ANSWER, "end_turn")
    assert said.usage.output_tokens == USUAL.output


# LangChain


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return carried_out("get_weather", {"city": city})


@tool
def get_time() -> str:
    """The time."""
    return carried_out("get_time", {})


def invoke(chat: Any, messages: list[Any]) -> AIMessage:
    return chat.invoke(messages)


def stream(chat: Any, messages: list[Any]) -> AIMessage:
    first, *others = chat.stream(messages)
    return sum(others, first)


@pytest.mark.parametrize("responses", [True, False], ids=["responses", "chat"])
@pytest.mark.parametrize("ask", [invoke, stream])
def test_langchain_runs_a_loop(stand: AppServer, model: str, ask: Callable[..., AIMessage], responses: bool):
    tools = {"get_weather": get_weather, "get_time": get_time}
    settings = {"api_key": "test", "max_retries": 0, "timeout": 30, "use_responses_api": responses}
    chat = ChatOpenAI(model=model, base_url=stand.gateway.base_url, **settings).bind_tools([*tools.values()])
    messages: list[Any] = [HumanMessage(QUESTION)]
    while True:
        said = ask(chat, messages)
        messages.append(said)
        if not said.tool_calls:
            break
        messages += [
            ToolMessage(tools[call["name"]].invoke(call["args"]), tool_call_id=call["id"]) for call in said.tool_calls
        ]
    assert said.text == ANSWER


# openai-agents


async def whole(agent: Any, **fields: Any) -> Any:
    return await agents.Runner.run(agent, QUESTION, run_config=agents.RunConfig(tracing_disabled=True), **fields)


async def followed(agent: Any, **fields: Any) -> Any:
    quiet = agents.RunConfig(tracing_disabled=True)
    run = agents.Runner.run_streamed(agent, QUESTION, run_config=quiet, **fields)
    async for _ in run.stream_events():
        pass
    return run


@pytest.mark.parametrize("chained", [True, False], ids=["chained", "stateless"])
@pytest.mark.parametrize("way", [whole, followed])
def test_openai_agents_run_a_loop(stand: AppServer, model: str, way: Callable[..., Any], chained: bool):
    tools = [agents.function_tool(get_weather.func), agents.function_tool(get_time.func)]

    async def run() -> Any:
        async with watched_async_client(stand.gateway.base_url) as client:
            chosen = agents.OpenAIResponsesModel(model, openai_client=client)
            settings = agents.ModelSettings(store=chained, response_include=["reasoning.encrypted_content"])
            agent = agents.Agent(name="Forecaster", model=chosen, tools=tools, model_settings=settings)
            return await way(agent, auto_previous_response_id=chained)

    ended = asyncio.run(run())
    assert ended.final_output == ANSWER
    assert (ended.context_wrapper.usage.requests, ended.context_wrapper.usage.input_tokens) == (3, 3 * USUAL.input)
