"""Parameters of a request on every route: with their meaning in the words of each server, or with a note."""

import json
from typing import Any

import pytest

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.gate import Routes
from tests.museum.lines import RULES, ask, ask_responses, cc, part
from tests.museum.routes import Kind, ask_messages, began, chunks, completion, over, sent, told, use
from tests.support.frames import call, completed, created, stream
from toolwire.assembly import ToolRules
from toolwire.core.errors import BadRequest
from toolwire.core.request import Request

theme = Theme("parameters")

_USER = {"role": "user", "content": "Go."}
_SCHEMA: Json = {"type": "object", "properties": {}}
_MARKER = {"cache_control": {"type": "ephemeral"}}


def _names(kind: Kind, request: Request) -> list[str]:
    return [each["function"]["name"] if kind == "chat" else each["name"] for each in sent(kind, request).body["tools"]]


def _choice(kind: Kind, request: Request) -> Any:
    return sent(kind, request).body.get("tool_choice")


@theme.row("tc-named-dropped")
def _() -> None:
    tools, name = ("get_weather", "other"), "get_weather"
    chatted = {"type": "function", "function": {"name": name}}
    for request in (
        ask(tools=tools, tool_choice=chatted),
        ask_responses(tools=tools, tool_choice={"type": "function", "name": name}),
        ask_messages(tools=tools, tool_choice={"type": "tool", "name": name}),
    ):
        assert _choice("messages", request) == {"type": "tool", "name": name}
        assert _choice("chat", request) == chatted
        assert _choice("responses", request) == {"type": "function", "name": name}
    with pytest.raises(BadRequest, match=name) as refused:
        ask_messages(tools=("other",), tool_choice={"type": "tool", "name": name})
    assert (refused.value.param or "").startswith("tool_choice")


_TWO: dict[Kind, bytes] = {
    "responses": stream(created(), call("a", "f", "{}"), call("b", "g", "{}", index=1), completed()),
    "chat": chunks(
        cc(part("{}", index=0, id="a", name="f")), cc(part("{}", index=1, id="b", name="g")), cc(finish="tool_calls")
    ),
    "messages": began() + use(0, "a", "f") + use(1, "b", "g") + over("tool_use"),
}


@theme.row("tc-allowed-parallel")
def _(routes: Routes) -> None:
    only = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    nested = {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]}
    tools = ("f", "g")
    responded = ask_responses(tools=tools, tool_choice=only, parallel_tool_calls=False)
    chatted = ask(
        tools=tools, tool_choice={"type": "allowed_tools", "allowed_tools": nested}, parallel_tool_calls=False
    )
    for request in (chatted, responded):
        assert _choice("messages", request) == {"type": "any", "disable_parallel_tool_use": True}
        assert (_names("messages", request), _names("chat", request)) == (["g"], ["g"])
        assert _choice("chat", request) == "required"
        assert sent("chat", request).body["parallel_tool_calls"] is False
    # A server that knows nothing of it is held to it.
    for kind, two in _TWO.items():
        model = routes.script(kind, two)
        for door, choice in (
            (routes.chat, {"type": "allowed_tools", "allowed_tools": nested}),
            (routes.responses, only),
        ):
            for said in (
                door.stream(model, tools, tool_choice=choice).said,
                door.said(door.plain(model, tools, tool_choice=choice)),
            ):
                assert (said.calls, said.finish) == ((("b", "g", "{}"),), "tool_calls")


@theme.row("ptc-ignored")
def _(routes: Routes) -> None:
    tools = ("f", "g")
    single: dict[str, Json] = {
        "chat/completions": {"parallel_tool_calls": False},
        "responses": {"parallel_tool_calls": False},
        "messages": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    }
    requests = (
        ask(tools=tools, parallel_tool_calls=False),
        ask_responses(tools=tools, parallel_tool_calls=False),
        ask_messages(tools=tools, **single["messages"]),
    )
    for request in requests:
        assert sent("responses", request).body["parallel_tool_calls"] is False
        assert sent("chat", request).body["parallel_tool_calls"] is False
        assert _choice("messages", request) == {"type": "auto", "disable_parallel_tool_use": True}
    for kind, two in _TWO.items():
        # They call twice all the same.
        answered = told(kind, two, requests)
        assert (answered.calls, answered.notes) == ([("a", "f", "{}")], ("call_capped",))
        model = routes.script(kind, two)
        for door in routes.doors:
            streamed = door.stream(model, tools, **single[door.path])
            assert streamed.telemetry["tool_call_truncated"] is True
            assert len(streamed.said.calls) == 1
            plain = door.plain(model, tools, **single[door.path])
            assert plain.headers["x-codex-tool-call-truncated"] == "true"
            assert len(door.said(plain).calls) == 1


