"""The responses backend: what is asked, and what is made of the answer."""

import json

import msgspec
import pytest

from tests.support.chunks import in_any_chunking
from tests.support.frames import call, call_item, completed, created, rs, sse, stream, text
from toolwire.backends.responses import CHATGPT, OPENAI, Conversation, Profile, profile_from
from toolwire.backends.responses.encode import encode_request
from toolwire.core.collect import Call, Reasoning, Text, collect
from toolwire.core.errors import MAX_CALLS, TooManyCalls
from toolwire.core.events import MessageEnded, Note, TurnFailed, Usage
from toolwire.core.order import TurnOrder
from toolwire.core.request import (
    AudioPart,
    CallEntry,
    Caller,
    FilePart,
    HostedTool,
    ImagePart,
    Message,
    OutputFormat,
    RefusalPart,
    Request,
    ResultEntry,
    Sampling,
    TextPart,
    Tool,
    ToolChoice,
)
from toolwire.core.sse import FrameReader
from toolwire.core.stage import Pipeline

SCHEMA = msgspec.Raw(b'{"type":"object"}')


def asked(profile: Profile = OPENAI, **fields):
    body, notes = encode_request(Request("m", fields.pop("entries", ()), **fields), profile, stream=False)
    return json.loads(body), [note.subject for note in notes]


def turn(data: bytes, profile: Profile = OPENAI):
    """The turn a stream makes: legal, and the same in any chunking."""

    def run(pieces: list[bytes]):
        line = Pipeline(FrameReader(), Conversation(Request("m", ()), "S", profile), TurnOrder())
        return collect([event for piece in pieces for event in line.feed(piece)] + list(line.end()))

    return in_any_chunking(data, run)


def plain(**response):
    return collect(list(Conversation(Request("m", ()), "S").feed_plain(json.dumps(response).encode())))


# Asking


def test_nothing_is_stored_and_nothing_is_asked_that_was_not():
    assert asked()[0] == {"model": "m", "input": [], "store": False, "include": ["reasoning.encrypted_content"]}


def test_a_history_becomes_items():
    entries = (
        Message("system", (TextPart("S"),)),
        Message("user", (TextPart("U"), ImagePart("https://x/i.png"), FilePart(id="f1"), AudioPart("AA", "wav"))),
        Message("assistant", (TextPart("A"), RefusalPart("R"))),
        CallEntry("c1", "f", '{"a":1}'),
        CallEntry("c2", "f", " "),
        CallEntry("c3", "patch", "raw", "custom"),
        ResultEntry("c1", (TextPart("one"), TextPart("two"))),
        ResultEntry("c2", (TextPart("see"), ImagePart("data:image/png;base64,AA", "low"))),
        ResultEntry("c3", (), "custom"),
    )
    assert asked(entries=entries)[0]["input"] == [
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "S"}]},
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "U"},
            {"type": "input_image", "image_url": "https://x/i.png", "detail": "auto"},
            {"type": "input_file", "file_id": "f1"},
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
        ]},
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "A"}, {"type": "refusal", "refusal": "R"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c3", "name": "patch", "input": "raw"},
        {"type": "function_call_output", "call_id": "c1", "output": "one\ntwo"},
        {"type": "function_call_output", "call_id": "c2", "output": [
            {"type": "input_text", "text": "see"},
            {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"}]},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": ""},
    ]  # fmt: skip


def test_an_omitted_strict_is_said_to_be_false():
    tools = (
        Tool("a", "A", SCHEMA),
        Tool("b", strict=True),
        Tool("p", kind="custom", format=msgspec.Raw(b'{"type":"text"}')),
    )
    hosted = (HostedTool("web_search", msgspec.Raw(b'{"type":"web_search"}')),)
    assert asked(tools=tools, hosted_tools=hosted)[0]["tools"] == [
        {"type": "function", "name": "a", "description": "A", "parameters": {"type": "object"}, "strict": False},
        {
            "type": "function",
            "name": "b",
            "description": None,
            "parameters": {"type": "object", "properties": {}},
            "strict": True,
        },
        {"type": "custom", "name": "p", "format": {"type": "text"}},
        {"type": "web_search"},
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (ToolChoice("required"), "required"),
        (ToolChoice("required", "f"), {"type": "function", "name": "f"}),
        (ToolChoice("required", "p", "custom"), {"type": "custom", "name": "p"}),
        (
            ToolChoice(allowed=("f", "p"), limited=True),
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "p"}],
            },
        ),
        (ToolChoice(hosted=msgspec.Raw(b'{"type":"web_search"}')), {"type": "web_search"}),
    ],
)
def test_a_tool_choice_keeps_its_meaning(choice, expected):
    tools = (Tool("f"), Tool("p", kind="custom"), Tool("other"))
    assert asked(tools=tools, tool_choice=choice)[0]["tool_choice"] == expected


