"""LangChain: `ChatOpenAI` with bound tools, invoked and streamed."""

from collections.abc import Callable
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.sdk.turns import ANSWER, QUESTION, RESULT, TIME, WEATHER

Ask = Callable[..., AIMessage]
PARIS = {"name": "get_weather", "args": {"city": "Paris"}, "id": "c1", "type": "tool_call"}
ROME = {"name": "get_weather", "args": {"city": "Rome"}, "id": "c2", "type": "tool_call"}


class Weather(BaseModel):
    city: str


def invoke(model: Any, messages: list[Any]) -> AIMessage:
    return model.invoke(messages)


def stream(model: Any, messages: list[Any]) -> AIMessage:
    """All chunks, added up as LangChain adds them."""
    first, *others = model.stream(messages)
    return sum(others, first)


@pytest.fixture(params=[invoke, stream])
def ask(request: pytest.FixtureRequest, base_url: str) -> Ask:
    def ask(model: str, messages: list[Any] | None = None, **fields: Any) -> AIMessage:
        client = ChatOpenAI(model=model, base_url=base_url, api_key="test", max_retries=0, timeout=120, **fields)
        return request.param(client.bind_tools([WEATHER, TIME]), messages or [HumanMessage(QUESTION)])

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
    assert ask(f"up/client-{turn}").tool_calls == calls


@pytest.mark.parametrize("turn", ["one-call", "parallel", "no-arguments", "unicode"])
def test_no_call_is_invalid(ask: Ask, turn: str):
    assert ask(f"up/client-{turn}").invalid_tool_calls == []


@pytest.mark.parametrize(
    ("turn", "text"), [("text", "Hello, world."), ("text-and-call", "One moment."), ("one-call", "")]
)
def test_text_arrives_whole(ask: Ask, turn: str, text: str):
    assert ask(f"up/client-{turn}").content == text


@pytest.mark.parametrize(("turn", "reason"), [("text", "stop"), ("one-call", "tool_calls"), ("length", "length")])
def test_the_finish_reason_is_the_truth(ask: Ask, turn: str, reason: str):
    assert ask(f"up/client-{turn}").response_metadata["finish_reason"] == reason


def test_usage_arrives(ask: Ask):
    usage = ask("up/client-text", stream_usage=True).usage_metadata
    assert usage is not None
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (20, 5, 25)


def test_the_model_answers_from_a_tool_result(ask: Ask):
    question = HumanMessage(QUESTION)
    message = ask("demo", [question])
    [call] = message.tool_calls
    assert ask("demo", [question, message, ToolMessage(RESULT, tool_call_id=call["id"])]).content == ANSWER


def test_every_parallel_call_gets_its_result(ask: Ask):
    question = HumanMessage("What is the weather in Paris and Rome?")
    message = ask("demo", [question])
    results = [ToolMessage(f"Sun in {call['args']['city']}.", tool_call_id=call["id"]) for call in message.tool_calls]
    assert ask("demo", [question, message, *results]).content == (
        "According to get_weather: Sun in Paris. Sun in Rome."
    )


def test_structured_output_is_read_from_a_forced_call(base_url: str):
    client = ChatOpenAI(model="demo", base_url=base_url, api_key="test", max_retries=0, timeout=120)
    assert client.with_structured_output(Weather, method="function_calling").invoke(QUESTION) == Weather(city="Paris")


@pytest.mark.parametrize("ask", [stream], indirect=True)
@pytest.mark.parametrize("turn", ["error-middle", "error-after-call"])
def test_an_error_in_mid_stream_raises(ask: Ask, turn: str):
    with pytest.raises(openai.APIError, match="It broke"):
        ask(f"up/client-{turn}")
