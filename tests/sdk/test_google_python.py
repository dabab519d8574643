"""google-genai over the Gemini endpoint: streams, functions that it calls by itself, chats, errors, models."""

from collections.abc import Iterator
from typing import Any

import pytest
from google import genai
from google.genai import errors, types

from tests.clients.loops import SEAL, item, loop, signed
from tests.sdk.turns import QUESTION, turn
from tests.support.frames import call, text
from tests.support.gateway import Gateway
from tests.support.upstream import Upstream

CITY = types.Schema(type=types.Type.OBJECT, properties={"city": types.Schema(type=types.Type.STRING)})
WEATHER = types.FunctionDeclaration(name="get_weather", description="Weather.", parameters=CITY)
TIME = types.FunctionDeclaration(name="get_time", description="Time.")
TOOLS: Any = [types.Tool(function_declarations=[WEATHER, TIME])]
WAYS = pytest.mark.parametrize("way", ["plain", "stream"])


@pytest.fixture(scope="module")
def client(gateway: Gateway, base_url: str) -> Iterator[Any]:
    client: Any = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=gateway.url, timeout=120_000))
    yield client
    client.close()


def ask(client: Any, way: str, model: str, contents: Any = QUESTION, **config: Any) -> types.Content:
    """The content of the answer, with the parts of all chunks."""
    fields: Any = {"model": model, "contents": contents, "config": types.GenerateContentConfig(**config)}
    if way == "plain":
        return content_of(client.models.generate_content(**fields))
    chunks = [content_of(each) for each in client.models.generate_content_stream(**fields)]
    return types.Content(role="model", parts=[part for each in chunks for part in each.parts or ()])


def content_of(answer: types.GenerateContentResponse) -> types.Content:
    [candidate] = answer.candidates or []
    assert candidate.content is not None
    return candidate.content


def calls(content: types.Content) -> list[tuple[Any, Any, Any]]:
    made = [part.function_call for part in content.parts or () if part.function_call is not None]
    return [(call.id, call.name, call.args) for call in made]


def text_of(content: types.Content) -> str:
    return "".join(part.text or "" for part in content.parts or () if not part.thought)


SEEN: list[tuple[str, list[Any], str]] = [
    ("text", [], "Hello, world."),
    ("one-call", [("c1", "get_weather", {"city": "Paris"})], ""),
    ("parallel", [("c1", "get_weather", {"city": "Paris"}), ("c2", "get_weather", {"city": "Rome"})], ""),
    ("interleaved", [("c1", "get_weather", {"city": "Paris"}), ("c2", "get_weather", {"city": "Rome"})], ""),
    ("no-arguments", [("c1", "get_time", {})], ""),
    ("text-and-call", [("c1", "get_weather", {"city": "Paris"})], "One moment."),
    ("call-and-text", [("c1", "get_weather", {"city": "Paris"})], "Let us see."),
    ("unicode", [("c1", "get_weather", {"city": 'Zürich ☃ 東京 \U0001f326\ufe0f "quoted" \\ \n'})], ""),
]


@WAYS
@pytest.mark.parametrize(("turn", "made", "said"), SEEN)
def test_a_turn_arrives_whole(client: Any, way: str, turn: str, made: list[Any], said: str):
    content = ask(client, way, f"up/client-{turn}", tools=TOOLS)
    assert (calls(content), text_of(content)) == (made, said)


@WAYS
@pytest.mark.parametrize(
    ("turn", "reason"), [("text", "STOP"), ("one-call", "STOP"), ("length", "MAX_TOKENS"), ("filter", "SAFETY")]
)
def test_the_finish_reason_and_the_tokens_are_the_truth(client: Any, way: str, turn: str, reason: str):
    fields: Any = {"model": f"up/client-{turn}", "contents": QUESTION}
    if way == "plain":
        answer = client.models.generate_content(**fields)
    else:
        *_, answer = client.models.generate_content_stream(**fields)
    assert answer.candidates is not None
    assert answer.candidates[0].finish_reason == types.FinishReason[reason]
    assert answer.model_version == f"up/client-{turn}"
    if turn == "text":
        usage = answer.usage_metadata
        assert usage is not None
        assert (usage.prompt_token_count, usage.cached_content_token_count) == (20, 8)
        assert (usage.candidates_token_count, usage.thoughts_token_count, usage.total_token_count) == (3, 2, 25)


@WAYS
def test_thoughts_are_shown_if_they_are_asked_for(client: Any, way: str):
    def thoughts(**config: Any) -> list[str]:
        parts = ask(client, way, "up/client-reasoning", **config).parts or ()
        return [part.text or "" for part in parts if part.thought]

    shown = thoughts(thinking_config=types.ThinkingConfig(include_thoughts=True))
    assert "".join(shown) == "Let me think."
    assert thoughts() == []