_EAGER: Json = {"name": "f", "input_schema": _SCHEMA, "eager_input_streaming": True}


@theme.row("args-eager-flag")
def _() -> None:
    assert sent("messages", ask_messages(tools=(_EAGER,))).body["tools"] == [_EAGER]
    for kind in ("chat", "responses"):
        assert "eager_input_streaming" not in json.dumps(sent(kind, ask_messages(tools=(_EAGER,))).body)
    # A server that refuses it is not bothered with it.
    stripped = sent("messages", ask_messages(tools=(_EAGER,)), refuses=["tools.eager_input_streaming"])
    assert stripped.body["tools"] == [{"name": "f", "input_schema": _SCHEMA}]
    assert stripped.notes == [("field_dropped", "tools.eager_input_streaming")]


_FLAT: Json = {"type": "function", "name": "f", "parameters": _SCHEMA}
_NESTED: Json = {"type": "function", "function": {"name": "g", "parameters": _SCHEMA}}


@theme.row("cursor-mixed")
def _(routes: Routes) -> None:
    request = ask(tools=(_FLAT, _NESTED))
    for kind in ("chat", "messages", "responses"):
        assert _names(kind, request) == ["f", "g"]
    # A whole body of Responses at the endpoint of chat is read as well.
    turn = completion({"content": "Hi"})
    body: Json = {"input": [_USER], "instructions": "Be brief.", "tools": [_FLAT, _NESTED]}
    model = routes.script("chat", json.dumps(turn).encode())
    plain = routes.http.post(routes.chat.url, json={"model": model, **body})
    assert routes.chat.said(plain).text == "Hi"
    asked = routes.asked(model)[-1].body
    assert asked["messages"] == [{"role": "system", "content": "Be brief."}, _USER]
    assert [each["function"]["name"] for each in asked["tools"]] == ["f", "g"]


_SEARCH = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
_DEFERRED: Json = {"name": "f", "input_schema": _SCHEMA, "defer_loading": True, **_MARKER}
_UNKNOWN: Json = {"top_k": 4, "brand_new": {"a": [1, None]}, "container": "c_1", "mcp_servers": [{"name": "m"}]}


_ABORTED: list[Json] = [
    {"role": "user", "content": [{"type": "text", "text": "Go.", **_MARKER}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "text", "text": "continue", **_MARKER}]},
]


def _marked(result: Json) -> list[Json]:
    made = {"type": "tool_use", "id": "c", "name": "f", "input": {}, **_MARKER}
    return [_USER, {"role": "assistant", "content": [made]}, {"role": "user", "content": [result]}]


@theme.row("req-unknown-stripped")
def _() -> None:
    said = {"role": "user", "content": [{"type": "text", "text": "Hi", "brand_new": 2, **_MARKER}]}
    system = [{"type": "text", "text": "S", **_MARKER}]
    request = ask_messages(tools=(_DEFERRED, _SEARCH), messages=[said], system=system, **_UNKNOWN)
    kept = sent("messages", request)
    assert {name: kept.body[name] for name in _UNKNOWN} == _UNKNOWN
    assert kept.body["tools"] == [_DEFERRED, _SEARCH]
    assert (kept.body["messages"], kept.body["system"]) == ([said], system)
    assert kept.notes == []
    # Between dialects what is lost is listed.
    for kind in ("chat", "responses"):
        lost = [subject for code, subject in sent(kind, request).notes if code == "field_dropped"]
        assert sorted(lost) == sorted((*_UNKNOWN, "cache_control"))
    assert ("tool_dropped", _SEARCH["type"]) in sent("chat", request).notes
    assert [subject for _, subject in sent("messages", ask(seed=7, logit_bias={"1": 2})).notes] == [
        "seed",
        "logit_bias",
    ]
    # A history that was mended, or only looked at, costs nothing of the rest.
    whole = _marked({"type": "tool_result", "tool_use_id": "c", "content": "x"})
    for history, rules in ((_ABORTED, RULES), (whole, ToolRules(parallel=True))):
        kept = sent("messages", ask_messages(tools=(_DEFERRED, _SEARCH), messages=history, **_UNKNOWN), rules)
        assert {name: kept.body.get(name) for name in _UNKNOWN} == _UNKNOWN
        assert kept.body["tools"] == [_DEFERRED, _SEARCH]


