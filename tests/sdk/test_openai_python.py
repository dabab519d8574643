"""openai-python: asked plainly, streamed in chunks, and through its stream helper."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from tests.sdk.turns import ANSWER, QUESTION, RESULT, TIME, TURNS, UNICODE, WEATHER
from tests.support import doc_examples

Ask = Callable[..., ChatCompletion]
USER = {"role": "user", "content": QUESTION}
WELL_ENDED = [name for name, reply in TURNS.items() if reply.status == 200 and not name.startswith("error")]


class Weather(BaseModel):
    city: str


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key="test", max_retries=0, timeout=120) as client:
        yield client


def plain(client: openai.OpenAI, model: str, **fields: Any) -> ChatCompletion:
    return client.chat.completions.create(**{"model": model, "messages": [USER], **fields})


def chunks(client: openai.OpenAI, model: str, **fields: Any) -> ChatCompletion:
    """Chunk by chunk, added up by the SDK's own rules."""
    state = ChatCompletionStreamState()
    for chunk in client.chat.completions.create(**{"model": model, "messages": [USER], **fields}, stream=True):
        state.handle_chunk(chunk)
    return state.current_completion_snapshot


def helper(client: openai.OpenAI, model: str, **fields: Any) -> ChatCompletion:
    with client.chat.completions.stream(**{"model": model, "messages": [USER], **fields}) as stream:
        return stream.get_final_completion()


@pytest.fixture(params=[plain, chunks, helper])
def ask(request: pytest.FixtureRequest, client: openai.OpenAI) -> Ask:
    return lambda model, **fields: request.param(client, model, **fields)


def calls_of(completion: ChatCompletion) -> list[tuple[str, str, str]]:
    calls = completion.choices[0].message.tool_calls or []
    assert {call.type for call in calls} <= {"function"}
    return [(call.id, call.function.name, call.function.arguments) for call in calls if call.type == "function"]


# Calls


def test_one_call_arrives_whole(ask: Ask):
    assert calls_of(ask("up/client-one-call", tools=[WEATHER])) == [("c1", "get_weather", '{"city":"Paris"}')]


@pytest.mark.parametrize("turn", ["parallel", "interleaved"])
def test_parallel_calls_arrive_whole_and_in_order(ask: Ask, turn: str):
    assert calls_of(ask(f"up/client-{turn}", tools=[WEATHER])) == [
        ("c1", "get_weather", '{"city":"Paris"}'),
        ("c2", "get_weather", '{"city":"Rome"}'),
    ]


def test_a_call_without_arguments_has_an_empty_object(ask: Ask):
    assert calls_of(ask("up/client-no-arguments", tools=[TIME])) == [("c1", "get_time", "{}")]


def test_a_call_without_text_has_no_content(ask: Ask):
    assert ask("up/client-one-call", tools=[WEATHER]).choices[0].message.content is None


def test_text_before_a_call_is_kept(ask: Ask):
    completion = ask("up/client-text-and-call", tools=[WEATHER])
    assert completion.choices[0].message.content == "One moment."
    assert calls_of(completion) == [("c1", "get_weather", '{"city":"Paris"}')]


def test_arguments_keep_every_character(ask: Ask):
    [(_, _, arguments)] = calls_of(ask("up/client-unicode", tools=[WEATHER]))
    assert arguments == UNICODE


def test_a_megabyte_of_arguments_arrives_whole(ask: Ask):
    [(_, _, arguments)] = calls_of(ask("demo-huge", tools=[WEATHER]))
    assert json.loads(arguments) == {"content": "0123456789abcdef" * 65536}


def test_a_call_written_as_text_is_a_call(ask: Ask):
    [(_, name, arguments)] = calls_of(ask("demo-use-tool", tools=[WEATHER]))
    assert (name, json.loads(arguments)) == ("get_weather", {"city": "Paris"})


def test_legacy_functions_get_a_function_call(ask: Ask):
    choice = ask("up/client-one-call", functions=[WEATHER["function"]]).choices[0]
    assert choice.finish_reason == "function_call"
    assert choice.message.tool_calls is None
    assert choice.message.function_call is not None
    assert choice.message.function_call.to_dict() == {"name": "get_weather", "arguments": '{"city":"Paris"}'}


def test_legacy_functions_get_one_call_only(ask: Ask):
    call = ask("up/client-parallel", functions=[WEATHER["function"]]).choices[0].message.function_call
    assert call is not None
    assert call.arguments == '{"city":"Paris"}'


def test_a_custom_tool_gets_its_input(client: openai.OpenAI):
    tools = [{"type": "custom", "custom": {"name": "run"}}]
    [call] = plain(client, "up/client-custom", tools=tools).choices[0].message.tool_calls or []
    assert call.to_dict() == {"id": "c1", "type": "custom", "custom": {"name": "run", "input": "print(1)"}}


def test_the_model_answers_from_a_tool_result(ask: Ask):
    message = ask("demo", tools=[WEATHER]).choices[0].message
    [call] = message.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
    completion = ask("demo", tools=[WEATHER], messages=[USER, message.to_dict(), result])
    assert completion.choices[0].message.content == ANSWER


def test_the_model_answers_from_a_legacy_function_result(ask: Ask):
    functions = [WEATHER["function"]]
    message = ask("demo", functions=functions).choices[0].message
    result = {"role": "function", "name": "get_weather", "content": RESULT}
    completion = ask("demo", functions=functions, messages=[USER, message.to_dict(), result])
    assert completion.choices[0].message.content == ANSWER


def test_a_client_that_forbids_parallel_calls_gets_one(ask: Ask):
    assert len(calls_of(ask("demo-parallel", tools=[WEATHER], parallel_tool_calls=False))) == 1