@WAYS
def test_it_calls_functions_by_itself(client: Any, upstream: Upstream, way: str):
    """It returns no ids, every chunk as a content of its own, and signatures in the other alphabet."""
    asked: list[str] = []

    def get_weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return f"Sun in {city}."

    two = (
        call("c1", "get_weather", '{"city":"Paris"}', index=1),
        call("c2", "get_weather", '{"city":"Rome"}', index=2),
    )
    model = f"google-functions-{way}"
    upstream.replies[model] = [turn(signed("rs_1"), *two), turn(text("Sunny.", "msg_2"))]
    config = {"tools": [get_weather], "thinking_config": types.ThinkingConfig(include_thoughts=True)}
    assert text_of(ask(client, way, f"up/{model}", **config)).endswith("Sunny.")
    assert asked == ["Paris", "Rome"]
    entries = upstream.of(model)[-1].body["input"]
    kinds = [entry.get("role") or entry["type"] for entry in entries]
    assert kinds == ["user", "reasoning", *["function_call"] * 2, *["function_call_output"] * 2]
    assert entries[1]["encrypted_content"] == SEAL
    assert [entry.get("call_id") for entry in entries[2:]] == ["c1", "c2", "c1", "c2"]
    assert [entry["output"] for entry in entries[4:]] == ["Sun in Paris.", "Sun in Rome."]


@WAYS
def test_a_loop_by_hand_returns_the_signature(client: Any, upstream: Upstream, way: str):
    model = f"google-loop-{way}"
    upstream.replies[model] = loop(model, "get_weather", '{"city":"Paris"}', "Sunny.")
    question = types.Content(role="user", parts=[types.Part(text=QUESTION)])
    said = ask(client, way, f"up/{model}", [question], tools=TOOLS)
    [(id, name, _)] = calls(said)
    response = types.FunctionResponse(id=id, name=name, response={"output": "Sun."})
    results = types.Content(role="user", parts=[types.Part(function_response=response)])
    assert text_of(ask(client, way, f"up/{model}", [question, said, results], tools=TOOLS)) == "Sunny."
    asked = upstream.of(model)[-1]
    assert item(asked, "reasoning")["encrypted_content"] == SEAL
    assert item(asked, "function_call_output")["output"] == "Sun."
    assert item(asked, "function_call")["call_id"] == f"call_{model}"


@WAYS
def test_a_chat_remembers_what_was_said(client: Any, way: str):
    chat = client.chats.create(model="demo")
    for words in ("Hello.", "And now?"):
        if way == "plain":
            chat.send_message(words)
        else:
            assert [*chat.send_message_stream(words)]
    history = chat.get_history()
    assert [content.role for content in history if content.role == "user"] == ["user", "user"]
    assert "And now?" in str(history)


def test_an_answer_has_the_form_that_is_asked_for(client: Any, upstream: Upstream):
    upstream.replies["google-form"] = turn(text('{"city":"Paris"}'))
    config = types.GenerateContentConfig(response_mime_type="application/json", response_schema=CITY)
    answer = client.models.generate_content(model="up/google-form", contents=QUESTION, config=config)
    assert answer.parsed == {"city": "Paris"}
    form = upstream.of("google-form")[-1].body["text"]["format"]
    assert form["schema"]["properties"] == {"city": {"type": "string"}}


@WAYS
@pytest.mark.parametrize(
    ("model", "kind", "code"),
    [("nobody", errors.ClientError, 404), ("demo-rate-limit", errors.ClientError, 429), ("up/client-overloaded", errors.ServerError, 503)],
)  # fmt: skip
def test_errors_are_raised_by_their_codes(client: Any, way: str, model: str, kind: type[Any], code: int):
    with pytest.raises(kind) as raised:
        ask(client, way, model)
    assert raised.value.code == code
    assert raised.value.status
    assert raised.value.message


def test_a_failure_in_mid_stream_is_raised(client: Any):
    with pytest.raises(errors.APIError, match="It broke"):
        ask(client, "stream", "up/client-error-middle")


def test_models_are_listed_and_tokens_counted(client: Any):
    listed = [model.name for model in client.models.list(config={"page_size": 3})]
    assert "models/demo" in listed
    assert len({*listed}) == len(listed)
    assert client.models.get(model="demo").display_name == "demo"
    counted = client.models.count_tokens(model="demo", contents=QUESTION)
    assert (counted.total_tokens or 0) > 3


@WAYS
def test_vertex_is_spoken_as_well(gateway: Gateway, way: str):
    options = types.HttpOptions(base_url=gateway.url, timeout=120_000)
    client: Any = genai.Client(vertexai=True, api_key="k", http_options=options)
    content = ask(client, way, "demo", "What is the weather in Paris?", tools=TOOLS)
    assert [(name, args) for _, name, args in calls(content)] == [("get_weather", {"city": "Paris"})]
    client.close()
