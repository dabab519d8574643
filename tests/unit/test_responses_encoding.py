"""The Responses dialect, writing: any turn becomes a lawful stream, and the same turn collected its last word."""

import json
from typing import Any

import pytest

from tests.museum.clients import Json, Received, received, received_messages
from tests.unit.walks import FAILED
from toolwire.core.collect import collect
from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    MessageEnded,
    RawFrame,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.notes import TurnStats
from toolwire.core.order import TurnOrder
from toolwire.core.request import Request
from toolwire.core.stage import Pipeline
from toolwire.dialects import responses


def ask(*, store: bool = True, **fields: Any) -> Request:
    body = json.dumps({"model": "m", "input": "Hi", "stream": True, **fields}).encode()
    return responses.read_request(body).decode(store=store)


ASKED = ask(tools=[{"type": "function", "name": "f"}])


def written(events: list[Event], request: Request = ASKED, **options: Any) -> bytes:
    """The stream of these events, with their order checked. Event by event and in one piece it is the same."""
    one, other = (responses.StreamEncoder(request, "resp_7", 7, TurnStats(), lambda: 9, **options) for _ in range(2))
    order = TurnOrder()
    data = b"".join(piece for event in events for each in order.feed(event) for piece in one.feed(each))
    order.end()
    line = Pipeline(other)
    assert b"".join([*line.feed_all(events), *line.end()]) == data
    return data


def streamed(events: list[Event], request: Request = ASKED) -> Received:
    return received(written(events, request))


def finished(events: list[Event], request: Request = ASKED) -> Json:
    """The same turn, collected."""
    return json.loads(responses.encode_turn(collect(events), request, "resp_7", 7))


def said(*events: Event, end: Event | None = None) -> list[Event]:
    return [TurnStarted(), *events, end or TurnEnded()]


def called(id: str, *pieces: str, complete: bool = True, **fields: Any) -> list[Event]:
    return [CallStarted(id, "f", **fields), *(CallArgs(id, piece) for piece in pieces), CallEnded(id, complete)]


# To the byte

_BEFORE = (
    '"id":"resp_7","object":"response","created_at":7,"status":"%s","completed_at":%s,"error":null,'
    '"incomplete_details":null,"model":"m","output":[%s],"previous_response_id":null,"instructions":null,'
    '"tools":[{"description":null,"parameters":null,"strict":null,"type":"function","name":"f"}],'
    '"tool_choice":"auto","truncation":"disabled","parallel_tool_calls":true,"text":{"format":{"type":"text"}},'
    '"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"top_logprobs":0,"temperature":1.0,'
    '"reasoning":{"effort":null,"summary":null},"max_output_tokens":null,"max_tool_calls":null,"store":true,'
    '"background":false,"service_tier":"default","metadata":{},"safety_identifier":null,"prompt_cache_key":null,'
    '"usage":%s'
)
_BEGUN = "{" + _BEFORE % ("in_progress", "null", "", "null") + "}"
_PART = '{"type":"output_text","text":"%s","annotations":[],"logprobs":[]}'
_MESSAGE = '{"id":"msg_701","type":"message","role":"assistant","content":[%s],"status":"%s"}'
_CALL = '{"id":"fc_702","type":"function_call","call_id":"a","name":"f","arguments":"%s","status":"%s"}'
_ITEMS = _MESSAGE % (_PART % "Hi é", "completed"), _CALL % (r"{\"x\":1}", "completed")
_USAGE = (
    '{"input_tokens":10,"input_tokens_details":{"cached_tokens":4,"cache_write_tokens":1},'
    '"output_tokens":5,"output_tokens_details":{"reasoning_tokens":3},"total_tokens":15}'
)
_WAITING = r'{"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}'
_REQUIRED = '{"type":"submit_tool_outputs","submit_tool_outputs":{"tool_calls":[' + _WAITING + "]}}"
_DONE = "{" + _BEFORE % ("completed", "9", ",".join(_ITEMS), _USAGE) + ',"required_action":' + _REQUIRED + "}"
_IN_MESSAGE = '"item_id":"msg_701","output_index":0,"content_index":0'
_IN_CALL = '"item_id":"fc_702","output_index":1'

