"""openai-python and the Responses endpoint over a WebSocket: `responses.connect()`."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.resources.responses.responses import ResponsesConnection
from openai.types.responses import Response

from tests.sdk.recording_client import GET_TIME, GET_WEATHER, RUN, SETTINGS, output_of
from tests.sdk.turns import ANSWER, QUESTION, RESULT, TURNS
from tests.support.checked import responses_faults
from tests.support.client_readers import event_faults
from tests.support.upstream import Upstream
from toolwire.check.turns.responses_items import CLOSINGS

# The SDK opens its sockets in a way that websockets 17 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:connect.* must be used as a context manager:DeprecationWarning")

TOOLS = [GET_WEATHER, GET_TIME, RUN]
STREAMS = [name for name, reply in TURNS.items() if reply.status == 200]


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, **SETTINGS) as client:
        yield client


@pytest.fixture
def socket(client: openai.OpenAI) -> Iterator[ResponsesConnection]:
    with client.responses.connect() as connection:
        yield connection


def messages(socket: ResponsesConnection, **fields: Any) -> list[dict[str, Any]]:
    """One turn as it came over the wire, up to its last message; every whole turn keeps the rules of the protocol."""
    socket.response.create(**{"input": QUESTION, **fields})
    seen: list[dict[str, Any]] = []
    while not seen or not is_last(seen[-1]):
        seen.append(json.loads(socket.recv_bytes()))
    if seen[-1]["type"] != "error":
        assert not responses_faults([(None, message) for message in seen], done=None)
        assert not event_faults(seen)
    return seen


def is_last(message: dict[str, Any]) -> bool:
    """An error without a number refuses a request; one with a number is an event, and `response.failed` follows."""
    return message["type"] in CLOSINGS or (message["type"] == "error" and "sequence_number" not in message)


def ask(socket: ResponsesConnection, **fields: Any) -> Response:
    """One turn, read as the SDK reads it."""
    last = messages(socket, **fields)[-1]
    assert last["type"] != "error", last
    event = socket.parse_event(json.dumps(last))
    assert event.type in ("response.completed", "response.incomplete", "response.failed")
    return event.response


def refusal(socket: ResponsesConnection, **fields: Any) -> Any:
    """The only message of a turn that was refused, as the SDK reads it."""
    [message] = messages(socket, **fields)
    assert message["type"] == "error"
    return socket.parse_event(json.dumps(message))


def test_the_events_of_a_turn_arrive_one_by_one(client: openai.OpenAI):
    seen: list[Any] = []
    with client.responses.connect() as socket:
        socket.response.create(model="up/client-text", input=QUESTION)
        for event in socket:
            seen.append(event)
            if event.type in (*CLOSINGS, "error"):
                break
    assert [event.delta for event in seen if event.type == "response.output_text.delta"] == ["Hello", ", world."]
    assert seen[-1].response.output_text == "Hello, world."


def test_handlers_hear_their_events(client: openai.OpenAI):
    said: list[str] = []
    with client.responses.connect() as socket:
        socket.on("response.output_text.delta", lambda event: said.append(event.delta))
        for ending in (*CLOSINGS, "error"):
            socket.on(ending, lambda event: socket.close())
        socket.response.create(model="up/client-text", input=QUESTION)
        socket.dispatch_events()
    assert said == ["Hello", ", world."]


@pytest.mark.parametrize("turn", STREAMS)
def test_every_turn_keeps_the_rules(socket: ResponsesConnection, turn: str):
    last = messages(socket, model=f"up/client-{turn}", tools=TOOLS)[-1]
    expected = "failed" if turn.startswith("error") else "incomplete" if turn in ("length", "filter") else "completed"
    assert last["response"]["status"] == expected


@pytest.mark.parametrize("turn", [name for name in STREAMS if not name.startswith("error")])
def test_a_turn_is_the_same_as_over_http(client: openai.OpenAI, socket: ResponsesConnection, turn: str):
    fields = {"model": f"up/client-{turn}", "input": QUESTION, "tools": TOOLS}

    def seen(response: Response) -> dict[str, Any]:
        fields = response.to_dict()
        own = fields.pop("id").removeprefix("resp_")
        left_out = ("created_at", "completed_at", "toolwire")
        shown = {name: value for name, value in fields.items() if name not in left_out}
        return json.loads(json.dumps(shown).replace(own, "own"))

    assert seen(ask(socket, **fields)) == seen(client.responses.create(**fields))


def test_a_megabyte_of_arguments_arrives_whole(socket: ResponsesConnection):
    [call] = ask(socket, model="demo-huge", tools=[GET_WEATHER]).output
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"content": "0123456789abcdef" * 65536}


@pytest.mark.parametrize("store", [True, False])
def test_a_tool_loop_runs_on_one_connection(socket: ResponsesConnection, store: bool):
    first = ask(socket, model="demo", tools=[GET_WEATHER], store=store)
    call = first.output[-1]
    assert call.type == "function_call"
    given = {"previous_response_id": first.id, "input": [output_of(call.call_id, RESULT)]}
    second = ask(socket, model="demo", tools=[GET_WEATHER], store=store, **given)
    assert (second.output_text, second.previous_response_id) == (ANSWER, first.id)


@pytest.mark.parametrize("store", [True, False])
def test_every_parallel_call_gets_its_result(socket: ResponsesConnection, store: bool):
    fields = {"model": "demo", "tools": [GET_WEATHER], "store": store}
    first = ask(socket, **fields, input="What is the weather in Paris and Rome?")
    calls = [item for item in first.output if item.type == "function_call"]
    results = [output_of(call.call_id, f"Sun in {json.loads(call.arguments)['city']}.") for call in calls]
    second = ask(socket, **fields, previous_response_id=first.id, input=results)
    assert second.output_text == "According to get_weather: Sun in Paris. Sun in Rome."


def test_a_chain_that_nobody_stored_is_sent_whole(socket: ResponsesConnection, upstream: Upstream):
    previous = None
    for words in ("One.", "Two.", "Three."):
        fields = {"previous_response_id": previous} if previous else {}
        previous = ask(socket, model="up/client-text", input=words, store=False, **fields).id
    sent = json.dumps(upstream.of("client-text")[-1].body["input"])
    assert [sent.count(words) for words in ("One.", "Two.", "Three.", "Hello, world.")] == [1, 1, 1, 2]


def test_a_chain_that_nobody_stored_ends_with_its_connection(client: openai.OpenAI, socket: ResponsesConnection):
    response = ask(socket, model="up/client-text", store=False)
    with client.responses.connect() as another:
        refused = refusal(another, model="up/client-text", previous_response_id=response.id)
    assert refused.error.code == "previous_response_not_found"


def test_a_stored_response_can_be_continued_on_another_connection(client: openai.OpenAI, socket: ResponsesConnection):
    first = ask(socket, model="demo", tools=[GET_WEATHER])
    given = {"previous_response_id": first.id, "input": [output_of(first.output[-1].call_id, RESULT)]}
    assert client.responses.retrieve(first.id).output == first.output
    with client.responses.connect() as another:
        assert ask(another, model="demo", **given).output_text == ANSWER
    assert client.responses.create(model="demo", **given).output_text == ANSWER


def test_a_request_that_is_only_to_be_remembered_is_continued(socket: ResponsesConnection, upstream: Upstream):
    warm = ask(socket, model="up/client-text", input="Remember me.", generate=False, store=False)
    assert (warm.status, warm.output) == ("completed", [])
    ask(socket, model="up/client-text", input="Go.", previous_response_id=warm.id, store=False)
    sent = json.dumps(upstream.of("client-text")[-1].body["input"])
    assert sent.index("Remember me.") < sent.index("Go.")


def test_requests_wait_for_their_turn(socket: ResponsesConnection):
    for words in ("One", "Two", "Three"):
        socket.response.create(model="demo", input=words)
    seen = []
    while sum(is_last(message) for message in seen) < 3:
        seen.append(json.loads(socket.recv_bytes()))
    ends = [index for index, message in enumerate(seen) if is_last(message)]
    turns = [seen[: ends[0] + 1], seen[ends[0] + 1 : ends[1] + 1], seen[ends[1] + 1 :]]
    assert [responses_faults([(None, message) for message in turn], done=None) for turn in turns] == [[], [], []]
    said = [turn[-1]["response"]["output"][0]["content"][0]["text"] for turn in turns]
    assert [words.splitlines()[0].rpartition(" ")[2] for words in said] == ["One", "Two", "Three"]


def test_events_name_the_lane_they_belong_to(socket: ResponsesConnection):
    assert {message.get("stream_id") for message in messages(socket, model="up/client-text", stream_id="a")} == {"a"}
    [refused] = messages(socket, model="nobody", stream_id="b")
    assert refused["stream_id"] == "b"
    assert not any("stream_id" in message for message in messages(socket, model="up/client-text"))


def test_a_new_lane_continues_what_another_began(socket: ResponsesConnection, upstream: Upstream):
    first = ask(socket, model="up/client-text", input="One.", stream_id="a", store=False)
    ask(socket, model="up/client-text", input="Two.", stream_id="b", store=False, previous_response_id=first.id)
    assert "One." in json.dumps(upstream.of("client-text")[-1].body["input"])


def test_every_lane_keeps_its_own_latest_response(socket: ResponsesConnection, upstream: Upstream):
    fields = {"model": "up/client-text", "store": False}
    latest = {lane: ask(socket, **fields, input=f"This is {lane}.", stream_id=lane).id for lane in "ab"}
    for lane, other in ("ab", "ba"):
        ask(socket, **fields, input="Go on.", stream_id=lane, previous_response_id=latest[lane])
        sent = json.dumps(upstream.of("client-text")[-1].body["input"])
        assert (f"This is {lane}." in sent, f"This is {other}." in sent) == (True, False)


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"model": "nobody"}, 404, "model", "model_not_found"),
        ({"previous_response_id": "resp_nobody"}, 404, "previous_response_id", "previous_response_not_found"),
        ({"background": True}, 400, "background", "unsupported_parameter"),
        ({"stream_options": {"include_obfuscation": False}}, 400, "stream_options", "unsupported_parameter"),
        ({"temperature": "hot"}, 400, "temperature", "invalid_type"),
        ({"model": "up/client-unauthorized"}, 401, None, None),
        ({"model": "demo-rate-limit"}, 429, None, "rate_limit_exceeded"),
    ],
)
def test_a_refused_request_leaves_the_connection_open(
    socket: ResponsesConnection, fields: dict[str, Any], status: int, param: str | None, code: str | None
):
    refused = refusal(socket, **{"model": "demo", **fields})
    assert (refused.status, refused.error.param, refused.error.code) == (status, param, code)
    assert ask(socket, model="up/client-text").output_text == "Hello, world."


def test_a_failure_in_mid_turn_is_told_in_its_events(socket: ResponsesConnection):
    *_, error, last = messages(socket, model="up/client-error-middle")
    assert (error["type"], error["message"]) == ("error", "It broke.")
    assert (last["response"]["status"], last["response"]["error"]["message"]) == ("failed", "It broke.")
    assert ask(socket, model="up/client-text").output_text == "Hello, world."


def test_a_continuation_that_failed_cannot_be_tried_again(socket: ResponsesConnection):
    first = ask(socket, model="demo", tools=[GET_WEATHER], store=False)
    given = {"model": "demo", "previous_response_id": first.id, "tools": [GET_WEATHER], "store": False}
    assert refusal(socket, **given, input=[output_of("c9", RESULT)]).status == 400
    refused = refusal(socket, **given, input=[output_of(first.output[-1].call_id, RESULT)])
    assert refused.error.code == "previous_response_not_found"


def test_the_asynchronous_client_runs_a_whole_tool_loop(base_url: str):
    async def loop() -> str:
        async with openai.AsyncOpenAI(base_url=base_url, **SETTINGS) as client, client.responses.connect() as socket:

            async def turn(**fields: Any) -> Response:
                await socket.response.create(model="demo", tools=[GET_WEATHER], store=False, **fields)
                async for event in socket:
                    assert event.type != "error", event
                    if event.type in CLOSINGS:
                        return event.response
                raise AssertionError("the connection ended first")

            first = await turn(input=QUESTION)
            given = [output_of(first.output[-1].call_id, RESULT)]
            return (await turn(input=given, previous_response_id=first.id)).output_text

    assert asyncio.run(loop()) == ANSWER