def test_parameters_are_carried_and_the_rest_is_noted():
    body, dropped = asked(
        parallel_calls=False,
        output_format=OutputFormat(SCHEMA, "answer", strict=True, description="D"),
        sampling=Sampling(0.5, 0.9, 100, ("END",), "high", "low", "flex"),
        caller=Caller("u", "s", "k", msgspec.Raw(b'{"a":"b"}')),
        extra={"seed": msgspec.Raw(b"7")},
    )
    assert dropped == ["seed", "stop"]
    assert body == {
        "model": "m", "input": [], "store": False, "parallel_tool_calls": False, "temperature": 0.5, "top_p": 0.9,
        "max_output_tokens": 100, "reasoning": {"effort": "high"}, "service_tier": "flex", "user": "u",
        "safety_identifier": "s", "prompt_cache_key": "k", "metadata": {"a": "b"},
        "text": {"verbosity": "low", "format": {
            "type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True, "description": "D"}},
        "include": ["reasoning.encrypted_content"],
    }  # fmt: skip


def test_any_json_object_can_be_asked_for():
    assert asked(output_format=OutputFormat())[0]["text"] == {"format": {"type": "json_object"}}


def test_the_chatgpt_backend_gets_instructions_and_no_refused_field():
    entries = (Message("system", (TextPart("A"),)), Message("developer", (TextPart("B"),)), Message("user", (TextPart("U"),)),
               Message("system", (TextPart("C"),)))  # fmt: skip
    body, dropped = asked(CHATGPT, entries=entries, sampling=Sampling(temperature=1, max_tokens=5))
    assert body["instructions"] == "A\n\nB"
    assert [item["role"] for item in body["input"]] == ["user", "developer"]
    assert dropped == ["max_output_tokens", "temperature"]
    assert body["include"] == ["reasoning.encrypted_content"]
    assert asked(CHATGPT)[0]["instructions"]


def test_a_server_that_always_streams_is_asked_for_a_stream():
    post = Conversation(Request("m", ()), "S", CHATGPT).start()
    assert json.loads(post.body)["stream"] is True
    assert post.headers["accept"] == "text/event-stream"
    assert "stream" not in json.loads(Conversation(Request("m", ()), "S").start().body)


def test_a_profile_takes_facts_from_the_settings():
    assert profile_from({"arguments": "snapshot"}).arguments == "snapshot"
    with pytest.raises(msgspec.ValidationError):
        profile_from({"nonsense": 1})


# Reading


def test_text_reasoning_and_calls_come_in_order():
    data = stream(
        created(),
        rs("output_item.added", output_index=0, item={"type": "reasoning", "id": "rs", "summary": []}),
        rs("reasoning_summary_text.delta", item_id="rs", output_index=0, summary_index=0, delta="a"),
        rs("reasoning_summary_text.delta", item_id="rs", output_index=0, summary_index=1, delta="b"),
        rs("output_item.done", output_index=0, item={"type": "reasoning", "id": "rs", "encrypted_content": "E",
           "summary": [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]}),
        text("Hi", index=1),
        rs("output_text.done", item_id="msg_1", output_index=1, content_index=0, text="Hi"),
        rs("output_item.done", output_index=1, item={"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Hi"}]}),
        call("c1", "f", '{"a"', ":1}", index=2),
        completed(usage={"input_tokens": 10, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 1},
                         "output_tokens_details": {"reasoning_tokens": 3}}),
    )  # fmt: skip
    result = turn(data)
    assert result.items == (
        Reasoning(("a", "b"), id="rs", signature="E", origin="responses"),
        Text("Hi"),
        Call("c1", "f", '{"a":1}'),
    )
    assert result.usage == Usage(10, 5, 4, 1, 3)


