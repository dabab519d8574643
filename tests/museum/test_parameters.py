"""Parameters of a request: passed on with their meaning, enforced where a server might not, never lost in silence."""

import json
from typing import Any

import pytest

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.gate import Wire
from tests.museum.lines import (
    RULES,
    answer,
    answer_responses,
    ask,
    ask_responses,
    carry,
    in_responses,
    say,
    sent_for,
    sent_upstream,
)
from tests.support.frames import call, completed, created, stream, text
from toolwire.assembly import apply_rules
from toolwire.backends.responses import OPENAI
from toolwire.backends.responses.encode import encode_request
from toolwire.core.errors import BadRequest
from toolwire.core.request import Request

theme = Theme("parameters")

_TWO = stream(created(), call("a", "f", "{}"), call("b", "g", "{}", index=1), completed())


def _dropped(request: Request) -> list[str]:
    """What is noted as dropped when a Responses server is asked."""
    _, notes = encode_request(request, OPENAI, stream=True)
    return [note.subject for note in (*request.notes, *notes)]


@theme.row("tc-named-dropped")
def _() -> None:
    named = {"type": "function", "name": "get_weather"}
    chatted = {"type": "function", "function": {"name": "get_weather"}}
    tools = ("get_weather", "other")
    assert sent_upstream(tools=tools, tool_choice=chatted)["tool_choice"] == named
    assert sent_for(ask_responses(tools=tools, tool_choice=named))["tool_choice"] == named
    for request in (
        lambda: ask(tools=("other",), tool_choice=chatted),
        lambda: ask_responses(tools=("other",), tool_choice=named),
    ):
        with pytest.raises(BadRequest, match="get_weather") as refused:
            request()
        assert refused.value.param == "tool_choice"


@theme.row("tc-allowed-parallel")
def _() -> None:
    only = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    request = ask_responses(tools=("f", "g"), tool_choice=only, parallel_tool_calls=False)
    sent = sent_for(request)
    assert (sent["tool_choice"], sent["parallel_tool_calls"]) == (only, False)
    assert [tool["name"] for tool in sent["tools"]] == ["f", "g"]  # all of them stay visible to the model
    # A server that knows nothing of it is held to it.
    told = answer_responses(_TWO, request)
    assert told.said.calls == (("b", "g", "{}"),)
    assert carry([_TWO], request).notes == ("call_not_allowed",)
    assert told.response["tool_choice"] == only
    nested = {"type": "function", "function": {"name": "g"}}
    chatted = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [nested]}}
    answered = answer(_TWO, ask(tools=("f", "g"), tool_choice=chatted))
    assert (answered.calls, answered.notes) == ([("b", "g", "{}")], ("call_not_allowed",))
    # Allowed are tools, not notations: a textual call of another is held back or stays text, and never is a call.
    block = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
    assert say(block, ask(tools=("f", "g"), tool_choice=chatted)).calls == []
    # None at all.
    for none in (ask(tools=("f", "g"), tool_choice="none"), ask(tools=("f",), tool_choice="none")):
        refused = answer(_TWO, none)
        assert (refused.calls, refused.finish) == ([], "stop")
        assert refused.notes == ("call_not_allowed",) * 2
        assert "required_action" not in refused.response


@theme.row("ptc-ignored")
def _(wire: Wire) -> None:
    request = ask(tools=("f", "g"), parallel_tool_calls=False)
    for each in (request, in_responses(request)):
        assert sent_for(each)["parallel_tool_calls"] is False
    answered = answer(_TWO, request)
    assert (answered.calls, answered.notes) == ([("a", "f", "{}")], ("call_capped",))
    model = wire.script(_TWO)
    for door in wire.doors:
        assert door.stream(model, ("f", "g"), parallel_tool_calls=False).telemetry["tool_call_truncated"] is True
        plain = door.plain(model, ("f", "g"), parallel_tool_calls=False)
        assert plain.headers["x-codex-tool-call-truncated"] == "true"
        assert len(door.said(plain).calls) == 1
        assert wire.asked(model)[-1].body["parallel_tool_calls"] is False


@theme.row("args-eager-flag")
def _() -> None:
    eager = {"type": "function", "name": "f", "parameters": {"type": "object"}, "eager_input_streaming": True}
    assert sent_for(ask_responses(tools=(eager,)))["tools"] == [eager]
    function = {"name": "f", "parameters": {"type": "object"}}
    chatted = {"type": "function", "eager_input_streaming": True, "function": function}
    assert "eager_input_streaming" not in sent_upstream(tools=(chatted,))["tools"][0]


@theme.row("cursor-mixed")
def _() -> None:
    flat = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    nested = {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}}
    request = ask(tools=(flat, nested), tool_choice={"type": "function", "name": "f"})
    assert [tool["name"] for tool in sent_for(request)["tools"]] == ["f", "g"]
    assert sent_for(request)["tool_choice"] == {"type": "function", "name": "f"}
    assert answer(_TWO, ask(tools=(flat, nested))).calls == [("a", "f", "{}"), ("b", "g", "{}")]


