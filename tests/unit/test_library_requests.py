"""`import toolwire`: plain bodies, and requests with the way back for their replies."""

import itertools
import json
from typing import Any

import pytest

from tests.support.backend_writers import PLAIN
from tests.support.chunks import in_any_chunking
from tests.support.routes import question
from tests.support.scripts import NAMES, Calls, Declared, Name, Says, Script, Thinks
from tests.unit.test_library_streams import stream
from toolwire import (
    BadRequest,
    CallStarted,
    Note,
    SettingsError,
    TurnFailed,
    WrongDialect,
    collect,
    convert_request,
    decode_body,
    decode_stream,
    encode_body,
    encode_error,
    translate,
    translate_body,
)

PAIRS = [*itertools.product(NAMES, NAMES)]
A = Calls("call_a", "look", '{"path":"a b"}')
TURN = Script((Thinks("Hm.", "SEAL"), Says("So."), A))
LONG = "a_tool_with_a_name_that_is_much_longer_than_the_sixty_four_characters_of_openai"
DOTTED = "files.look"


# Bodies


@pytest.mark.parametrize("kind", NAMES)
def test_a_plain_answer_is_the_same_turn_as_its_stream(kind: Name):
    plain, streamed = decode_body(kind, PLAIN[kind](TURN)), collect(decode_stream(kind, [stream(TURN, kind)]))
    assert (plain.text, plain.calls, plain.reason, plain.usage) == (
        streamed.text,
        streamed.calls,
        streamed.reason,
        streamed.usage,
    )
    assert decode_body(kind, json.loads(PLAIN[kind](TURN))) == plain
    assert decode_body(kind, PLAIN[kind](TURN).decode()) == plain


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_plain_answer_is_translated(source: Name, target: Name):
    turn = decode_body(source, PLAIN[source](TURN))
    for body in (translate_body(source, target, PLAIN[source](TURN)), encode_body(target, turn)):
        again = decode_body(target, body)
        assert (again.text, again.reason, again.usage) == (turn.text, turn.reason, turn.usage)
        # A signature on a call belongs to the server that made it.
        assert [(call.id, call.name, call.arguments) for call in again.calls] == [
            (call.id, call.name, call.arguments) for call in turn.calls
        ]


@pytest.mark.parametrize("dialect", NAMES)
def test_a_body_that_is_no_answer_is_a_failed_turn(dialect: Name):
    for body in (b"", b"<html>", b"[]", b'{"error":{"message":"No."}}'):
        turn = decode_body(dialect, body)
        assert turn.failure is not None
        assert "error" in json.loads(encode_body("messages", turn))
    assert turn.failure.message == "No."
    assert json.loads(encode_error(dialect, turn.failure))["error"]["message"] == "No."


@pytest.mark.parametrize(("kind", "said"), [pair for pair in PAIRS if pair[0] != pair[1]])
def test_a_body_of_another_dialect_is_named(kind: Name, said: Name):
    with pytest.raises(WrongDialect):
        decode_body(said, PLAIN[kind](TURN))


# Requests


def asked(source: Name, tools: tuple[Declared, ...], **fields: Any) -> dict[str, Any]:
    return question(source, "mine", tools, stream=True, **fields)


def read_model_names(body: bytes) -> list[str]:
    """The names of the tools that a body declares, in any dialect."""
    tools = json.loads(body)["tools"]
    tools = [each for tool in tools for each in tool.get("functionDeclarations", [tool])]
    return [tool.get("name") or tool["function"]["name"] for tool in tools]


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("name", [LONG, DOTTED])
def test_a_name_that_the_server_does_not_take_is_lowered_and_restored(source: Name, target: Name, name: str):
    converted = convert_request(source, target, asked(source, (Declared(name),)))
    [there] = read_model_names(converted.body)
    assert len(there) <= 128
    assert converted.names == ({} if there == name else {there: name})
    reply = Script((Says("So."), Calls("call_a", there, '{"path":"x"}')))
    data = stream(reply, target)
    turn = in_any_chunking(data, lambda chunks: collect(decode_stream(target, chunks, answers=converted, seed="S")))
    assert [(call.name, call.arguments) for call in turn.calls] == [(name, '{"path":"x"}')]
    back = collect(decode_stream(source, converted.translate([data])))
    assert [(call.name, call.arguments) for call in back.calls] == [(name, '{"path":"x"}')]
    plain = decode_body(source, converted.translate_body(PLAIN[target](reply)))
    assert [call.name for call in plain.calls] == [name]
    assert [call.name for call in converted.decode_body(PLAIN[target](reply)).calls] == [name]


