"""LangChain over the Responses endpoint: `ChatOpenAI(use_responses_api=True)`, invoked and streamed."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, custom_tool
from pydantic import BaseModel

from tests.sdk.recording_client import watched_http
from tests.sdk.turns import ANSWER, QUESTION, RESULT, TIME, UNICODE, WEATHER, turn
from tests.support.frames import text
from tests.support.upstream import Upstream

Ask = Callable[..., AIMessage]
PARIS = {"name": "get_weather", "args": {"city": "Paris"}, "id": "c1", "type": "tool_call"}
ROME = {"name": "get_weather", "args": {"city": "Rome"}, "id": "c2", "type": "tool_call"}


class Weather(BaseModel):
    city: str


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sun in {city}."


@custom_tool
def run(code: str) -> str:
    """Runs code."""
    return f"ran {code}"


def invoke(model: Any, messages: list[Any]) -> AIMessage:
    return model.invoke(messages)


def stream(model: Any, messages: list[Any]) -> AIMessage:
    """All chunks, added up as LangChain adds them."""
    first, *others = model.stream(messages)
    return sum(others, first)


@pytest.fixture
def make(base_url: str) -> Iterator[Callable[..., ChatOpenAI]]:
    with watched_http() as http:

        def make(model: str, **fields: Any) -> ChatOpenAI:
            settings = {"api_key": "test", "max_retries": 0, "timeout": 30, "use_responses_api": True, **fields}
            return ChatOpenAI(model=model, base_url=base_url, http_client=http, **settings)

        yield make


@pytest.fixture(params=["v0", "responses/v1", "v1"])
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[invoke, stream])
def ask(request: pytest.FixtureRequest, make: Callable[..., ChatOpenAI], version: str) -> Ask:
    def ask(
        model: str, messages: list[Any] | None = None, tools: tuple[Any, ...] = (WEATHER, TIME), **fields: Any
    ) -> AIMessage:
        chat = make(model, output_version=version, **fields)
        return request.param(chat.bind_tools(tools) if tools else chat, messages or [HumanMessage(QUESTION)])

    return ask


@pytest.mark.parametrize(
    ("turn", "calls"),
    [
        ("one-call", [PARIS]),
        ("parallel", [PARIS, ROME]),
        ("interleaved", [PARIS, ROME]),
        ("text-and-call", [PARIS]),
        ("no-arguments", [{"name": "get_time", "args": {}, "id": "c1", "type": "tool_call"}]),
        ("text", []),
    ],
)
def test_calls_arrive_whole_and_in_order(ask: Ask, turn: str, calls: list[dict[str, Any]]):
    message = ask(f"up/client-{turn}")
    assert (message.tool_calls, message.invalid_tool_calls) == (calls, [])


def test_arguments_keep_every_character(ask: Ask):
    [call] = ask("up/client-unicode").tool_calls
    assert call["args"] == {"city": json.loads(UNICODE)["city"]}


@pytest.mark.parametrize(
    ("turn", "words"), [("text", "Hello, world."), ("text-and-call", "One moment."), ("one-call", "")]
)
def test_text_arrives_whole(ask: Ask, turn: str, words: str):
    assert ask(f"up/client-{turn}").text == words


@pytest.mark.parametrize(
    ("turn", "status", "details"),
    [
        ("text", "completed", None),
        ("one-call", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
    ],
)
def test_the_status_is_the_truth(ask: Ask, turn: str, status: str, details: Any):
    metadata = ask(f"up/client-{turn}").response_metadata
    assert (metadata["status"], metadata.get("incomplete_details")) == (status, details)


def test_a_refusal_is_told(ask: Ask, version: str):
    message = ask("up/client-refusal", tools=())
    if version == "v0":
        assert message.additional_kwargs["refusal"] == "I will not."
    else:
        assert "I will not." in str(message.content)
    assert message.text == ""


def test_usage_arrives(ask: Ask):
    usage = ask("up/client-text").usage_metadata
    assert usage is not None
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (20, 5, 25)
    assert (usage["input_token_details"]["cache_read"], usage["output_token_details"]["reasoning"]) == (8, 2)


def test_reasoning_is_kept_apart_from_the_answer(ask: Ask):
    message = ask("up/client-reasoning")
    reasoning = [block["reasoning"] for block in message.content_blocks if block["type"] == "reasoning"]
    assert (reasoning, message.text) == (["Let me think."], "Done.")


def test_the_model_answers_from_a_tool_result(ask: Ask):
    question = HumanMessage(QUESTION)
    message = ask("demo", [question])
    [call] = message.tool_calls
    assert ask("demo", [question, message, ToolMessage(RESULT, tool_call_id=call["id"])]).text == ANSWER


def test_every_parallel_call_gets_its_result(ask: Ask):
    question = HumanMessage("What is the weather in Paris and Rome?")
    message = ask("demo", [question], tools=(get_weather,))
    results = [get_weather.invoke(call) for call in message.tool_calls]
    final = ask("demo", [question, message, *results], tools=(get_weather,))
    assert final.text == "According to get_weather: Sun in Paris. Sun in Rome."


def test_a_custom_tool_runs(ask: Ask):
    question = HumanMessage("Use the tool run in Paris.")
    message = ask("demo", [question], tools=(run,))
    [call] = message.tool_calls
    assert ask("demo", [question, message, run.invoke(call)], tools=(run,)).text == "According to run: ran Paris"


def test_only_new_messages_are_sent_after_a_stored_response(ask: Ask, upstream: Upstream):
    question = HumanMessage(QUESTION)
    message = ask("up/client-one-call", [question], use_previous_response_id=True)
    result = ToolMessage(RESULT, tool_call_id="c1")
    final = ask("up/client-text", [question, message, result], use_previous_response_id=True)
    assert final.text == "Hello, world."
    assert final.response_metadata["id"] != message.response_metadata["id"]
    sent = upstream.of("client-text")[-1].body["input"]
    assert [item["type"] for item in sent] == ["message", "function_call", "function_call_output"]


def test_a_chain_that_is_not_stored_carries_its_reasoning_along(ask: Ask):
    question = HumanMessage(QUESTION)
    fields = {"store": False, "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low"}}
    message = ask("demo", [question], **fields)
    [call] = message.tool_calls
    assert ask("demo", [question, message, ToolMessage(RESULT, tool_call_id=call["id"])], **fields).text == ANSWER


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_structured_output_is_read_into_its_model(
    make: Callable[..., ChatOpenAI], version: str, upstream: Upstream, method: Any
):
    upstream.replies["structured"] = turn(text('{"city":'), text('"Paris"}'))
    name = "demo" if method == "function_calling" else "up/structured"
    chat = make(name, output_version=version)
    assert chat.with_structured_output(Weather, method=method).invoke(QUESTION) == Weather(city="Paris")


@pytest.mark.parametrize("ask", [stream], indirect=True)
@pytest.mark.parametrize("turn", ["error-middle", "error-after-call"])
def test_an_error_in_mid_stream_raises(ask: Ask, turn: str):
    with pytest.raises(openai.APIError, match="It broke"):
        ask(f"up/client-{turn}")


def test_a_response_that_is_not_there_cannot_be_continued(ask: Ask):
    with pytest.raises(openai.NotFoundError) as caught:
        ask("demo", model_kwargs={"previous_response_id": "resp_nobody"})
    assert caught.value.code == "previous_response_not_found"
