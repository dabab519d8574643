"""anthropic-python over the Messages endpoint, on the demo model."""

from typing import Any

import anthropic
import pytest

from tests.support.gateway import Gateway

TOOLS: Any = [{"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]
ASK: Any = {"role": "user", "content": "What is the weather in Paris?"}


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=gateway.url, api_key="k", max_retries=0)


def ask(client: anthropic.Anthropic, way: str, model: str, *messages: Any, **fields: Any) -> Any:
    asked = {"model": model, "max_tokens": 99, "messages": list(messages or (ASK,)), **fields}
    if way == "create":
        return client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        return stream.get_final_message()


WAYS = pytest.mark.parametrize("way", ["create", "stream"])


@WAYS
def test_a_tool_runs_and_its_result_is_answered_from(client: anthropic.Anthropic, way: str):
    message = ask(client, way, "demo", tools=TOOLS)
    assert message.stop_reason == "tool_use"
    thinking, call = message.content
    assert (thinking.type, call.name, call.input) == ("thinking", "get_weather", {"city": "Paris"})
    said = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    answer = ask(client, way, "demo", ASK, said, {"role": "user", "content": [result]}, tools=TOOLS)
    assert (answer.content[0].text, answer.stop_reason) == ("According to get_weather: sunny", "end_turn")


@WAYS
@pytest.mark.parametrize(
    ("model", "reason", "blocks"),
    [
        ("demo-parallel", "tool_use", ["tool_use"] * 3),
        ("demo-refusal", "refusal", ["text"]),
        ("demo-use-tool", "tool_use", ["text", "tool_use"]),
        ("demo-huge", "tool_use", ["tool_use"]),
    ],
)
def test_a_turn_ends_with_its_own_reason(client, way: str, model: str, reason: str, blocks: list[str]):
    message = ask(client, way, model, tools=TOOLS)
    assert (message.stop_reason, [block.type for block in message.content]) == (reason, blocks)
    assert message.usage.output_tokens > 0


@WAYS
def test_errors_are_told_in_the_dialect(client: anthropic.Anthropic, way: str):
    with pytest.raises(anthropic.NotFoundError) as missing:
        ask(client, way, "nobody")
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.role"):
        ask(client, way, "demo", {"role": "bob", "content": "x"})
    with pytest.raises(anthropic.RateLimitError) as busy:
        ask(client, way, "demo-rate-limit")
    assert busy.value.response.headers["retry-after"] == "60"


def test_a_failure_in_mid_stream_is_an_error_event(client: anthropic.Anthropic):
    with pytest.raises(anthropic.APIStatusError, match="broke down"):
        ask(client, "stream", "demo-error-middle")


def test_tokens_are_estimated_where_nobody_counts(client: anthropic.Anthropic):
    counted = client.messages.with_raw_response.count_tokens(model="demo", messages=[ASK], tools=TOOLS)
    assert counted.parse().input_tokens > 10
    assert counted.headers["x-toolwire-notes"] == '[{"code":"tokens_estimated"}]'


def test_models_are_listed_page_by_page_and_retrieved(client: anthropic.Anthropic):
    page = client.models.list(limit=3)
    assert len(page.data) == 3
    assert page.has_more
    listed = [model.id for model in page]  # all pages
    assert [model.id for model in client.models.list(limit=1000)] == listed
    assert len(set(listed)) == len(listed) > 3
    assert "demo" in listed
    model = client.models.retrieve("demo")
    assert (model.type, model.id, model.display_name, model.lifecycle) == ("model", "demo", "demo", "active")
    assert model.created_at.year == 1970
    assert client.models.retrieve("demo/demo-slow").id == "demo/demo-slow"
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.models.retrieve("nobody")
    assert missing.value.type == "not_found_error"