def test_a_forced_tool_is_called(ask: Ask):
    choice = {"type": "function", "function": {"name": "get_time"}}
    [(_, name, arguments)] = calls_of(ask("demo", tools=[WEATHER, TIME], tool_choice=choice))
    assert (name, arguments) == ("get_time", "{}")


def test_a_base_url_can_choose_the_output_mode(client: openai.OpenAI):
    address = str(client.base_url).replace("/v1", "/obsidian-xml/v1")
    completion = chunks(client.with_options(base_url=address), "up/client-one-call", tools=[WEATHER])
    assert completion.choices[0].message.content == (
        "<use_tool>\n<name>get_weather</name>\n<city>Paris</city>\n</use_tool>"
    )


def test_the_models_can_be_listed(client: openai.OpenAI):
    assert "demo" in [model.id for model in client.models.list()]


# The stream helper


def test_the_helper_ends_each_call_once(client: openai.OpenAI):
    with client.chat.completions.stream(model="up/client-parallel", messages=[USER], tools=[WEATHER]) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [(event.index, event.arguments) for event in done] == [(0, '{"city":"Paris"}'), (1, '{"city":"Rome"}')]


def test_the_helper_reads_a_strict_call_into_its_model(client: openai.OpenAI):
    tools = [openai.pydantic_function_tool(Weather, name="get_weather")]
    [call] = helper(client, "up/client-one-call", tools=tools).choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Weather(city="Paris")


@pytest.mark.parametrize(
    ("turn", "error"),
    [("length", openai.LengthFinishReasonError), ("filter", openai.ContentFilterFinishReasonError)],
)
def test_the_helper_raises_when_an_answer_was_cut_short(client: openai.OpenAI, turn: str, error: type[Exception]):
    with pytest.raises(error):
        helper(client, f"up/client-{turn}")


# Text and endings


def test_text_arrives_whole(ask: Ask):
    assert ask("up/client-text").choices[0].message.content == "Hello, world."


def test_a_refusal_is_not_content(ask: Ask):
    message = ask("up/client-refusal").choices[0].message
    assert (message.content, message.refusal) == (None, "I will not.")


@pytest.mark.parametrize("way", [plain, chunks])
@pytest.mark.parametrize(
    ("turn", "reason"),
    [("text", "stop"), ("one-call", "tool_calls"), ("length", "length"), ("filter", "content_filter")],
)
def test_the_finish_reason_is_the_truth(client: openai.OpenAI, way: Ask, turn: str, reason: str):
    assert way(client, f"up/client-{turn}").choices[0].finish_reason == reason


def test_a_call_that_was_cut_short_ends_with_length(client: openai.OpenAI):
    assert chunks(client, "demo-length", tools=[WEATHER]).choices[0].finish_reason == "length"


@pytest.mark.parametrize("turn", WELL_ENDED)
def test_streamed_and_plain_are_the_same(client: openai.OpenAI, turn: str):
    def seen(completion: ChatCompletion) -> dict[str, Any]:
        choice = completion.choices[0].to_dict(exclude_none=True)
        for call in choice["message"].get("tool_calls", ()):
            call.pop("index", None)
        return choice

    tools = [WEATHER, TIME, {"type": "custom", "custom": {"name": "run"}}]
    streamed, whole = (seen(way(client, f"up/client-{turn}", tools=tools)) for way in (chunks, plain))
    assert streamed == whole


def test_usage_comes_last_in_a_stream_that_asks_for_it(client: openai.OpenAI):
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model="up/client-text", messages=[USER], stream=True, stream_options=options
    )
    *others, last = stream
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (20, 5, 25)
    assert {chunk.usage for chunk in others} == {None}


def test_a_stream_that_does_not_ask_for_usage_has_none(client: openai.OpenAI):
    assert chunks(client, "up/client-text").usage is None


def test_a_plain_answer_has_usage(client: openai.OpenAI):
    usage = plain(client, "up/client-text").usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (20, 5, 25)


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


def test_a_bad_request_names_the_field(ask: Ask):
    with pytest.raises(openai.BadRequestError) as caught:
        ask("demo", messages=[])
    assert caught.value.param == "messages"


def test_a_rate_limit_says_when_to_come_back(ask: Ask):
    with pytest.raises(openai.RateLimitError) as caught:
        ask("demo-rate-limit")
    assert caught.value.response.headers["retry-after"] == "60"


@pytest.mark.parametrize(
    ("model", "text"),
    [("up/client-error-middle", "Half an"), ("demo-error-middle", "This answer will not be finished,")],
)
def test_an_error_in_mid_stream_raises_after_the_text(client: openai.OpenAI, model: str, text: str):
    with client.chat.completions.stream(model=model, messages=[USER]) as stream:
        with pytest.raises(openai.APIError, match="broke"):
            stream.until_done()
        assert stream.current_completion_snapshot.choices[0].message.content == text


@pytest.mark.parametrize("model", ["up/client-error-after-call", "demo-cut"])
def test_an_error_after_a_call_raises(client: openai.OpenAI, model: str):
    with pytest.raises(openai.APIError, match="broke"):
        helper(client, model, tools=[WEATHER])


def test_the_example_of_the_first_steps_prints_what_the_page_says(
    base_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # which each example replaces
    page = tmp_path / "quickstart.md"
    text = (Path(__file__).parents[2] / "docs" / page.name).read_text()
    page.write_text(text.replace("http://127.0.0.1:8787/v1", base_url))
    [example] = doc_examples.examples_of(page)
    assert example.output
    doc_examples.run(page, example)
