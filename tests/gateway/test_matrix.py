"""The matrix: every turn on every route, streamed and plain, is the same turn in the client's hand.

A route is a client's dialect and a backend's kind. A turn is a row of `TURNS`; the answer is read strictly (shapes,
order of events, telemetry), folded into one value, and compared with the one truth. A new turn is a new row. `make
test` takes every pair of turn, dialect, kind and way; `make soak` takes the rest of the product.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.backend_writers import reply
from tests.support.client_readers import Telemetry, shape_faults
from tests.support.pairs import pairwise
from tests.support.routes import Routes, asked_path, question
from tests.support.scripts import (
    FIND,
    KINDS,
    LOOK,
    Calls,
    Declared,
    Declines,
    Name,
    Says,
    Script,
    Thinks,
    Tokens,
    each_route,
    told,
    truth,
)
from tests.support.upstream import Reply

RECORDINGS = Path(__file__).parent.parent / "recordings"

A = Calls("call_a", "look", '{"path":"a b"}')
B = Calls("call_b", "find", '{"q": [1, 2.50, {"deep": null}]}')
PATCH = '*** Begin Patch\n*** Add File: "hé\\llo".txt\n+\ttab\n*** End Patch\n'
ODD = '{"s":"Zürich ☃ 東京 \U0001f326\ufe0f","e":"\\u2603 \\ud83d\\ude00 \\" \\\\ \\/ \\n","n":-0.0e+10,"d":1,"d":2}'
BIG = json.dumps({"lines": [f'line {number} é \U0001f600 \\ " </x>' for number in range(400)]}, ensure_ascii=False)
LONG = "a_tool_whose_name_is_exactly_as_long_as_all_of_the_services_take"
RECORDED = Tokens(100, 20, 40, 0, 5)
EXEC = Declared("exec_command")

TURNS: dict[str, Script] = {
    "text": Script((Says("Hello,  world.\n\n"),)),
    "text without tools": Script((Says("Hello."),), tools=()),
    "whitespace": Script((Says(" \n"), A)),
    "one call": Script((A,)),
    "a call without arguments": Script((Calls("call_a", "look", ""),)),
    "a call with an empty object": Script((Calls("call_a", "look", "{}"),)),
    "three calls": Script((A, B, Calls("call_c", "look", "{}"))),
    "the same call twice": Script((A, Calls("call_b", "look", A.arguments))),
    "text, then a call": Script((Says("Let me see."), A)),
    "a call, then text": Script((A, Says("That was it."))),
    "text between calls": Script((Says("First. "), A, Says("Second."), B)),
    "a thought, then text": Script((Thinks("Hm, well.", "SEAL"), Says("So."))),
    "a thought, then a call": Script((Thinks("Hm, well.", "SEAL"), A)),
    "a thought, text and two calls": Script((Thinks("Hm.", "SEAL"), Says("So."), A, B)),
    "a thought without a signature": Script((Thinks("Hm."), Says("So."))),
    "a hidden thought": Script((Thinks(signature="SEAL", redacted=True), A)),
    "thoughts between calls": Script((Thinks("One.", "S1"), A, Thinks("Two.", "S2"), B), kinds=("responses", "messages")),
    "a refusal": Script((Declines("I can't do that."),)),
    "a refusal after text": Script((Says("Well. "), Declines("I can't do that."))),
    "cut in text": Script((Says("And then the"),), "length"),
    "cut after a call": Script((A, Says("And th")), "length"),
    "cut in a call": Script((Says("So."), A, Calls("call_b", "find", '{"q":"half a wo', whole=False)), "length"),
    "cut before any argument": Script((Calls("call_a", "look", "", whole=False),), "length"),
    "filtered": Script((Says("How to make a"),), "filter"),
    "filtered in a call": Script((Calls("call_a", "look", '{"path":"/et', whole=False),), "filter"),
    "a stop sequence": Script((Says("One, two"),), "sequence"),
    "all kinds of tokens": Script((Thinks("Hm.", "SEAL"), Says("So.")), tokens=Tokens(1000, 90, 600, 300, 70)),
    "big arguments": Script((Calls("call_a", "look", BIG),), chars=60),
    "odd letters in single pieces": Script((Says("où \U0001f600 </tool_call>"), Calls("call_a", "look", ODD)), chars=1),
    "a custom tool": Script((Calls("call_a", "patch", PATCH, "custom"),), tools=(LOOK, Declared("patch", "custom")), dialects=("chat", "responses")),
    "a custom tool in single letters": Script((Says("So."), Calls("call_p", "patch", PATCH, "custom"), A), tools=(LOOK, Declared("patch", "custom")), dialects=("chat", "responses"), chars=1),
    "a tool in a namespace": Script((Calls("call_a", "look", A.arguments, namespace="mcp__files"), B), tools=(Declared("look", namespace="mcp__files"), FIND), dialects=("responses",)),
    "one name in two namespaces": Script((Calls("call_a", "look", "{}", namespace="two"), Calls("call_b", "look", "{}")), tools=(LOOK, Declared("look", namespace="one"), Declared("look", namespace="two")), dialects=("responses",)),
    "a long name": Script((Calls("call_a", LONG, "{}"),), tools=(Declared(LONG),)),
    "an odd id": Script((Calls("functions.look:0", "look", "{}"), Calls("x" * 64, "find", "{}"))),
    "nothing at all": Script(()),
    # Recorded, with what they mean
    "recorded: text": Script((Says("Hello!"),), tokens=RECORDED, recorded="01-text"),
    "recorded: a call": Script((Calls("call_1", "exec_command", '{"cmd": "echo hi from tool"}'),), tokens=RECORDED, tools=(EXEC,), recorded="02-function-call-exec-command"),
    "recorded: two calls": Script((Calls("call_1", "exec_command", '{"cmd": "echo one"}'), Calls("call_2", "exec_command", '{"cmd": "echo two"}')), tokens=RECORDED, tools=(EXEC,), recorded="03-parallel-function-calls"),
    "recorded: a patch": Script((Calls("call_1", "apply_patch", "*** Begin Patch\n*** Add File: hello.txt\n+hello\n*** End Patch\n", "custom"),), tokens=RECORDED, tools=(Declared("apply_patch", "custom"),), dialects=("chat", "responses"), recorded="04-custom-tool-call-apply-patch"),
    "recorded: a thought": Script((Thinks("**Looking** around\n\nraw thoughts", "ENCRYPTED_BLOB"), Calls("call_1", "exec_command", '{"cmd": "echo hi"}')), tokens=RECORDED, tools=(EXEC,), recorded="07-reasoning-encrypted-content-replayed"),
    "recorded: hardly any events": Script((Calls("call_1", "exec_command", '{"cmd":"echo hi"}'),), tokens=None, tools=(EXEC,), kinds=("responses",), recorded="08-minimal-events"),
    "recorded: incomplete": Script((Says("Truncated ans"),), "length", tokens=None, kinds=("responses",), recorded="19-response-incomplete"),
    "recorded: a namespace": Script((Calls("call_1", "echo", '{"text": "yo"}', namespace="mcp__demo"),), tokens=RECORDED, tools=(Declared("echo", namespace="mcp__demo"),), dialects=("responses",), recorded="40-mcp-tools-direct"),
    "recorded: CRLF": Script((Says("crlf ok"),), tokens=None, kinds=("responses",), recorded="51-crlf-and-data-only-sse"),
    "recorded: arguments as an object": Script((Calls("call_1", "exec_command", '{"cmd":"echo hi"}'),), tokens=RECORDED, tools=(EXEC,), recorded="52-function-arguments-as-object"),
}  # fmt: skip


CASES = [
    (turn, dialect, kind, stream)
    for turn, script in TURNS.items()
    for dialect, kind in each_route(script)
    for stream in (True, False)
]


def translates(case: Sequence[Any]) -> tuple[Any, ...]:
    """Whether a route has two dialects, streamed and plain: every turn takes each of these ways."""
    _, dialect, kind, stream = case
    return ((dialect != kind, stream),)


def case_id(case: Sequence[Any]) -> str:
    return "-".join((*case[:3], "streamed" if case[3] else "plain"))


def _upstream_model(routes: Routes, turn: str, kind: Name, *, stream: bool) -> str:
    """The name of a model that gives this turn."""
    script = TURNS[turn]
    model = f"{turn} {kind} {stream}"
    recorded = script.recorded and stream and kind == "responses"
    recording = (RECORDINGS / f"{script.recorded}.sse").read_bytes() if recorded else b""
    routes.upstream.replies[model] = reply(script, kind, stream=stream, recording=recording)
    return model


@pytest.mark.parametrize(("turn", "dialect", "kind", "stream"), pairwise(CASES, case_id, translates))
def test_the_same_turn_comes_to_hand(routes: Routes, turn: str, dialect: Name, kind: Name, stream: bool):
    script = TURNS[turn]
    model = _upstream_model(routes, turn, kind, stream=stream)
    held = routes.ask(dialect, question(dialect, f"{kind}/{model}", script.tools, stream=stream))
    expected = truth(script, dialect, kind, stream=stream)
    if dialect == "messages" and script.tokens is None:
        expected = msgspec.structs.replace(expected, tokens=Tokens())  # the dialect insists on numbers
    assert held.seen == expected
    assert shape_faults(held, dialect, stream=stream) == []
    calls = told(script, kind, stream=stream).calls
    notes = [{"code": "call_incomplete", "subject": call.id} for call in calls if not call.whole]
    if not (dialect == "gemini" and stream):
        assert held.telemetry == Telemetry(len(calls), tool_call_truncated=False, notes=notes)
    sent = routes.upstream.of(model)[-1]
    assert sent.path == asked_path(kind, model, stream=stream)
    assert kind == "gemini" or bool(sent.body.get("stream")) == stream


def test_chunks_of_a_service_that_leaves_usage_out_have_it(routes: Routes):
    steps = reply(TURNS["one call"], "chat", stream=True).steps
    routes.upstream.replies["leaves out"] = Reply([step.replace(b',"usage":null', b"") for step in steps])
    held = routes.ask("chat", question("chat", "chat/leaves out", (LOOK, FIND), stream=True))
    assert held.seen == truth(TURNS["one call"], "chat", "chat", stream=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_stream_counts_only_on_request(routes: Routes, kind: Name):
    model = _upstream_model(routes, "one call", kind, stream=True)
    body = question("chat", f"{kind}/{model}", (LOOK, FIND), stream=True)
    del body["stream_options"]
    assert routes.ask("chat", body).seen.tokens is None


def test_a_gemini_server_counts_the_tokens_of_any_client(routes: Routes):
    routes.upstream.replies["counts"] = Reply([b'{"totalTokens":12}'], content_type="application/json")
    body = {"model": "gemini/counts", "messages": [{"role": "user", "content": "Go."}], "system": "Be brief."}
    counted = routes.http.post(f"{routes.gateway.url}/v1/messages/count_tokens", json=body)
    assert (counted.status_code, counted.json()) == (200, {"input_tokens": 12})
    [asked] = routes.upstream.of("counts")
    assert asked.path == "/v1/models/counts:countTokens"
    assert asked.body["generateContentRequest"]["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
