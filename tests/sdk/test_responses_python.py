"""openai-python and the Responses endpoint: asked plainly, streamed in events, and through its stream helper."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from tests.sdk.recording_client import (
    GET_TIME,
    GET_WEATHER,
    RUN,
    output_of,
    user,
    watched_async_client,
    watched_client,
)
from tests.sdk.turns import ANSWER, QUESTION, RESULT, TURNS, UNICODE, turn
from tests.support.frames import text
from tests.support.upstream import Upstream

Ask = Callable[..., Response]
TWO_CITIES = "What is the weather in Paris and Rome?"
PARIS = ("c1", "get_weather", '{"city":"Paris"}')
ROME = ("c2", "get_weather", '{"city":"Rome"}')
WELL_ENDED = [name for name, reply in TURNS.items() if reply.status == 200 and not name.startswith("error")]
ENDINGS = ("response.completed", "response.incomplete")


class Weather(BaseModel):
    city: str


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with watched_client(base_url) as client:
        yield client


def plain(client: openai.OpenAI, model: str, **fields: Any) -> Response:
    return client.responses.create(**{"model": model, "input": QUESTION, **fields})


def streamed(client: openai.OpenAI, model: str, **fields: Any) -> Response:
    """Event by event; the last one has it all."""
    *_, last = client.responses.create(**{"model": model, "input": QUESTION, **fields}, stream=True)
    assert last.type in ENDINGS
    return last.response


def helper(client: openai.OpenAI, model: str, **fields: Any) -> Response:
    with client.responses.stream(**{"model": model, "input": QUESTION, **fields}) as stream:
        return stream.get_final_response()


def parse(client: openai.OpenAI, model: str, **fields: Any) -> Response:
    return client.responses.parse(**{"model": model, "input": QUESTION, **fields})


@pytest.fixture(params=[plain, streamed, helper])
def ask(request: pytest.FixtureRequest, client: openai.OpenAI) -> Ask:
    return lambda model, **fields: request.param(client, model, **fields)


def calls_of(response: Response) -> list[tuple[str, str, str]]:
    return [(item.call_id, item.name, item.arguments) for item in response.output if item.type == "function_call"]


def kinds_of(response: Response) -> list[str]:
    return [item.type for item in response.output]


# Calls


def test_one_call_arrives_whole(ask: Ask):
    response = ask("up/client-one-call", tools=[GET_WEATHER])
    assert (response.status, calls_of(response)) == ("completed", [PARIS])


@pytest.mark.parametrize("turn", ["parallel", "interleaved"])
def test_parallel_calls_arrive_whole_and_in_order(ask: Ask, turn: str):
    assert calls_of(ask(f"up/client-{turn}", tools=[GET_WEATHER])) == [PARIS, ROME]


def test_every_item_has_an_id_of_its_own(ask: Ask):
    items = ask("up/client-parallel", tools=[GET_WEATHER]).output
    assert len({item.id for item in items} - {None, ""}) == 2


def test_a_call_without_arguments_has_an_empty_object(ask: Ask):
    assert calls_of(ask("up/client-no-arguments", tools=[GET_TIME])) == [("c1", "get_time", "{}")]


@pytest.mark.parametrize(
    ("turn", "kinds", "words"),
    [
        ("text-and-call", ["message", "function_call"], "One moment."),
        ("call-and-text", ["function_call", "message"], "Let us see."),
        ("one-call", ["function_call"], ""),
    ],
)
def test_text_and_calls_keep_their_order(ask: Ask, turn: str, kinds: list[str], words: str):
    response = ask(f"up/client-{turn}", tools=[GET_WEATHER])
    assert (kinds_of(response), response.output_text, calls_of(response)) == (kinds, words, [PARIS])


def test_arguments_keep_every_character(ask: Ask):
    [(_, _, arguments)] = calls_of(ask("up/client-unicode", tools=[GET_WEATHER]))
    assert arguments == UNICODE


def test_a_megabyte_of_arguments_arrives_whole(ask: Ask):
    [(_, _, arguments)] = calls_of(ask("demo-huge", tools=[GET_WEATHER]))
    assert json.loads(arguments) == {"content": "0123456789abcdef" * 65536}


def test_a_call_written_as_text_is_a_call(ask: Ask):
    [(_, name, arguments)] = calls_of(ask("demo-use-tool", tools=[GET_WEATHER]))
    assert (name, json.loads(arguments)) == ("get_weather", {"city": "Paris"})


def test_a_custom_tool_gets_its_input(ask: Ask):
    [call] = ask("up/client-custom", tools=[RUN]).output
    assert call.type == "custom_tool_call"
    assert (call.call_id, call.name, call.input) == ("c1", "run", "print(1)")


def test_a_tool_in_a_namespace_is_called_by_its_own_name(ask: Ask):
    tools = [{"type": "namespace", "name": "sky", "description": "The sky.", "tools": [GET_WEATHER]}]
    call = ask("demo", tools=tools).output[-1]
    assert call.type == "function_call"
    assert (call.namespace, call.name, call.arguments) == ("sky", "get_weather", '{"city":"Paris"}')


def test_a_client_that_forbids_parallel_calls_gets_one(ask: Ask):
    assert len(calls_of(ask("demo-parallel", tools=[GET_WEATHER], parallel_tool_calls=False))) == 1


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("auto", ["get_weather"]),
        ("required", ["get_weather"]),
        ("none", []),
        ({"type": "function", "name": "get_time"}, ["get_time"]),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]},
            ["get_time"],
        ),
    ],
    ids=["auto", "required", "none", "a-function", "allowed-tools"],
)
def test_the_tool_choice_is_obeyed(ask: Ask, choice: Any, names: list[str]):
    response = ask("demo", tools=[GET_WEATHER, GET_TIME], tool_choice=choice)
    assert [name for _, name, _ in calls_of(response)] == names


@pytest.mark.parametrize(("turn", "waits"), [("one-call", ["c1"]), ("parallel", ["c1", "c2"]), ("text", None)])
def test_calls_that_wait_are_named_in_a_field(ask: Ask, turn: str, waits: list[str] | None):
    action = ask(f"up/client-{turn}", tools=[GET_WEATHER]).to_dict().get("required_action")
    assert waits == (action and [call["id"] for call in action["submit_tool_outputs"]["tool_calls"]])


# Round trips


def test_the_model_answers_from_a_tool_result(ask: Ask):
    asked: list[Any] = user(QUESTION)
    first = ask("demo", input=asked, tools=[GET_WEATHER], store=False)
    [(id, _, _)] = calls_of(first)
    again = [*asked, *first.output, output_of(id, RESULT)]
    assert ask("demo", input=again, tools=[GET_WEATHER], store=False).output_text == ANSWER


def test_the_model_answers_from_a_result_that_continues_a_response(ask: Ask):
    first = ask("demo", tools=[GET_WEATHER])
    [(id, _, _)] = calls_of(first)
    second = ask("demo", previous_response_id=first.id, input=[output_of(id, RESULT)], tools=[GET_WEATHER])
    assert (second.output_text, second.previous_response_id) == (ANSWER, first.id)


def test_every_parallel_call_gets_its_result(ask: Ask):
    first = ask("demo", input=TWO_CITIES, tools=[GET_WEATHER])
    results = [output_of(id, f"Sun in {json.loads(arguments)['city']}.") for id, _, arguments in calls_of(first)]
    second = ask("demo", previous_response_id=first.id, input=results, tools=[GET_WEATHER])
    assert second.output_text == "According to get_weather: Sun in Paris. Sun in Rome."


def test_a_custom_tool_gets_its_result_back(ask: Ask):
    first = ask("demo", input="Use the tool run.", tools=[RUN])
    call = first.output[-1]
    assert call.type == "custom_tool_call"
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "1"}
    second = ask("demo", previous_response_id=first.id, input=[result], tools=[RUN])
    assert second.output_text == "According to run: 1"


def test_a_chain_brings_all_that_was_said_and_none_of_the_old_instructions(ask: Ask, upstream: Upstream):
    first = ask("up/client-text", input="One.", instructions="Be brief.")
    second = ask("up/client-one-call", input="Two.", previous_response_id=first.id, tools=[GET_WEATHER])
    ask("up/client-text", input=[output_of("c1", RESULT)], previous_response_id=second.id)
    body = upstream.of("client-text")[-1].body
    seen = [(item["type"], item.get("content", item.get("arguments", item.get("output")))) for item in body["input"]]
    assert [kind for kind, _ in seen] == ["message", "message", "message", "function_call", "function_call_output"]
    said = json.dumps(seen)
    assert all(word in said for word in ("One.", "Hello, world.", "Two.", "Paris", "Sunny"))
    assert not body.get("instructions")


def test_two_responses_can_continue_the_same_one(ask: Ask, upstream: Upstream):
    first = ask("up/client-text", input="One.")
    for word in ("Left.", "Right."):
        ask("up/client-text", input=word, previous_response_id=first.id)
    left, right = (json.dumps(asked.body["input"]) for asked in upstream.of("client-text")[-2:])
    assert ("Left." in left, "Right." in left) == (True, False)
    assert ("Left." in right, "Right." in right) == (False, True)


def test_an_item_can_be_sent_back_by_reference(ask: Ask, upstream: Upstream):
    upstream.replies["referred"] = turn(text("Remember this.", item="msg_referred"))
    [item] = ask("up/referred").output
    ask("up/client-text", input=[{"type": "item_reference", "id": item.id}, *user("And now?")])
    first, second = upstream.of("client-text")[-1].body["input"]
    assert (first["role"], first["content"][0]["text"]) == ("assistant", "Remember this.")
    assert second["role"] == "user"


def test_a_result_can_have_parts(ask: Ask, upstream: Upstream):
    first = ask("up/client-one-call", tools=[GET_WEATHER])
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    parts = [{"type": "input_text", "text": "See:"}, picture]
    result = {"type": "function_call_output", "call_id": "c1", "output": parts}
    ask("up/client-text", previous_response_id=first.id, input=[result])
    assert upstream.of("client-text")[-1].body["input"][-1]["output"] == parts


def test_fields_reach_a_backend_that_knows_them(ask: Ask, upstream: Upstream):
    fields = {
        "max_output_tokens": 99,
        "max_tool_calls": 3,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "service_tier": "flex",
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
        "context_management": [{"type": "compaction", "compact_threshold": 5000}],
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    ask("up/client-text", **fields)
    body = upstream.of("client-text")[-1].body
    assert {name: body.get(name) for name in fields} == fields


# The stream helper and parsing


def test_the_helper_ends_each_call_once(client: openai.OpenAI):
    with client.responses.stream(model="up/client-parallel", input=QUESTION, tools=[GET_WEATHER]) as stream:
        done = [event for event in stream if event.type == "response.function_call_arguments.done"]
    assert [(event.output_index, event.name, event.arguments) for event in done] == [
        (0, "get_weather", '{"city":"Paris"}'),
        (1, "get_weather", '{"city":"Rome"}'),
    ]


def test_the_helper_adds_up_what_was_said_so_far(client: openai.OpenAI):
    with client.responses.stream(model="up/client-text", input=QUESTION) as stream:
        seen = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
    assert seen == ["Hello", "Hello, world."]


def test_a_call_can_be_watched_while_it_grows(client: openai.OpenAI):
    with client.responses.stream(model="up/client-one-call", input=QUESTION, tools=[GET_WEATHER]) as stream:
        seen = [event.snapshot for event in stream if event.type == "response.function_call_arguments.delta"]
    assert seen == ['{"city":', '{"city":"Paris"}']


@pytest.mark.parametrize("way", [parse, helper])
def test_a_strict_call_is_read_into_its_model(client: openai.OpenAI, way: Any):
    tools = [openai.pydantic_function_tool(Weather, name="get_weather")]
    [call] = way(client, "up/client-one-call", tools=tools).output
    assert call.parsed_arguments == Weather(city="Paris")


@pytest.mark.parametrize("way", [parse, helper])
def test_an_answer_is_read_into_its_model(client: openai.OpenAI, upstream: Upstream, way: Any):
    upstream.replies["structured"] = turn(text('{"city":'), text('"Paris"}'))
    assert way(client, "up/structured", text_format=Weather).output_parsed == Weather(city="Paris")
    format = upstream.of("structured")[-1].body["text"]["format"]
    assert (format["type"], format["name"], format["strict"]) == ("json_schema", "Weather", True)
    assert format["schema"]["properties"]["city"]["type"] == "string"


# Text and endings


def test_text_arrives_whole(ask: Ask):
    assert ask("up/client-text").output_text == "Hello, world."


def test_reasoning_is_told_apart_from_text(ask: Ask):
    response = ask("up/client-reasoning")
    assert kinds_of(response) == ["reasoning", "message"]
    assert [part.text for part in response.output[0].summary] == ["Let me think."]
    assert response.output_text == "Done."


def test_a_refusal_is_not_text(ask: Ask):
    response = ask("up/client-refusal")
    [part] = response.output[0].content
    assert (part.type, part.refusal, response.output_text) == ("refusal", "I will not.", "")


@pytest.mark.parametrize("way", [plain, streamed])
@pytest.mark.parametrize(
    ("turn", "reason", "words"), [("length", "max_output_tokens", "And then"), ("filter", "content_filter", "Well")]
)
def test_an_answer_that_was_cut_short_says_so(client: openai.OpenAI, way: Ask, turn: str, reason: str, words: str):
    response = way(client, f"up/client-{turn}")
    assert response.incomplete_details is not None
    assert (response.status, response.incomplete_details.reason) == ("incomplete", reason)
    assert response.output_text == words


@pytest.mark.parametrize("way", [plain, streamed])
def test_a_call_that_was_cut_short_does_not_wait_for_an_output(client: openai.OpenAI, way: Ask):
    response = way(client, "demo-length", tools=[GET_WEATHER])
    assert [(item.type, item.status) for item in response.output] == [("function_call", "incomplete")]
    assert "required_action" not in response.to_dict()


def test_a_response_repeats_what_was_asked(ask: Ask):
    fields = {"instructions": "Be brief.", "temperature": 0.5, "top_p": 0.9, "max_output_tokens": 99}
    names = {"metadata": {"a": "b"}, "user": "u1", "truncation": "auto", "reasoning": {"effort": "low"}}
    response = ask("demo", **fields, **names, tools=[GET_WEATHER], tool_choice="none", store=False).to_dict()
    assert {name: response[name] for name in fields} == fields
    assert (response["metadata"], response["truncation"], response["model"]) == ({"a": "b"}, "auto", "demo")
    assert response["reasoning"]["effort"] == "low"
    assert (response["tool_choice"], response["store"]) == ("none", False)
    assert [tool["name"] for tool in response["tools"]] == ["get_weather"]


@pytest.mark.parametrize("turn", WELL_ENDED)
def test_streamed_and_plain_are_the_same(client: openai.OpenAI, turn: str):
    def seen(response: Response) -> dict[str, Any]:
        fields = response.to_dict()
        own = fields.pop("id").removeprefix("resp_")
        shown = {name: value for name, value in fields.items() if name not in ("created_at", "completed_at")}
        return json.loads(json.dumps(shown).replace(own, "own"))

    tools = [GET_WEATHER, GET_TIME, RUN]
    one, other = (seen(way(client, f"up/client-{turn}", tools=tools)) for way in (streamed, plain))
    assert one == other


def test_usage_arrives(ask: Ask):
    usage = ask("up/client-text").usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (20, 5, 25)
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (8, 2)


def test_a_base_url_can_choose_the_output_mode(client: openai.OpenAI):
    address = str(client.base_url).replace("/v1", "/obsidian-xml/v1")
    response = streamed(client.with_options(base_url=address), "up/client-one-call", tools=[GET_WEATHER])
    assert "<use_tool>\n<name>get_weather</name>\n<city>Paris</city>\n</use_tool>" in response.output_text
    assert calls_of(response) == [PARIS]


# Errors


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("up/client-unauthorized", openai.AuthenticationError, "refused the key that you sent: This key is not mine."),
        ("nobody", openai.NotFoundError, "There is no model 'nobody' here."),
        ("demo-rate-limit", openai.RateLimitError, "The demo model is busy."),
        ("up/client-overloaded", openai.InternalServerError, "Too much to do."),
    ],
)
def test_an_error_before_the_turn_has_its_own_exception(
    ask: Ask, model: str, error: type[openai.APIStatusError], message: str
):
    with pytest.raises(error) as caught:
        ask(model)
    assert message in caught.value.body["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": 3}, "input"),
        ({"input": [{"role": "nobody", "content": "Hello."}]}, "input[0].role"),
        ({"input": [{"type": "function_call_output", "output": "Sun."}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "c1", "arguments": "{}"}]}, "input[0].name"),
        ({"temperature": "hot"}, "temperature"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [GET_WEATHER], "tool_choice": {"type": "function", "name": "get_time"}}, "tool_choice"),
        ({"tools": [GET_WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"background": True, "store": False}, "background"),
        ({"model": ""}, "model"),
    ],
)
def test_a_bad_request_names_the_field(client: openai.OpenAI, fields: dict[str, Any], param: str):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": "demo", "input": QUESTION, **fields})
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")


def test_a_response_that_is_not_there_cannot_be_continued(ask: Ask):
    with pytest.raises(openai.NotFoundError) as caught:
        ask("demo", previous_response_id="resp_nobody")
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")


def test_a_response_that_was_not_stored_cannot_be_continued(ask: Ask):
    response = ask("demo", store=False)
    with pytest.raises(openai.NotFoundError) as caught:
        ask("demo", previous_response_id=response.id)
    assert caught.value.code == "previous_response_not_found"


def test_an_output_needs_its_call_in_the_chain(ask: Ask):
    response = ask("demo", tools=[GET_WEATHER])
    with pytest.raises(openai.BadRequestError, match="c9"):
        ask("demo", previous_response_id=response.id, input=[output_of("c9", RESULT)], tools=[GET_WEATHER])


@pytest.mark.parametrize("with_helper", [False, True])
@pytest.mark.parametrize(
    ("model", "words"),
    [("up/client-error-middle", "Half an"), ("demo-error-middle", "This answer will not be finished,")],
)
def test_an_error_in_mid_stream_raises_after_the_text(client: openai.OpenAI, with_helper: bool, model: str, words: str):
    asked = {"model": model, "input": QUESTION}
    opened = client.responses.stream(**asked) if with_helper else client.responses.create(**asked, stream=True)
    seen: list[str] = []
    with opened as stream, pytest.raises(openai.APIError, match="broke") as caught:
        seen.extend(event.delta for event in stream if event.type == "response.output_text.delta")
    assert "".join(seen) == words
    assert caught.value.code == "server_error"


@pytest.mark.parametrize("model", ["up/client-error-after-call", "demo-cut"])
def test_an_error_after_a_call_raises(client: openai.OpenAI, model: str):
    with pytest.raises(openai.APIError, match="broke"):
        helper(client, model, tools=[GET_WEATHER])


def test_an_error_in_the_middle_of_a_plain_answer_has_a_status(client: openai.OpenAI):
    with pytest.raises(openai.InternalServerError, match="It broke"):
        plain(client, "up/client-error-middle")


# Asynchronously


def test_the_asynchronous_client_runs_a_whole_tool_loop(base_url: str):
    async def loop() -> str:
        async with watched_async_client(base_url) as client:
            first = await client.responses.create(model="demo", input=QUESTION, tools=[GET_WEATHER])
            [(id, _, _)] = calls_of(first)
            asked = {"model": "demo", "previous_response_id": first.id, "input": [output_of(id, RESULT)]}
            async with client.responses.stream(**asked) as stream:
                final = await stream.get_final_response()
            events = await client.responses.create(**asked, stream=True)
            assert [event async for event in events][-1].response.output_text == final.output_text
            return final.output_text

    assert asyncio.run(loop()) == ANSWER