_UNKNOWN: Json = {
    "brand_new": {"a": [1, None]},
    "prompt": {"id": "pmpt_1"},
    "context_management": [{"type": "compaction"}],
    "include": ["file_search_call.results"],
    "truncation": "auto",
}


@theme.row("req-unknown-stripped")
def _() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "defer_loading": True}
    search = {"type": "tool_search", "execution": "client", "x": 1}
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi", "y": 2}], "z": 3}
    request = ask_responses(tools=(tool, search), input=[item], text={"format": {"type": "text"}, "w": 4}, **_UNKNOWN)
    sent = sent_for(request)
    assert {name: sent[name] for name in _UNKNOWN} == _UNKNOWN
    assert (sent["tools"], sent["input"]) == ([tool, search], [item])
    assert sent["text"] == {"format": {"type": "text"}, "w": 4}
    assert _dropped(request) == []
    # Between dialects what is lost is listed.
    assert _dropped(ask(brand_new=1, logit_bias={"1": 2}, seed=7)) == ["brand_new", "logit_bias", "seed"]


@theme.row("obs-native-required")
def _(wire: Wire) -> None:
    turn = stream(created(), text("Hm."), call("a", "f", '{"q":1}', index=1), completed())
    model = wire.script(turn)
    for door in wire.doors:
        for mode in ("openai-json", "obsidian-xml"):
            headers = {"x-proxy-output-mode": mode}
            plain = door.plain(model, ("f",), headers=headers)
            for said in (door.stream(model, ("f",), headers=headers).said, door.said(plain)):
                assert (said.calls, said.finish) == ((("a", "f", '{"q":1}'),), "tool_calls")
                assert ("<use_tool>" in said.text) == (mode == "obsidian-xml")
            assert plain.headers["x-proxy-output-mode"] == mode


@theme.row("cc-cache-control")
def _() -> None:
    marker = {"cache_control": {"type": "ephemeral"}}
    message = {"role": "user", "content": [{"type": "text", "text": "Hi", **marker}]}
    function = {"type": "function", "function": {"name": "f"}, **marker}
    chatted = ask(messages=[message], tools=(function,))
    assert "cache_control" not in json.dumps(sent_for(chatted))
    item = {"role": "user", "content": [{"type": "input_text", "text": "Hi", **marker}]}
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x", **marker}]}
    called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    declared = {"type": "function", "name": "f", **marker}
    marked = sent_for(apply_rules(ask_responses(input=[item, called, output], tools=(declared,)), RULES))
    assert (marked["input"], marked["tools"]) == ([item, called, output], [declared])
    for plain in (ask(tools=("f",)), ask_responses(tools=("f",))):
        assert "cache_control" not in json.dumps(sent_for(plain))  # and never added


@theme.row("tools-empty-array")
def _(wire: Wire) -> None:
    model = wire.script(stream(created(), text("Hi"), completed()))
    named: dict[str, Any] = {
        "chat/completions": {"type": "function", "function": {"name": "f"}},
        "responses": {"type": "function", "name": "f"},
    }
    for door in wire.doors:
        for choice in ("auto", "none", None):
            body = {**door.body(model), "tools": [], "tool_choice": choice}
            assert door.said(wire.http.post(door.url, json=body)).text == "Hi"
            assert not {"tools", "tool_choice"} & set(wire.asked(model)[-1].body), (door.path, choice)
        for choice in ("required", named[door.path]):
            refused = wire.http.post(door.url, json={**door.body(model), "tools": [], "tool_choice": choice})
            assert refused.status_code == 400, (door.path, choice)
            assert refused.json()["error"]["param"] == "tool_choice"
        # So too when the last one is a tool that the backend cannot run.
        refused = door.plain("demo", ({"type": "web_search"},), tool_choice="required")
        assert refused.status_code == 400, door.path


@theme.row("mt-default")
def _() -> None:
    for request in (ask(), ask_responses()):
        assert not {"max_output_tokens", "max_tokens"} & set(sent_for(request))
    assert sent_upstream(max_tokens=50)["max_output_tokens"] == 50
    assert sent_upstream(max_tokens=50, max_completion_tokens=90)["max_output_tokens"] == 90
    assert sent_for(ask_responses(max_output_tokens=90))["max_output_tokens"] == 90


@theme.row("param-lost")
def _() -> None:
    asked = {"store": False, "prompt_cache_key": "k", "safety_identifier": "s", "user": "u", "metadata": {"a": "b"}}
    for request in (ask(**asked), ask_responses(**asked)):
        sent = sent_for(request)
        assert {name: sent[name] for name in asked} == asked
        assert _dropped(request) == []
    # A server is never asked to store anything; who wanted that of it through chat is told.
    assert sent_upstream(store=True)["store"] is False
    assert _dropped(ask(store=True)) == ["store"]
    assert sent_for(ask_responses(store=True))["store"] is False  # it is stored here


test_museum = theme.test()
