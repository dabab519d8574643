"""Recordings and what is made of them."""

import io
import json
import os

import pytest

from tests.support.frames import call, completed, created, stream
from toolwire.backends.lowered import answer_with
from toolwire.core.backend import Ask, Break, Dialogue, Post, Refuse, Wait
from toolwire.core.collect import collect
from toolwire.core.recording import Head, read_recording
from toolwire.core.request import Request
from toolwire.core.secret_patterns import remove_secrets
from toolwire.core.sse import FrameReader
from toolwire.core.stage import Pipeline
from toolwire.protocols import converse_as
from toolwire.replay import ReplayOptions, run_replay
from toolwire.upstream.record import MAX_REQUEST_BYTES, Recorder


def shown(path, **options) -> str:
    out = io.StringIO()
    run_replay(ReplayOptions((path,), **options), out)
    return out.getvalue()


def recorded(tmp_path, data: bytes, status: int = 200, kind: str = "responses") -> bytes:
    recorder = Recorder(str(tmp_path), "turn", Head(1, kind, "m"))
    recorder.start(10.0, status, "text/event-stream")
    for number, frame in enumerate(FrameReader().feed(data)):
        recorder.record_frame(10.0 + number, frame)
    recorder.close()
    return (tmp_path / "turn.jsonl").read_bytes()


def replaying(recording, timing="none"):
    return answer_with(converse_as(recording.head.kind, Request("m", ()), "S"), recording, timing)


TURN = stream(created(), call("c1", "find", '{"q":"x"}'), completed())


@pytest.mark.parametrize("status", [200, 201])
def test_a_replayed_turn_is_the_recorded_turn(tmp_path, status):
    recording = read_recording(recorded(tmp_path, TURN, status))
    conversation = replaying(recording)
    line = Pipeline(FrameReader(), conversation)
    steps = list(conversation.start().steps)
    turn = collect([event for step in steps for event in line.feed(step)] + list(line.end()))
    assert [(made.id, made.arguments) for made in turn.calls] == [("c1", '{"q":"x"}')]
    assert [made.name for made in turn.calls] == ["find"]
    assert conversation.decoder.ended
    assert not conversation.decoder.finishing


def test_the_original_timing_can_be_kept(tmp_path):
    recording = read_recording(recorded(tmp_path, TURN))
    timed = replaying(recording, "original")
    waits = [step.seconds for step in timed.start().steps if isinstance(step, Wait)]
    assert waits == [1.0] * (len(recording.lines) - 1)


def test_a_recorded_refusal_is_refused_again(tmp_path):
    recorder = Recorder(str(tmp_path), "turn", Head(1, "responses", "m"))
    recorder.start(0, 429, "application/json")
    recorder.record_body(0, b'{"error":{"message":"m"}}')
    recorder.close()
    recording = read_recording((tmp_path / "turn.jsonl").read_bytes())
    conversation = replaying(recording)
    [step] = conversation.start().steps
    assert step == Refuse(429, b'{"error":{"message":"m"}}')
    assert conversation.read_error(429, {}, step.body).message == "m"
    assert "failure    status 429: m" in shown(tmp_path / "turn.jsonl").replace("rate_limit_exceeded: ", "")
    with pytest.raises(ValueError, match="refused this turn with status 429"):
        shown(tmp_path / "turn.jsonl", written_as="all")


def test_a_plain_reply_is_shown(tmp_path):
    recorder = Recorder(str(tmp_path), "turn", Head(1, "responses", "m"))
    recorder.start(0, 200, "application/json")
    recorder.record_body(0, b'{"status":"completed","output":[]}')
    recorder.close()
    assert "0.000 s    end        stop" in shown(tmp_path / "turn.jsonl")
    conversation = replaying(read_recording((tmp_path / "turn.jsonl").read_bytes()))
    assert collect(list(conversation.feed_plain(b"".join(conversation.start().steps)))).reason == "stop"