TRANSCRIPT: list[tuple[str, str]] = [
    ("response.created", f'"response":{_BEGUN}'),
    ("response.in_progress", f'"response":{_BEGUN}'),
    ("response.output_item.added", f'"output_index":0,"item":{_MESSAGE % ("", "in_progress")}'),
    ("response.content_part.added", f'{_IN_MESSAGE},"part":{_PART % ""}'),
    ("response.output_text.delta", f'{_IN_MESSAGE},"delta":"Hi ","logprobs":[]'),
    ("response.output_text.delta", f'{_IN_MESSAGE},"delta":"é","logprobs":[]'),
    ("response.output_text.done", f'"logprobs":[],{_IN_MESSAGE},"text":"Hi é"'),
    ("response.content_part.done", f'{_IN_MESSAGE},"part":{_PART % "Hi é"}'),
    ("response.output_item.done", f'"output_index":0,"item":{_ITEMS[0]}'),
    ("response.output_item.added", f'"output_index":1,"item":{_CALL % ("", "in_progress")}'),
    ("response.function_call_arguments.delta", rf'{_IN_CALL},"delta":"{{\"x\":"'),
    ("response.function_call_arguments.delta", f'{_IN_CALL},"delta":"1}}"'),
    ("response.function_call_arguments.done", rf'{_IN_CALL},"arguments":"{{\"x\":1}}","name":"f"'),
    ("response.output_item.done", f'"output_index":1,"item":{_ITEMS[1]}'),
    ("response.completed", f'"response":{_DONE}'),
]
_COMMENT = ': {"tool_call_count":0,"tool_call_truncated":false,"stop_after_tools_mode":"burst","notes":[]}\n'


def test_a_small_turn_is_these_bytes():
    events = said(
        TextDelta("Hi "), TextDelta("é"), *called("a", '{"x":', "1}"), Usage(10, 5, 4, 1, 3), end=TurnEnded("calls")
    )  # fmt: skip
    blocks = [
        f'event: {type}\ndata: {{"type":"{type}","sequence_number":{number},{rest}}}\n\n'
        for number, (type, rest) in enumerate(TRANSCRIPT)
    ]
    assert written(events).decode() == "".join(blocks) + _COMMENT + "data: [DONE]\n\n"
    plain = responses.encode_turn(collect(events), ASKED, "resp_7", 7)
    assert plain.decode() == _DONE.replace('"completed_at":9', '"completed_at":7')


# What the parts look like


def test_text_and_refusal_are_parts_of_one_message():
    [item] = streamed(said(TextDelta("a"), RefusalDelta("no"), TextDelta("b"))).response["output"]
    assert [part["type"] for part in item["content"]] == ["output_text", "refusal", "output_text"]
    named = said(TextDelta("a", "msg_1"), TextDelta("b", "msg_1", 1), TextDelta("c", "msg_2"), MessageEnded("msg_2"))
    output = streamed(named).response["output"]
    assert [(item["id"], [part["text"] for part in item["content"]]) for item in output] == [
        ("msg_1", ["a", "b"]),
        ("msg_2", ["c"]),
    ]


def test_reasoning_has_summaries_raw_text_and_its_seal():
    stream = streamed(
        said(
            ReasoningDelta("a", item="rs_1"),
            ReasoningDelta("b", part=1, item="rs_1"),
            ReasoningDelta("raw", "content", 0, "rs_1"),
            ReasoningEnded("rs_1", "signature"),
            ReasoningEnded("rs_2", "bare"),
        )
    )
    first, second = stream.response["output"]
    assert [part["text"] for part in first["summary"]] == ["a", "b"]
    assert first["content"] == [{"type": "reasoning_text", "text": "raw"}]
    assert (first["encrypted_content"], second["encrypted_content"]) == ("signature", "bare")
    assert "reasoning_text.delta" in stream.types
    assert "reasoning_summary_part.done" in stream.types


def test_ids_of_items_are_the_backends_where_they_can_be_and_unique_always():
    events = said(
        TextDelta("a", "msg_up"), *called("c1", "{}", item="fc_up"), *called("c2", "{}", item="fc_up"),
        *called("c3", "{}", item="c3"), TextDelta("b", "odd"), *called("c4", "raw", kind="custom", item="ctc_up"),
        end=TurnEnded("calls"),
    )  # fmt: skip
    ids = [item["id"] for item in streamed(events).response["output"]]
    assert ids == ["msg_up", "fc_up", "fc_703", "fc_704", "msg_705", "ctc_up"]


def test_a_cut_call_is_incomplete_and_nobody_waits_for_it():
    events = said(*called("a", "{}"), *called("b", '{"x":', complete=False), end=TurnEnded("length"))
    response = streamed(events).response
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert "required_action" not in response
    assert response["completed_at"] is None


