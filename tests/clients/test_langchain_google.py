"""LangChain: `ChatGoogleGenerativeAI` with bound tools, invoked and streamed, on every kind of server.

It returns neither ids of calls nor unsigned thoughts, and answers calls by their names and order.
"""

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_google_genai import ChatGoogleGenerativeAI

from tests.clients.histories import calls, results, thoughts
from tests.clients.servers import KINDS, Thought, Use, Words
from tests.clients.stage import Stage
from tests.clients.test_langchain_python import invoke, stream
from tests.sdk.turns import QUESTION, TIME, WEATHER

PARIS = Use("call_1", "get_weather", '{"city":"Paris"}')
ROME = Use("call_2", "get_weather", '{"city":"Rome"}')
NOW = Use("call_3", "get_time", "{}")
KIND = pytest.mark.parametrize("kind", KINDS)
ASK = pytest.mark.parametrize("ask", [invoke, stream])


def connect(stage: Stage, kind: str, model: str) -> Any:
    client = ChatGoogleGenerativeAI(
        model=f"{kind}/{model}",
        base_url=stage.gateway.url,
        api_key="test",
        max_retries=0,
        timeout=120,
        include_thoughts=True,
    )
    return client.bind_tools([tool["function"] for tool in (WEATHER, TIME)])


@KIND
@ASK
def test_parallel_calls_with_a_thought_before_them_make_an_answer(stage: Stage, kind: str, ask: Any):
    model = f"langchain-google-{ask.__name__}-{kind}"
    stage.script(model, [Thought("Hm.", "signed"), Words("I look."), PARIS, ROME, NOW], [Words("Mild.")])
    client, question = connect(stage, kind, model), HumanMessage(QUESTION)
    message: AIMessage = ask(client, [question])
    made = [(call["name"], call["args"]) for call in message.tool_calls]
    assert made == [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"}), ("get_time", {})]
    found = [
        ToolMessage(f"{number} degrees", tool_call_id=call["id"]) for number, call in enumerate(message.tool_calls)
    ]
    assert ask(client, [question, message, *found]).text == "Mild."
    _, second = stage.asked(model, kind)
    assert [(id, name) for id, name, _ in calls(second)] == [(use.id, use.name) for use in (PARIS, ROME, NOW)]
    assert [id for id, _ in results(second)] == [use.id for use in (PARIS, ROME, NOW)]
    assert [f"{number} degrees" in str(content) for number, (_, content) in enumerate(results(second))] == [True] * 3
    assert thoughts(second)
    assert ("signed" in json.dumps(second.body)) == (kind != "chat")


@KIND
@ASK
def test_text_usage_and_the_finish_reason_arrive(stage: Stage, kind: str, ask: Any):
    model = f"langchain-google-text-{ask.__name__}-{kind}"
    stage.script(model, [Words("Hello, world.")])
    message: AIMessage = ask(connect(stage, kind, model), [HumanMessage(QUESTION)])
    assert message.text == "Hello, world."
    assert message.response_metadata["finish_reason"] == "STOP"
    assert message.usage_metadata is not None
    assert message.usage_metadata["total_tokens"] > 0