ITEMS = [
    {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "why"}], "encrypted_content": "E"},
    {
        "type": "message",
        "id": "m1",
        "content": [{"type": "output_text", "text": "Hi"}, {"type": "refusal", "refusal": "No"}],
    },
    call_item("c1", "f", "{}"),
    {"type": "custom_tool_call", "id": "ctc", "call_id": "c2", "name": "patch", "input": "*** raw"},
]


def test_a_plain_reply_and_a_final_output_and_done_items_make_the_same_turn():
    streamed = [
        turn(stream(created(), completed(ITEMS))),
        turn(
            stream(
                created(),
                *(rs("output_item.done", output_index=n, item=item) for n, item in enumerate(ITEMS)),
                completed(),
            )
        ),
        turn(stream(created(), *(rs("output_item.done", item=item) for item in ITEMS), completed(ITEMS))),
    ]
    whole = plain(id="resp_1", model="m", status="completed", output=ITEMS)
    assert [each.items for each in streamed] == [whole.items] * 3
    assert [call.kind for call in whole.calls] == ["function", "custom"]


def test_items_without_ids_are_not_told_twice():
    item = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
    data = stream(created(), rs("output_item.done", item=item, output_index=0), completed([item]))
    assert turn(data).text == "Hi"


def test_a_custom_call_streams_its_input():
    item = {"type": "custom_tool_call", "id": "ctc", "call_id": "c", "name": "patch", "input": ""}
    data = stream(
        created(),
        rs("output_item.added", output_index=0, item=item),
        rs("custom_tool_call_input.delta", item_id="ctc", output_index=0, delta="*** "),
        rs("custom_tool_call_input.delta", item_id="ctc", output_index=0, delta="Begin"),
        rs("custom_tool_call_input.done", item_id="ctc", output_index=0, input="*** Begin"),
        rs("output_item.done", output_index=0, item={**item, "input": "*** Begin"}),
        completed(),
    )
    assert turn(data).calls == (Call("c", "patch", "*** Begin", "custom"),)


def test_a_call_given_only_by_required_action_is_carried():
    action = {"type": "submit_tool_outputs", "submit_tool_outputs": {
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}}  # fmt: skip
    data = stream(created(), rs("required_action", required_action=action), completed())
    assert turn(data).calls == (Call("c", "f", "{}"),)


def test_a_call_inside_a_message_item_is_carried():
    part = {"type": "function_call", "id": "c", "name": "f", "arguments": '{"a":1}'}
    data = stream(
        created(),
        rs("output_item.done", output_index=0, item={"type": "message", "id": "i", "content": [part]}),
        completed(),
    )
    assert turn(data).calls == (Call("c", "f", '{"a":1}'),)


def test_a_content_part_opens_a_call_for_the_deltas_that_follow():
    data = stream(
        created(),
        rs("content_part.added", item_id="i", output_index=0, part={"type": "tool_use", "id": "c", "name": "f"}),
        rs("function_call_arguments.delta", item_id="i", output_index=0, delta="{}"),
        rs("function_call_arguments.done", item_id="i", output_index=0, arguments="{}"),
        completed(),
    )
    assert turn(data).calls == (Call("c", "f", "{}"),)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("max_output_tokens", "length"),
        ("content_filter", "filter"),
        ("steered", "stop"),
        ("brand_new", "length"),
        (None, "length"),
    ],
)
def test_incomplete_keeps_its_reason(reason, expected):
    response = {
        "status": "incomplete",
        "incomplete_details": {"reason": reason},
        "output": [],
        "usage": {"input_tokens": 1},
    }
    result = turn(stream(created(), text("a"), rs("incomplete", response=response)))
    assert (result.reason, result.usage) == (expected, Usage(1))
    assert plain(**response).reason == expected