@pytest.mark.parametrize("target", NAMES)
def test_kinds_and_namespaces_are_restored(target: Name):
    tools = (Declared("patch", "custom"), Declared("look", namespace="fs"))
    converted = convert_request("responses", target, asked("responses", tools))
    calls = (Calls("call_p", "patch", "*** ü\n", "custom"), Calls("call_l", "look", "{}", namespace="fs"))
    decoder = converted.decoder()
    events = [*decoder.feed(stream(Script(calls), target)), *decoder.end()]
    assert [(event.name, event.kind, event.namespace) for event in events if isinstance(event, CallStarted)] == [
        ("patch", "custom", ""),
        ("look", "function", "fs"),
    ]
    assert [call.arguments for call in collect(events).calls] == ["*** ü\n", "{}"]


def test_ids_that_the_server_does_not_take_are_told():
    history = [
        {"role": "user", "content": "Go."},
        {"type": "function_call", "call_id": "call.with:signs", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call.with:signs", "output": "x"},
    ]
    converted = convert_request("responses", "messages", {"model": "m", "input": history})
    [(there, original)] = converted.ids.items()
    assert original == "call.with:signs"
    assert converted.body.count(there.encode()) == 2
    assert convert_request("responses", "messages", {"model": "m", "input": history}).ids == converted.ids


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_converted_request_says_where_it_goes(source: Name, target: Name):
    converted = convert_request(source, target, asked(source, ()), model="theirs")
    assert (converted.source, converted.target, converted.model, converted.stream) == (source, target, "mine", True)
    paths: dict[Name, str] = {
        "chat": "/chat/completions",
        "responses": "/responses",
        "messages": "/messages",
        "gemini": "/models/theirs:streamGenerateContent?alt=sse",
    }
    assert converted.path == paths[target]
    assert target == "gemini" or json.loads(converted.body)["model"] == "theirs"
    assert not {name.lower() for name in converted.headers} & {"authorization", "x-api-key"}
    written = b"".join(converted.translator().feed(chunk) for chunk in [stream(TURN, target)])
    assert b'"mine"' in written
    assert b"theirs" not in written


def test_what_is_lost_is_noted_in_the_request_and_with_its_reply():
    converted = convert_request("chat", "messages", asked("chat", (), logit_bias={"1": 2}))
    assert converted.notes == (Note("field_dropped", "logit_bias"),)
    assert collect(decode_stream("messages", [stream(TURN, "messages")], answers=converted)).notes == converted.notes
    assert b'"field_dropped"' in b"".join(converted.translate([stream(TURN, "messages")]))


def test_the_choice_of_tools_is_enforced_on_the_reply():
    converted = convert_request("chat", "responses", asked("chat", (Declared("look"),), tool_choice="none"))
    turn = collect(decode_stream("responses", [stream(TURN, "responses")], answers=converted))
    assert turn.calls == ()
    assert Note("call_not_allowed", "look") in turn.notes


def test_policies_of_a_request_hold_for_its_reply_unless_that_says_otherwise():
    converted = convert_request("chat", "messages", asked("chat", (Declared("look"),)), max_calls=1)
    data = stream(Script((A, Calls("call_b", "look", "{}"))), "messages")
    assert len(collect(decode_stream("messages", [data], answers=converted)).calls) == 1
    assert len(collect(decode_stream("messages", [data], answers=converted, max_calls=0)).calls) == 2


def test_arguments_are_repaired_by_the_schemas_of_the_request():
    tools = (Declared("look"),)
    converted = convert_request("chat", "messages", asked("chat", tools), arguments="repair")
    data = stream(Script((Calls("call_a", "look", "{'path': 'x'}"),)), "chat")
    converted = convert_request("messages", "chat", asked("messages", tools), arguments="repair")
    [call] = collect(decode_stream("chat", [data], answers=converted)).calls
    assert json.loads(call.arguments) == {"path": "x"}


@pytest.mark.parametrize("source", NAMES)
def test_a_wrong_body_names_its_field(source: Name):
    with pytest.raises(BadRequest) as caught:
        convert_request(source, "chat", {"model": "m", "stream": 7})
    assert caught.value.param == "stream"
    with pytest.raises(BadRequest, match="not valid JSON"):
        convert_request(source, "chat", b"{")


def test_what_is_not_in_the_body_cannot_be_converted():
    for field, value in (("previous_response_id", "resp_1"), ("conversation", "conv_1")):
        with pytest.raises(BadRequest, match="The earlier items are not in this body") as caught:
            convert_request("responses", "chat", {"model": "m", "input": "x", field: value})
        assert caught.value.param == field


def test_misuse_is_said_at_once():
    converted = convert_request("chat", "messages", asked("chat", ()))
    with pytest.raises(ValueError, match="the request was converted for 'messages', but this reply is 'chat'"):
        decode_stream("chat", [], answers=converted)
    with pytest.raises(ValueError, match="tools: it is set by the request that is answered"):
        translate("messages", "chat", [], answers=converted, tools=["look"])
    with pytest.raises(SettingsError, match=r"profile\.max_token: unknown key; did you mean max_tokens\?"):
        convert_request("chat", "messages", asked("chat", ()), profile={"max_token": 1})
    with pytest.raises(ValueError, match="history: "):
        convert_request("chat", "messages", asked("chat", ()), history="loose")  # pyright: ignore[reportArgumentType]


def test_a_profile_says_what_the_server_takes():
    body = asked("responses", (), max_output_tokens=5)
    assert json.loads(convert_request("responses", "chat", body).body)["max_tokens"] == 5
    other = convert_request("responses", "chat", body, profile={"max_tokens": "max_completion_tokens"})
    assert json.loads(other.body)["max_completion_tokens"] == 5


def test_an_error_status_is_a_failure_that_every_dialect_can_write():
    converted = convert_request("messages", "chat", asked("messages", ()))
    failure = converted.failure(
        429, b'{"error":{"message":"Slow down.","code":"rate_limit_exceeded"}}', {"retry-after": "3"}
    )
    assert (failure.status, failure.message, failure.retry_after) == (429, "Slow down.", "3")
    assert json.loads(encode_error("messages", failure))["error"]["type"] == "rate_limit_error"


def test_an_error_status_is_read_with_headers_in_any_case_and_a_body_of_any_kind():
    converted = convert_request("chat", "responses", asked("chat", ()))
    error = {"error": {"message": "Slow down."}}
    for body in (error, json.dumps(error), json.dumps(error).encode()):
        failure = converted.failure(429, body, {"Retry-After": "7"})
        assert (failure.message, failure.retry_after) == ("Slow down.", "7")


def test_an_error_can_be_written_as_it_is():
    error = BadRequest("No.", "input")
    assert encode_error("chat", error) == encode_error("chat", error.failure)


def test_half_a_character_in_a_body_that_was_read_is_replaced():
    answer = json.loads(PLAIN["chat"](Script((Says("a @"),))).replace(b"@", rb"\ud83d"))
    turn = decode_body("chat", answer)
    assert (turn.text, [note.code for note in turn.notes]) == ("a \ufffd", ["letter_replaced"])
    assert decode_body("chat", json.dumps(answer, ensure_ascii=False)).text == "a \ufffd"


def test_further_choices_that_are_lost_are_noted():
    made = [{"index": index, "message": {"content": "AB"[index]}, "finish_reason": "stop"} for index in (0, 1)]
    body = {"id": "x", "object": "chat.completion", "model": "m", "choices": made}
    lost = Note("item_dropped", "choices[1]")
    assert decode_body("chat", body).notes == (lost,)
    assert "item_dropped" not in str(translate_body("chat", "chat", body))
    chunks = [
        b"data: %b\n\n" % json.dumps({"id": "x", "choices": [{"index": index, "delta": {"content": "a"}}]}).encode()
        for index in (0, 1, 1)
    ]
    end = b'data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    assert collect(decode_stream("chat", [*chunks, end])).notes == (lost,)
    assert b'"item_dropped","subject":"choices[1]"' in b"".join(translate("chat", "messages", [*chunks, end]))
    assert b"item_dropped" not in b"".join(translate("chat", "chat", [*chunks, end]))


def test_at_most_one_call_comes_back_also_where_no_tools_are_declared():
    converted = convert_request("chat", "messages", asked("chat", ()), parallel=False)
    reply = stream(Script((A, Calls("call_b", "look", "{}"))), "messages")
    turn = collect(decode_stream("messages", [reply], answers=converted))
    assert ([call.id for call in turn.calls], [note.code for note in turn.notes]) == (["call_a"], ["call_capped"])
    assert "parallel" not in json.dumps(json.loads(converted.body))


def test_several_choices_stay_within_their_dialect():
    with pytest.raises(BadRequest, match="n must be 1"):
        convert_request("chat", "messages", asked("chat", (), n=2))
    assert json.loads(convert_request("chat", "chat", asked("chat", (), n=2)).body)["n"] == 2


def test_a_request_can_be_answered_more_than_once():
    converted = convert_request("chat", "messages", asked("chat", (Declared("look"),)))
    data = stream(TURN, "messages")
    first, second = (b"".join(converted.translate([data], id="x", created=1)) for _ in range(2))
    assert first == second
    assert isinstance([*decode_stream("messages", [], answers=converted)][-1], TurnFailed)