def test_a_retry_begins_the_recording_anew(tmp_path):
    recorder = Recorder(str(tmp_path), "turn", Head(1, "responses", "m"))
    recorder.start(0, 503, "application/json")
    recorder.record_body(0, b"first")
    recorder.start(0, 200, "text/event-stream")
    recorder.close()
    assert b"first" not in (tmp_path / "turn.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (
            "sk-abcdefghijkl Bearer abc.def-ghi123 eyJhbGciOiJIUzI1.eyJzdWIi.sig",
            "[removed] [removed] [removed]",
        ),
        ("AKIAABCDEFGHIJKLMNOP ghp_abcdefghijklmnopqrstuv", "[removed] [removed]"),
        ('{"api_key":"x1","max_tokens":5}', '{"api_key":"[removed]","max_tokens":5}'),
        (r'{"password":"a\"b\\","x":1}', '{"password":"[removed]","x":1}'),
        (r'{"text":"{\"Authorization\": \"Basic eA==\", \"n\": 1}"}',
         r'{"text":"{\"Authorization\": \"[removed]\", \"n\": 1}"}'),
        ('{"headers":{"X-Mine":"abc","B":"c"},"type":"mcp"}', '{"headers":{"X-Mine":"[removed]","B":"[removed]"},"type":"mcp"}'),
        ("https://me:pw@example.com/mcp", "https://[removed]@example.com/mcp"),
        (r"-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "[removed]"),
        (r'{"url":"https:\/\/me:pw@example.com\/mcp"}', r'{"url":"https:\/\/[removed]@example.com\/mcp"}'),
        ("glpat-abcdefghij1234567890 sk_live_51Habcdefgh12345678", "[removed] [removed]"),
        ('{"token":"ya29.a0AfH6SMBx7-abcdef"}', '{"token":"[removed]"}'),
        (r'{"x":"{\"token\": \"ya29.a0AfH6SMBx7-abcdef\"}"}', r'{"x":"{\"token\": \"[removed]\"}"}'),
        ('{"client-secret":"ab","secret_key":"cd","pwd":"ef"}', '{"client-secret":"[removed]","secret_key":"[removed]","pwd":"[removed]"}'),
        ('{"credentials":"zz","set-cookie":"a=b","DB_PASSWORD":"gh"}', '{"credentials":"[removed]","set-cookie":"[removed]","DB_PASSWORD":"[removed]"}'),
        ("{'password': 'hunter2'}", "{'password': '[removed]'}"),
        ("curl -H 'Authorization: Basic dXNlcjpwYXNz' -H 'X-Api-Key: abcdefgh1'", "curl -H 'Authorization: Basic [removed]' -H 'X-Api-Key: [removed]'"),
        ("Cookie: sid=abcdef", "Cookie: [removed]"),
        (r"AWS_SECRET_ACCESS_KEY=wJalrXUtn/K7MDENG\nexport GH_TOKEN=\"abcdefgh123\"", r"AWS_SECRET_ACCESS_KEY=[removed]\nexport GH_TOKEN=\"[removed]\""),
        ("password=hunter2&x=1 https://a.example/?q=1&api_key=abcdefgh12345", "password=[removed]&x=1 https://a.example/?q=1&api_key=[removed]"),
        ('{"password":{"type":"string"},"token":"Hello"}', '{"password":{"type":"string"},"token":"Hello"}'),
        ("Ask for me@example.com, or see https://example.com/a@b", "Ask for me@example.com, or see https://example.com/a@b"),
    ],
)  # fmt: skip
def test_secrets_are_blanked(data, kept):
    assert remove_secrets(data.encode()) == kept


AGENT = {
    "model": "claude-opus-4",
    "max_tokens": 32000,
    "thinking": {"type": "enabled", "budget_tokens": 10000},
    "metadata": {"user_id": "user_0a1b2c3d4e5f60718293a4b5c6d7e8f9_account_9f8e_session_c0ffee00-1234-5678-9abc-def012345678"},
    "tools": [
        {"name": "login", "description": "Signs in with a password, an API key or a token: basic authorization.", "input_schema": {
            "type": "object",
            "properties": {"password": {"type": "string"}, "api_key": {"type": "string"}, "key": {"type": "string", "enum": ["ctrl", "alt"]}},
            "required": ["password", "api_key", "token"],
        }},
        {"name": "fetch", "input_schema": {"type": "object", "properties": {"url": {"type": "string", "format": "uri"}}}},
    ],
    "messages": [
        {"role": "user", "content": "Count tokens: input_tokens=20480000, MAX_TOKENS=128000000, key: value, see https://example.com/a?page=2&sort=key"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_01A09q90qw90lq917835lq9", "name": "fetch",
            "input": {"url": "https://example.com", "options": {"credentials": "include"}, "key": "Enter", "primary_key": "user_id"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_01A09q90qw90lq917835lq9",
            "content": '{"usage": {"total_tokens": 20480000}, "next_page_token": "CAUQAA1234567890abcdefgh", "token": "Hello"}'}]},
        {"role": "user", "content": "def login(user, password=None, token=$TOKEN): ... # Basic understanding of Bearer tokens"},
    ],
    "logprobs": [{"token": "================================", "logprob": -0.1}, {"token": " antidisestablishmentarianism", "logprob": -3}],
    "previous_response_id": "resp_68a1b2c3d4e5f6a7b8c9d0e1f2a3b4c5", "prompt_cache_key": "0197e3a2-1b2c-7d3e-8f4a-5b6c7d8e9f0a",
}  # fmt: skip