@pytest.mark.parametrize(
    "ending",
    [
        rs("failed", response={"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "slow"}}),
        sse({"type": "error", "code": "rate_limit_exceeded", "message": "slow", "param": None}),
        sse({"type": "error", "error": {"type": "rate_limit_exceeded", "message": "slow"}}),
        b'data: {"error": {"code": "rate_limit_exceeded", "message": "slow"}}\n\n',
        b'{"error": {"code": "rate_limit_exceeded", "message": "slow"}}\n',
    ],
)
def test_every_shape_of_failure_is_a_failure(ending):
    failure = turn(stream(created(), text("a"), ending)).failure
    assert failure is not None
    assert (failure.status, failure.code, failure.message, failure.retryable) == (
        429,
        "rate_limit_exceeded",
        "slow",
        True,
    )


def test_a_plain_failure_is_a_failure():
    assert plain(status="failed", error={"code": "server_error", "message": "x"}).failure is not None
    assert plain(error={"message": "x"}).failure is not None
    assert plain(something="else").failure is not None
    assert collect(list(Conversation(Request("m", ()), "S").feed_plain(b"<html>"))).failure is not None


def test_a_stream_without_its_end_is_a_failure():
    failure = turn(stream(created(), text("a"))).failure
    assert failure is not None
    assert failure.code == "stream_cut"


def test_what_cannot_be_read_is_skipped_and_noted():
    data = stream(created(), b"data: : keepalive\n\n", text("a"), completed(), b"data: [DONE]\n\n")
    result = turn(data)
    assert (result.text, result.notes) == ("a", (Note("frame_skipped"),))


def test_a_reply_that_is_no_stream_at_all_says_so():
    failure = turn(b"data: <html>502</html>\n\n").failure
    assert failure is not None
    assert "not an event stream" in failure.message


def test_bytes_that_are_no_text_end_the_turn():
    failure = turn(stream(created(), b'data: {"type":"response.output_text.delta","delta":"\xff"}\n\n')).failure
    assert failure is not None
    assert failure.code == "bad_encoding"


def test_frames_after_the_end_are_dropped():
    assert turn(stream(created(), text("a"), completed(), text("late"), completed())).text == "a"


def test_outputs_and_unknown_items_are_dropped_and_noted():
    noise = {"type": "function_call_output", "call_id": "x", "output": "resources/list failed: unknown MCP server"}
    result = turn(
        stream(created(), rs("output_item.done", output_index=0, item=noise), text("a", index=1), completed())
    )
    assert (result.text, result.calls) == ("a", ())
    assert result.notes == (Note("item_dropped", "function_call_output"),)


def test_cumulative_arguments_are_read_where_the_profile_says_so():
    data = stream(
        created(),
        rs("output_item.added", output_index=0, item=call_item("c", "f", "")),
        *(
            rs("function_call_arguments.delta", item_id="fc_1", output_index=0, delta=delta)
            for delta in ('{"a"', '{"a":1', '{"a":1}')
        ),
        completed(),
    )
    assert turn(data, Profile(arguments="snapshot")).calls[0].arguments == '{"a":1}'


def test_a_plain_call_without_arguments_ends_before_what_follows_it():
    message = {"type": "message", "id": "m1", "content": [{"type": "output_text", "text": "Hi"}]}
    for first in (
        call_item("c", "f", ""),
        {"type": "custom_tool_call", "id": "x", "call_id": "c", "name": "f", "input": ""},
    ):
        body = json.dumps({"status": "completed", "output": [first, message]}).encode()
        for dialect in ("chat", "responses"):
            order = TurnOrder()
            for event in Conversation(Request("m", (), dialect=dialect), "S").feed_plain(body):
                order.feed(event)
            order.end()


# Messages


ONE, TWO = ({"type": "message", "id": id, "content": [{"type": "output_text", "text": text}]} for id, text in
            (("msg_1", "Let me look."), ("msg_2", "It is 42.")))  # fmt: skip
TWO_MESSAGES = (Text("Let me look."), MessageEnded(""), Text("It is 42."))


def test_two_messages_of_a_turn_are_kept_apart():
    done = [rs("output_item.done", output_index=place, item=item) for place, item in enumerate((ONE, TWO))]
    first, second = text("Let me ") + text("look."), text("It is 42.", "msg_2", 1)
    for events in (
        (first, second),
        (first, done[0], second, done[1]),
        (*done,),
        (first.replace(b'"item_id": "msg_1", ', b""), second.replace(b'"item_id": "msg_2", ', b"")),
        (first, done[0], text("It is 42.", "msg_1", 1)),
    ):
        assert turn(stream(created(), *events, completed())).items == TWO_MESSAGES
        assert turn(stream(created(), *events, completed([ONE, TWO]))).items == TWO_MESSAGES
    assert turn(stream(created(), completed([ONE, TWO]))).items == TWO_MESSAGES


def test_messages_of_a_plain_reply_that_share_an_id_are_all_told():
    same = {**TWO, "id": "msg_1"}
    assert plain(status="completed", output=[ONE, same]).items == TWO_MESSAGES
    assert turn(stream(created(), completed([ONE, same]))).items == TWO_MESSAGES


def test_a_new_id_in_every_event_is_no_new_message():
    added = rs("output_item.added", output_index=0, item={"type": "message", "id": "a", "content": []})
    words = [text(word, item, 0) for word, item in (("Let ", "b"), ("me ", "c"), ("look.", "d"))]
    done = rs("output_item.done", output_index=0, item={**ONE, "id": "e"})
    for events in ((added, *words, done), (*words, done), (*words,)):
        result = turn(stream(created(), *events, completed([{**ONE, "id": "f"}])))
        assert result.items == (Text("Let me look."),)


# Frames that are lost


def test_a_frame_that_is_lost_inside_a_call_leaves_no_hole_in_it():
    start = rs("output_item.added", output_index=0, item=call_item("c", "f", ""))
    before, lost, after = (
        rs("function_call_arguments.delta", item_id="fc_1", output_index=0, delta=each)
        for each in ('{"a":', "1,", '"b":2}')
    )
    broken = lost.replace(b'"delta": "1,"', b'"delta": "1,')
    cut = turn(stream(created(), start, before, broken, after, completed()))
    assert [(call.arguments, call.complete) for call in cut.calls] == [('{"a":', False)]
    assert {note.code for note in cut.notes} == {"frame_skipped", "arguments_gap"}
    whole = '{"a":1,"b":2}'
    for total in (
        rs("function_call_arguments.done", item_id="fc_1", output_index=0, arguments=whole),
        rs("output_item.done", output_index=0, item=call_item("c", "f", whole)),
    ):
        mended = turn(stream(created(), start, before, broken, after, total, completed()))
        assert mended.calls == (Call("c", "f", whole),)
        assert mended.notes == (Note("frame_skipped"),)
    assert turn(stream(created(), start, before, broken, after, completed([call_item("c", "f", whole)]))).calls == (
        Call("c", "f", whole),
    )
    other = rs("function_call_arguments.done", item_id="fc_1", output_index=0, arguments='{"x":1}')
    assert [
        call.complete for call in turn(stream(created(), start, before, broken, after, other, completed())).calls
    ] == [False]


# The end


DONE = b"data: [DONE]\n\n"


def test_done_alone_ends_a_turn_with_a_note_and_what_is_open_is_incomplete():
    opened = rs("output_item.added", output_index=1, item=call_item("c", "f", ""))
    begun = rs("function_call_arguments.delta", item_id="fc_1", output_index=1, delta='{"a":')
    whole = [rs("output_item.done", output_index=0, item=ONE), call("c", "f", "{}", index=1)]
    for events, reason, complete in (
        ([text("a")], "length", []),
        ([text("a"), rs("output_text.done", item_id="msg_1", output_index=0, content_index=0, text="a")], "stop", []),
        (whole, "stop", [True]),
        ([opened, begun], "stop", [False]),
        ([opened], "stop", [False]),
        ([opened, begun, begun.replace(b"a", b"b")], "stop", [False]),
        ([], "stop", []),
    ):
        for late in (b"", text("late", "msg_9", 9) + completed() if events else b""):
            result = turn(stream(created(), *events, DONE, late))
            assert (result.failure, result.reason) == (None, reason)
            assert [call.complete for call in result.calls] == complete
            assert Note("end_missing") in result.notes
            assert "late" not in result.text
    failure = turn(DONE).failure
    assert failure is not None
    assert failure.code == "stream_cut"


# Refusing


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        (b'{"error":{"message":"M","type":"T","code":"C","param":"p"}}', "M", "C"),
        (b'{"detail":"Unsupported parameter: user"}', "Unsupported parameter: user", ""),
        (b'{"error":"plain"}', "plain", ""),
        (b"<html>down</html>", "The backend answered with status 400 and a web page.", ""),
        (b"", "The backend answered with status 400.", ""),
    ],
)
def test_an_http_error_keeps_status_and_message(body, message, code):
    failure = Conversation(Request("m", ()), "S").read_error(400, {"retry-after": "7"}, body)
    assert (failure.status, failure.message, failure.code, failure.retry_after) == (400, message, code, "7")