@theme.row("cc-cache-control")
def _() -> None:
    inside = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "x", **_MARKER}]}
    outside = {"type": "tool_result", "tool_use_id": "c", "content": "x", **_MARKER}
    tools: tuple[Json, ...] = (
        {"name": "g", "input_schema": _SCHEMA, **_MARKER},
        {"name": "f", "input_schema": _SCHEMA},
    )
    deferred = (*tools, {"name": "h", "input_schema": _SCHEMA, "defer_loading": True})
    for result in (inside, outside):
        request = ask_messages(tools=deferred, messages=_marked(result))
        kept = sent("messages", request).body
        assert (kept["tools"], kept["messages"]) == ([*deferred], _marked(result))
        for kind in ("chat", "responses"):
            assert "cache_control" not in json.dumps(sent(kind, request).body)
    for plain in (ask(tools=("f",)), ask_responses(tools=("f",)), ask_messages(tools=("f",))):
        assert "cache_control" not in json.dumps(sent("messages", plain).body)  # and never added
    # Those of a chat client, and those in a history that was mended, are there too.
    said = {"role": "user", "content": [{"type": "text", "text": "Go.", **_MARKER}]}
    made = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x", **_MARKER}]}
    function: Json = {"type": "function", "function": {"name": "f", "parameters": _SCHEMA}, **_MARKER}
    history = [said, {"role": "assistant", "tool_calls": [made]}, result]
    body = sent("messages", ask(messages=history, tools=(function,))).body
    assert body["messages"][0]["content"] == [{"type": "text", "text": "Go.", **_MARKER}]
    assert body["messages"][2]["content"] == [{"type": "tool_result", "tool_use_id": "c", "content": "x", **_MARKER}]
    assert body["tools"] == [{"name": "f", "input_schema": _SCHEMA, **_MARKER}]
    mended = sent("messages", ask_messages(tools=(_DEFERRED,), messages=_ABORTED)).body
    assert mended["messages"][0] == _ABORTED[0]
    assert mended["messages"][2]["content"][-1] == _ABORTED[2]["content"][0]


_PICTURE: Json = {"type": "image", "source": {"type": "url", "url": "https://example.org/i.png"}, **_MARKER}
_MARKED: dict[str, Json] = {
    "text": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Go.", **_MARKER}]}]},
    "system": {"system": [{"type": "text", "text": "S", **_MARKER}]},
    "result": {"messages": _marked({"type": "tool_result", "tool_use_id": "c", "content": "x", **_MARKER})},
    "image": {"messages": [{"role": "user", "content": [_PICTURE]}]},
}


@pytest.mark.parametrize("kind", ["chat", "responses"])
@pytest.mark.parametrize("place", _MARKED)
def test_a_mark_for_the_cache_that_is_lost_is_noted(place: str, kind: Kind) -> None:
    told = sent(kind, ask_messages(tools=("f",), **_MARKED[place]))
    assert told.notes == [("field_dropped", "cache_control")]


@theme.row("mt-default")
def _() -> None:
    for request in (ask(), ask_responses()):
        assert sent("messages", request).body["max_tokens"] >= 32000
        assert sent("messages", request, max_tokens=64000).body["max_tokens"] == 64000
        assert not {"max_tokens", "max_completion_tokens"} & set(sent("chat", request).body)
    for request in (
        ask(max_tokens=90),
        ask(max_tokens=50, max_completion_tokens=90),
        ask_responses(max_output_tokens=90),
        ask_messages(max_tokens=90),
    ):
        assert sent("messages", request).body["max_tokens"] == 90
        assert sent("chat", request).body["max_tokens"] == 90
        assert sent("chat", request, max_tokens="max_completion_tokens").body["max_completion_tokens"] == 90
        assert sent("responses", request).body["max_output_tokens"] == 90
    # Less than a server takes is raised, and said.
    least = sent("responses", ask(max_tokens=9))
    assert (least.body["max_output_tokens"], least.notes) == (16, [("value_changed", "max_output_tokens")])
    # Where it is too little after all, everybody is told.
    cut = told("messages", began() + use(0, "a", "f", '{"x":').replace(b"_stop", b"_x") + over("max_tokens"))
    assert (cut.calls, cut.said.finish, cut.notes) == ([("a", "f", '{"x":')], "length", ("call_incomplete",))


test_museum = theme.test()