def test_nothing_of_an_ordinary_request_is_taken_for_a_secret():
    for body in (json.dumps(AGENT), json.dumps(json.dumps(AGENT)), repr(AGENT)):
        assert remove_secrets(body.encode()) == body


@pytest.mark.parametrize(
    "piece",
    [
        *(b"-----BEGIN PRIVATE KEY-----", b"eyJaaaaaaaaaaaa-", b'"headers":{', b"https://user", b'\\"api_key\\":\\"'),
        *(b',"headers":{\\"', b'""headers":{\\'),
        *(b'"token":"', b'"token":"a1', b'"secret-', b"TOKEN=", b"Authorization: Basic ", b"'pwd':'"),
    ],
)
def test_what_only_begins_like_a_secret_is_looked_at_once(piece: bytes):
    """With 2 MB of it a search that begins anew at every piece would not come to an end."""
    data = piece * (2_000_000 // len(piece))
    assert remove_secrets(data)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "not a Toolwire recording"),
        (b"{}", "not a Toolwire recording"),
        (b'{"toolwire":2,"kind":"x"}', "version 2"),
        (b'{"toolwire":1,"kind":"telepathy"}', "telepathy backend cannot be replayed"),
    ],
)
def test_anything_else_is_refused(text, said, tmp_path):
    (tmp_path / "turn.jsonl").write_bytes(text)
    with pytest.raises(ValueError, match=said):
        shown(tmp_path / "turn.jsonl")


def test_a_replayed_turn_knows_what_its_backend_knows(tmp_path):
    recording = read_recording(recorded(tmp_path, TURN))
    conversation = replaying(recording)
    assert conversation.delta_fields
    assert not conversation.decoder.context_window.is_full
    assert conversation.decoder.encode_reasoning() == ""
    conversation.stand_in("a", "b")


CHAT = (
    b'{"model":"up/m","stream":true,"messages":[{"role":"user","content":"Where is x?"}],"tools":[{"type":"function",'
    b'"function":{"name":"find","parameters":{"type":"object","properties":{}}}}]}'
)
SENT = b'{"model":"m","stream":true,"input":[{"role":"user","content":"Where is x?"}]}'


def whole_turn(folder, name: str = "turn", dialect: str = "chat") -> None:
    """A recording with both requests and a reply."""
    recorder = Recorder(str(folder), name, Head(1, "responses", "m", dialect=dialect), CHAT)
    recorder.record_opening(Post("/responses", SENT))
    recorder.start(10.0, 200, "text/event-stream")
    for number, frame in enumerate(FrameReader().feed(TURN)):
        recorder.record_frame(10.0 + number / 10, frame)
    recorder.close()


def test_a_turn_is_told_as_who_said_what_when(tmp_path):
    whole_turn(tmp_path)
    lines = shown(tmp_path / "turn.jsonl").splitlines()
    assert lines[0].startswith("turn turn: chat client, responses backend, model m, status 200, 20")
    assert lines[2:7] == [
        f"client asks: model up/m, streamed, {len(CHAT)} bytes, tool: find",
        "    user       Where is x?",
        "",
        f"sent to the backend: POST /responses, model m, streamed, {len(SENT)} bytes",
        "    the same conversation",
    ]
    assert lines[8] == "received:"
    assert lines[9].split(maxsplit=3)[2:] == ["call", 'find c1 {"q":"x"}']
    assert lines[-1].split()[-2:] == ["end", "calls"]


def test_what_was_changed_for_the_backend_is_shown(tmp_path):
    recorder = Recorder(str(tmp_path), "turn", Head(1, "responses", "m", dialect="chat"), CHAT)
    recorder.record_opening(Post("/responses", SENT.replace(b"Where is x?", b"Where is y?")))
    recorder.close()
    assert "    user       Where is y?" in shown(tmp_path / "turn.jsonl").splitlines()