def test_an_exhausted_quota_is_not_tried_again():
    conversation = Conversation(Request("m", ()), "S")
    assert conversation.read_error(429, {}, b"{}").retryable
    assert not conversation.read_error(429, {}, b'{"error":{"code":"insufficient_quota"}}').retryable


def test_an_expired_login_says_what_to_do():
    assert (
        "codex login"
        in Conversation(Request("m", ()), "S", CHATGPT).read_error(401, {}, b'{"detail":"expired"}').message
    )


# Frames that are odd, and say little


@pytest.mark.parametrize(
    "frame",
    [
        rs("output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta=""),
        rs("refusal.delta", item_id="msg_1", output_index=0, content_index=0, delta=""),
        rs("reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta=""),
        rs("output_item.added", output_index=0),
        rs("output_item.done", output_index=0),
        rs("output_text.done", item_id="msg_9", output_index=0, content_index=0, text=""),
    ],
    ids=["text", "refusal", "reasoning", "added", "done", "text-done"],
)
def test_a_frame_without_what_it_is_about_says_nothing(frame: bytes):
    result = turn(stream(created(), frame, text("Hi"), completed()))
    assert (result.text, result.reason, result.notes) == ("Hi", "stop", ())


def test_half_a_letter_whose_other_half_never_comes_is_replaced_with_a_note():
    half = text("a@").replace(b"@", rb"\ud83d")
    result = turn(stream(created(), half, text("b"), completed()))
    assert (result.text, [note.code for note in result.notes]) == ("a\ufffdb", ["letter_replaced"])


def test_a_letter_in_two_frames_is_whole():
    halves = [text("@").replace(b"@", half) for half in (rb"\ud83d", rb"\ude00")]
    assert turn(stream(created(), *halves, completed())).text == "\U0001f600"


def test_an_end_whose_output_cannot_be_read_is_still_the_end():
    odd = rs("completed", response={"id": "resp_1", "status": "completed", "output": "none"})
    result = turn(stream(created(), text("Hi"), odd))
    assert (result.text, result.reason) == ("Hi", "stop")
    assert [note.code for note in result.notes] == ["frame_skipped"]


def test_a_frame_that_cannot_be_read_and_is_no_end_is_left_out():
    odd = rs("output_item.added", output_index="first", item=5)
    result = turn(stream(created(), text("Hi"), odd, completed()))
    assert (result.text, result.reason) == ("Hi", "stop")


def test_citations_of_a_server_are_not_for_clients_of_other_dialects():
    part = {"type": "output_text", "text": "Hi", "annotations": [{"type": "url_citation", "url": "http://x.test"}]}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}
    result = plain(id="r", model="m", status="completed", output=[item])
    assert (result.text, [note.code for note in result.notes]) == ("Hi", ["annotations_dropped"])


def test_an_item_of_an_unknown_type_with_content_is_read_as_a_message():
    item = {"type": "answer", "id": "a_1", "content": [{"type": "output_text", "text": "Hi"}]}
    assert plain(id="r", model="m", status="completed", output=[item]).text == "Hi"


def test_a_thought_that_ends_under_another_name_ends_the_one_that_was_open():
    thinking = rs("reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta="why")
    other = {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "then"}]}
    result = turn(stream(created(), thinking, rs("output_item.done", output_index=1, item=other), completed()))
    assert result.reasoning == "why\n\nthen"


def test_more_items_than_any_model_makes_are_refused():
    with pytest.raises(TooManyCalls):
        plain(id="r", model="m", status="completed", output=[{"type": "message"}] * (MAX_CALLS + 1))


def test_a_plain_body_that_is_broken_fails_the_turn():
    events = list(Conversation(Request("m", ()), "S").feed_plain(b'{"id":"r","output":[{"type":"\\ud83d"},'))
    assert isinstance(events[-1], TurnFailed)


def test_what_a_server_refuses_is_not_asked_for():
    body, _ = asked(msgspec.structs.replace(OPENAI, refuses=("include",)))
    assert "include" not in body