@pytest.mark.parametrize(
    ("reason", "status", "details"),
    [
        ("stop", "completed", None),
        ("calls", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("filter", "incomplete", {"reason": "content_filter"}),
    ],
)
def test_every_reason_has_its_status(reason: Any, status: str, details: Json | None):
    response = streamed(said(TextDelta("x"), end=TurnEnded(reason))).response
    assert (response["status"], response["incomplete_details"]) == (status, details)


def test_calls_wait_only_where_their_outputs_can_be_submitted():
    turn = said(*called("a", "{}"))
    for extended in (False, True):
        stored, not_stored = (written(turn, ask(store=store), extended=extended) for store in (True, False))
        assert b'"required_action":' in stored
        assert b"required_action" not in not_stored
        assert received(not_stored).response["status"] == "completed"
    assert "required_action" not in finished(turn, ask(store=False))


def test_custom_calls_have_an_input_and_events_of_their_own():
    stream = streamed(said(*called("a", "*** ", "raw", kind="custom"), end=TurnEnded("calls")))
    [item] = stream.response["output"]
    assert (item["type"], item["input"]) == ("custom_tool_call", "*** raw")
    assert [event["delta"] for event in stream.of("custom_tool_call_input.delta")] == ["*** ", "raw"]
    waiting = stream.response["required_action"]["submit_tool_outputs"]["tool_calls"]
    assert waiting == [{"id": "a", "type": "custom", "custom": {"name": "f", "input": "*** raw"}}]


# Failures


def test_a_failure_leaves_what_is_open_open_and_says_incomplete():
    for begun in ([TextDelta("Half")], [ReasoningDelta("Hm")], called("a", '{"x":')[:2]):
        stream = streamed(said(*begun, end=FAILED))
        *_, error, last = stream.events
        assert (error["type"], last["type"]) == ("error", "response.failed")
        assert stream.of("output_item.done") == []
        [item] = stream.response["output"]
        assert item["status"] == "incomplete"
        assert last["response"]["error"] == {"code": "rate_limit_exceeded", "message": "slow down"}
        inner = {"message": "slow down", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}
        assert error["error"] == inner
        assert (error["message"], error["code"], error["param"]) == ("slow down", "rate_limit_exceeded", None)


def test_a_failure_before_the_turn_began_still_has_a_beginning():
    assert streamed([FAILED]).types == ["created", "in_progress", "error", "failed"]


def test_a_code_that_no_client_knows_is_a_server_error_in_the_response_only():
    stream = streamed(said(end=TurnFailed(Failure(502, "stream_cut", "gone", param="p"))))
    assert stream.response["error"]["code"] == "server_error"
    assert (stream.events[-2]["code"], stream.events[-2]["param"]) == ("stream_cut", "p")


def test_a_turn_that_was_given_up_keeps_what_there_was():
    encoder = responses.StreamEncoder(ASKED, "resp_7", 7, TurnStats())
    for event in said(*called("a", "{}"), TextDelta("Half"))[:-1]:
        encoder.feed(event)
    encoder.cancel()
    response = json.loads(bytes(encoder.response.encode()))
    assert response["status"] == "cancelled"
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert response["error"] is None


def test_a_response_may_wait_in_a_queue():
    encoder = responses.StreamEncoder(ASKED, "resp_7", 7, TurnStats())
    encoder.response.status = "queued"
    pieces = [*encoder.begin(), *(piece for event in said(TextDelta("x")) for piece in encoder.feed(event))]
    assert received(b"".join(pieces)).types[:3] == ["created", "queued", "in_progress"]


@pytest.mark.parametrize(
    ("status", "type"),
    [(400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"), (404, "invalid_request_error"),
     (429, "rate_limit_error"), (500, "server_error"), (504, "timeout_error")],
)  # fmt: skip
def test_an_error_has_the_type_of_its_status(status: int, type: str):
    error = json.loads(responses.encode_error(Failure(status, "", "m", param="p")))["error"]
    assert error == {"message": "m", "type": type, "param": "p", "code": None}
    assert json.loads(responses.encode_error(Failure(status, "c", "m", "own")))["error"]["type"] == "own"


# Signs of life


def test_silence_is_a_comment_and_from_a_minute_on_an_event():
    encoder = responses.StreamEncoder(ASKED, "resp_7", 7, TurnStats())
    steps = [
        encoder.keepalive(15.0), encoder.keepalive(60.0), encoder.feed(TurnStarted()), encoder.feed(TextDelta("a")),
        encoder.keepalive(59.0), encoder.keepalive(61.0), encoder.feed(TurnEnded()),
    ]  # fmt: skip
    stream = received(b"".join(piece for step in steps for piece in step))
    assert stream.comments[:2] == ("keepalive", "keepalive")
    assert stream.types.count("in_progress") == 2


def test_extended_streams_ping_and_sockets_repeat_that_they_work():
    extended = responses.StreamEncoder(ASKED, "resp_7", 7, TurnStats(), extended=True)
    pinged = b"".join(piece for step in (extended.keepalive(2.0), extended.feed(TurnEnded())) for piece in step)
    assert "ping" in received(pinged, extended=True).types
    socket = responses.StreamEncoder(ASKED, "resp_7", 7, TurnStats(), socket=True)
    messages = [*socket.keepalive(15.0), *socket.keepalive(15.0), *socket.feed(TurnEnded())]
    assert received_messages([message.decode() for message in messages]).types.count("in_progress") == 2


# What a response repeats of its request

SHOWN: list[tuple[Json, Json]] = [
    ({}, {"instructions": None, "tool_choice": "auto", "temperature": 1.0, "truncation": "disabled", "metadata": {}}),
    ({"instructions": "Be brief.", "temperature": 0.5}, {"instructions": "Be brief.", "temperature": 0.5}),
    ({"temperature": None, "metadata": None}, {"temperature": 1.0, "metadata": {}}),
    ({"reasoning": {"effort": "low"}}, {"reasoning": {"effort": "low", "summary": None}}),
    ({"text": {"verbosity": "low"}}, {"text": {"format": {"type": "text"}, "verbosity": "low"}}),
    ({"conversation": "conv_1"}, {"conversation": {"id": "conv_1"}}),
    ({"previous_response_id": "resp_6"}, {"previous_response_id": "resp_6"}),
    ({"max_tool_calls": 3, "top_logprobs": 2}, {"max_tool_calls": 3, "top_logprobs": 2}),
    (
        {"tools": [{"type": "function", "name": "g"}], "tool_choice": {"type": "function", "name": "g"}},
        {"tool_choice": {"type": "function", "name": "g"}},
    ),
    (
        {"tools": [{"type": "function", "name": "g"}], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "g"}]}},
        {"tool_choice": {"mode": "auto", "type": "allowed_tools", "tools": [{"type": "function", "name": "g"}]}},
    ),
    ({"tools": [{"type": "web_search"}]}, {"tools": [{"type": "web_search"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "shown"), SHOWN, ids=[json.dumps(asked)[:50] for asked, _ in SHOWN])
def test_a_response_shows_what_was_asked_with_defaults_filled_in(asked: Json, shown: Json):
    response = streamed(said(TextDelta("x")), ask(**asked)).response
    assert {name: response[name] for name in shown} == shown
    assert not {"input", "stream", "include"} & set(response)


def test_a_schema_for_the_answer_is_shown_with_explicit_defaults():
    # Not held against the schemas: the Open Responses document allows nothing but null where the schema stands.
    format = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    response = finished(said(TextDelta("x")), ask(text={"format": format}))
    shown = response["text"]["format"]
    assert {name: shown[name] for name in format} == format
    assert shown["strict"] is False
    assert not shown["description"]


# Messages


def test_messages_of_a_turn_are_items_of_their_own():
    events = said(TextDelta("Let me look."), MessageEnded(""), TextDelta("It is 42."))
    told = streamed(events)
    assert [item["content"][0]["text"] for item in told.output] == ["Let me look.", "It is 42."]
    assert finished(events)["output"] == told.output


@pytest.mark.parametrize("reason", ["length", "filter"])
def test_a_message_that_was_cut_is_incomplete(reason: Any):
    for events, statuses in (
        ([TextDelta("a")], ["incomplete"]),
        ([TextDelta("a"), MessageEnded(""), TextDelta("b")], ["completed", "incomplete"]),
        ([TextDelta("a"), *called("c", "{", complete=False)], ["completed", "incomplete"]),
        ([*called("c", "{}"), RefusalDelta("No")], ["completed", "incomplete"]),
    ):
        made = said(*events, end=TurnEnded(reason))
        assert [item["status"] for item in streamed(made).output] == statuses
        assert [item["status"] for item in finished(made)["output"]] == statuses
    assert [item["status"] for item in streamed(said(TextDelta("a"))).output] == ["completed"]


def test_a_text_that_another_item_follows_was_not_cut():
    encoder = responses.StreamEncoder(ASKED, "resp_7", 7, TurnStats())
    added = (
        b'{"type":"response.output_item.added","item":{"type":"web_search_call","id":"ws_1","status":"in_progress"}}'
    )
    follows = RawFrame("response.output_item.added", "ws_1", added)
    for event in (TurnStarted(), TextDelta("Hi."), follows, TurnEnded("length")):
        encoder.feed(event)
    assert [json.loads(bytes(item))["status"] for item in encoder.output] == ["completed", "failed"]
    assert encoder.response.status == "incomplete"