@pytest.mark.parametrize(
    ("options", "types"),
    [
        ({"direction": "client"}, ["request", "text"]),
        ({"direction": "sent", "events": ("text",)}, ["text"]),
        ({"events": ("call", "end")}, ["call", "end"]),
        ({"call": "fi*"}, ["call"]),
        ({"call": "other"}, []),
        ({"request": "tu", "dialect": "chat", "events": ("call",)}, ["call"]),
    ],
)
def test_filters_choose_what_is_shown(tmp_path, options, types):
    whole_turn(tmp_path)
    steps = [json.loads(line) for line in shown(tmp_path, json=True, **options).splitlines()]
    assert [step["type"] for step in steps] == types
    assert {step["turn"] for step in steps} <= {"turn"}
    if not types:
        assert shown(tmp_path, **options) == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"request": "nobody"}, "no such recording"),
        ({"dialect": "messages"}, "no such recording"),
        ({"dialect": "morse"}, "--dialect: 'morse' is not one of chat, responses, messages"),
        ({"direction": "up"}, "--direction: 'up' is not one of client, sent, received"),
        ({"events": ("song",)}, "--event: 'song' is not one of"),
        ({"written_as": "morse"}, "--as: 'morse' is not one of"),
    ],
)
def test_a_filter_that_fits_nothing_is_said(tmp_path, options, said):
    whole_turn(tmp_path)
    with pytest.raises(ValueError, match=said):
        shown(tmp_path, **options)


def test_a_directory_is_shown_in_the_order_of_its_turns(tmp_path):
    for number, name in enumerate(("b", "a")):
        whole_turn(tmp_path, name)
        os.utime(tmp_path / f"{name}.jsonl", (number, number))
    heads = [line.partition(":")[0] for line in shown(tmp_path).splitlines() if line.startswith("turn ")]
    assert heads == ["turn b", "turn a"]


def test_a_long_text_is_shortened_unless_all_of_it_is_wanted(tmp_path):
    recorder = Recorder(
        str(tmp_path), "turn", Head(1, "chat", "m", dialect="chat"), CHAT.replace(b"Where", b"W" * 5000)
    )
    recorder.record_opening(Post("/chat/completions", b"{}"))
    recorder.close()
    assert "W" * 5000 not in shown(tmp_path)
    assert "more characters: --full)" in shown(tmp_path)
    assert "W" * 5000 in shown(tmp_path, full=True)


def test_a_request_is_kept_up_to_its_limit_and_then_says_so(tmp_path):
    secret = "hidden-away-for-ever"
    body = b"x" * (MAX_REQUEST_BYTES - 10) + secret.encode() + b"y" * MAX_REQUEST_BYTES
    recorder = Recorder(str(tmp_path), "turn", Head(1, "chat", "m", dialect="chat"), body, (secret,))
    recorder.record_opening(Post("/chat/completions", body))
    recorder.close()
    data = (tmp_path / "turn.jsonl").read_bytes()
    assert len(data) < 2 * MAX_REQUEST_BYTES + 1000
    assert secret[:8].encode() not in data
    assert [line.left_out for line in read_recording(data).lines] == [True, True]
    assert "bytes and more, which were left out" in shown(tmp_path)


def test_a_turn_without_a_reply_breaks_again(tmp_path):
    recorder = Recorder(str(tmp_path), "turn", Head(1, "responses", "m", dialect="chat"), CHAT)
    recorder.record_opening(Post("/responses", SENT))
    recorder.close()
    recording = read_recording((tmp_path / "turn.jsonl").read_bytes())
    assert list(recording.make_script(timed=False).steps) == [Break()]


def test_what_is_said_to_a_worker_is_recorded_in_its_place(tmp_path):
    dialogue = Dialogue("m", "", None, lambda: None)
    dialogue.outbox.append(Ask("thread", "thread/start", {"model": "m", "api_key": "k1"}))
    recorder = Recorder(str(tmp_path), "turn", Head(1, "codex", "m", dialect="chat"), CHAT)
    recorder.record_opening(dialogue)
    recorder.start(1.0, 200, "application/jsonl")
    recorder.record_messages(1.5, [b'{"id":7,"result":{}}\n'])
    recorder.close()
    lines = read_recording((tmp_path / "turn.jsonl").read_bytes()).lines
    assert [(line.t, line.path, line.sent) for line in lines[1:]] == [
        (0.0, "thread/start", '{"model":"m","api_key":"[removed]"}'),
        (0.5, "", '{"id":7,"result":{}}'),
    ]


@pytest.mark.parametrize(
    "said",
    [
        b'{"headers":{"X-Config":"{\\"a\\":1}","X-Pin":"pin-7788-zzzz"}}',
        b'{"content":"-----BEGIN RSA PRIVATE KEY-----\\npin-7788-zzzz"}',
    ],
)
def test_values_beside_braces_and_keys_without_an_end_are_removed(said: bytes):
    assert "pin-7788" not in remove_secrets(said)
