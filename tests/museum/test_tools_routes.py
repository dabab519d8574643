"""Tools that are not functions, on servers that know nothing else: lowered on the way there, restored on the way back."""

import json
from typing import Any

import pytest

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.gate import Door, Routes
from tests.museum.lines import ask, ask_responses, cc, part
from tests.museum.routes import (
    Kind,
    ask_messages,
    began,
    chunks,
    completion,
    message,
    over,
    sent,
    tools_sent,
    types_of,
    use,
)
from toolwire.assembly import ToolRules
from toolwire.core.errors import BadRequest

theme = Theme("tools")

_FOREIGN: tuple[Kind, Kind] = ("chat", "messages")
_USER = {"role": "user", "content": "Go."}
_GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"}
_PATCH: Json = {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": _GRAMMAR}
_NESTED: Json = {"type": "custom", "custom": {"name": "apply_patch", "description": "Patches.", "format": _GRAMMAR}}


def _calling(kind: Kind, *calls: tuple[str, str, str], step: int = 4) -> bytes:
    """A turn of these calls, as a server streams it, a few characters at a time."""
    if kind == "messages":
        return (
            began()
            + b"".join(use(at, id, name, *_cut(text, step)) for at, (id, name, text) in enumerate(calls))
            + over("tool_use")
        )
    told = [
        chunk
        for at, (id, name, text) in enumerate(calls)
        for chunk in (
            cc(part("", index=at, id=id, name=name)),
            *(cc(part(piece, index=at)) for piece in _cut(text, step)),
        )
    ]
    return chunks(*told, cc(finish="tool_calls"))


def _cut(text: str, step: int) -> list[str]:
    return [text[place : place + step] for place in range(0, len(text), step)]


def _plainly(kind: Kind, *calls: tuple[str, str, str]) -> bytes:
    """The same as a plain reply."""
    if kind == "messages":
        used = [{"type": "tool_use", "id": id, "name": name, "input": json.loads(text)} for id, name, text in calls]
        return json.dumps(message(*used, reason="tool_use")).encode()
    made = [{"id": id, "type": "function", "function": {"name": name, "arguments": text}} for id, name, text in calls]
    return json.dumps(completion({"content": None, "tool_calls": made}, "tool_calls")).encode()


@theme.row("cu-format-dropped")
def _(routes: Routes) -> None:
    for request in (ask_responses(tools=(_PATCH,)), ask(tools=(_PATCH,)), ask(tools=(_NESTED,))):
        for kind in _FOREIGN:
            [function] = tools_sent(kind, request)
            assert (function["name"], [*function["parameters"]["properties"]]) == ("apply_patch", ["input"])
            assert function["parameters"]["properties"]["input"]["type"] == "string"
            assert function["parameters"]["required"] == ["input"]
            assert function["description"].startswith("Patches.")
            assert "start: /.+/s" in function["description"]
    text = '*** Begin "Patch"\n+ {}\n\\é😀'
    for kind in _FOREIGN:
        for arguments in (json.dumps({"input": text}), json.dumps({"input": text}, ensure_ascii=False)):
            for reply in (
                _calling(kind, ("c", "apply_patch", arguments)),
                _plainly(kind, ("c", "apply_patch", arguments)),
            ):
                model = routes.script(kind, reply)
                for door, tool in ((routes.chat, _NESTED), (routes.responses, _PATCH)):
                    for said in (door.stream(model, (tool,)).said, door.said(door.plain(model, (tool,)))):
                        assert (said.calls, said.finish) == ((("c", "apply_patch", text),), "tool_calls")
                [item] = routes.responses.stream(model, (_PATCH,)).received.output
                assert (item["type"], item["input"]) == ("custom_tool_call", text)


@theme.row("cu-history")
def _() -> None:
    called = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "x", "status": "completed"}
    custom = {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}
    function = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
    made = {"id": "c1", "type": "custom", "custom": {"name": "apply_patch", "input": "x"}}
    chatted = ask(
        messages=[
            _USER,
            {"role": "assistant", "tool_calls": [made]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        ],
        tools=(_NESTED,),
    )
    for request in (
        ask_responses(input=[_USER, called, custom], tools=(_PATCH,)),
        ask_responses(input=[_USER, called, function], tools=(_PATCH,)),  # families are not paired across silently
        ask_responses(input=[_USER, called, custom]),  # nor need it be declared any more
        chatted,
    ):
        _, assistant, result = sent("chat", request).messages
        [written] = assistant["tool_calls"]
        assert (written["type"], written["function"]["name"]) == ("function", "apply_patch")
        assert json.loads(written["function"]["arguments"]) == {"input": "x"}
        assert result == {"role": "tool", "tool_call_id": "c1", "content": "ok"}
        _, assistant, result = sent("messages", request).messages
        assert assistant["content"] == [
            {"type": "tool_use", "id": "c1", "name": "apply_patch", "input": {"input": "x"}}
        ]
        assert result["content"] == [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]
    # A result of one family does not answer another call of the other.
    both = ask_responses(
        input=[_USER, called, {**called, "type": "function_call", "call_id": "c2", "arguments": "{}"}, custom]
    )
    assert [message.get("tool_call_id") for message in sent("chat", both).messages[2:]] == ["c1", "c2"]
    assert sent("chat", both).codes == ["result_missing"]


_HOSTED: list[Json] = [{"type": "web_search"}, {"type": "image_generation"}]
_REJECT = ToolRules(unsupported="reject")


@theme.row("bi-reject-all")
def _(routes: Routes) -> None:
    dropped = [{"code": "tool_dropped", "subject": each["type"]} for each in _HOSTED]
    doors: tuple[Door, Door] = (routes.chat, routes.responses)
    for kind in _FOREIGN:
        model = routes.script(kind, _calling(kind, ("c", "shell", "{}")))
        for door in doors:
            plain = door.plain(model, ("shell", *_HOSTED))
            streamed = door.stream(model, ("shell", *_HOSTED))
            for said in (door.said(plain), streamed.said):
                assert [name for _, name, _ in said.calls] == ["shell"]
            assert json.loads(plain.headers["x-toolwire-notes"]) == dropped
            assert streamed.telemetry["notes"] == dropped
            assert len(routes.asked(model)[-1].body["tools"]) == 1
            asked = len(routes.asked(model))
            forced = door.plain(model, ("shell", *_HOSTED), tool_choice={"type": "web_search"})
            assert (forced.status_code, forced.json()["error"]["param"]) == (400, "tool_choice")
            assert len(routes.asked(model)) == asked
        for request in (ask(tools=("shell", *_HOSTED)), ask_responses(tools=("shell", *_HOSTED))):
            with pytest.raises(BadRequest, match="web_search") as refused:
                sent(kind, request, _REJECT)
            assert refused.value.param == "tools"
    # Hosted by one vendor is not hosted by the other.
    search = {"type": "web_search_20250305", "name": "web_search"}
    request = ask_messages(tools=("shell", search))
    assert sent("messages", request).body["tools"][1] == search
    assert sent("chat", request).notes == [("tool_dropped", "web_search_20250305")]
    # A chat server that is known to run some gets those, from clients that speak as it does.
    hosting = sent("chat", ask(tools=("shell", *_HOSTED)), hosts=["web_search"])
    assert types_of(hosting.body["tools"]) == ["function", "web_search"]
    assert hosting.notes == [("tool_dropped", "image_generation")]


def _namespace(name: str, *tools: str) -> Json:
    functions = [{"type": "function", "name": tool, "parameters": {"type": "object"}} for tool in tools]
    return {"type": "namespace", "name": name, "description": f"Tools of {name}.", "tools": functions}


_DOCS, _MAIL = _namespace("mcp__docs__", "search", "open"), _namespace("mcp__mail__", "search")


def _restored(routes: Routes, model: str, *tools: Json) -> list[list[tuple[str, Any]]]:
    """Name and namespace of each call, wherever a Responses client reads them."""
    told = routes.responses.stream(model, tools).received
    plain = routes.responses.plain(model, tools).json()
    added, done = ([event["item"] for event in told.of(f"output_item.{type}")] for type in ("added", "done"))
    return [
        [(item["name"], item.get("namespace")) for item in items]
        for items in (added, done, told.output, plain["output"])
    ]


@theme.row("ns-not-restored")
def _(routes: Routes) -> None:
    names = ["mcp__docs____search", "mcp__docs____open", "mcp__mail____search"]
    spaces = [("search", "mcp__docs__"), ("open", "mcp__docs__"), ("search", "mcp__mail__")]
    items = [
        {"type": "function_call", "call_id": f"c{at}", "name": name, "namespace": space, "arguments": "{}"}
        for at, (name, space) in enumerate(spaces)
    ]
    outputs = [{"type": "function_call_output", "call_id": item["call_id"], "output": "ok"} for item in items]
    request = ask_responses(tools=(_DOCS, _MAIL), input=[_USER, *items, *outputs])
    for kind in _FOREIGN:
        assert [function["name"] for function in tools_sent(kind, request)] == names
        calls = [(f"c{at}", name, "{}") for at, name in enumerate(names)]
        for reply in (_calling(kind, *calls), _plainly(kind, *calls)):
            model = routes.script(kind, reply)
            assert _restored(routes, model, _DOCS, _MAIL) == [spaces] * 4
    # They return as the server knows them.
    assistant = sent("chat", request).messages[1]
    assert [call["function"]["name"] for call in assistant["tool_calls"]] == names
    blocks = sent("messages", request).messages[1]["content"]
    assert (types_of(blocks), [block["name"] for block in blocks]) == (["tool_use"] * 3, names)
    # A bare name, which only one namespace has, can mean that one alone.
    for kind in _FOREIGN:
        model = routes.script(kind, _calling(kind, ("c", "search", "{}")))
        assert _restored(routes, model, _DOCS) == [[("search", "mcp__docs__")]] * 4


@theme.row("bi-fail-closed")
def _(routes: Routes) -> None:
    model = routes.script("messages", json.dumps(message({"type": "text", "text": "Hi"})).encode())
    unreadable: list[tuple[Door, Any, str]] = [
        *((door, [{"type": "function"}], "tools[0]") for door in (routes.chat, routes.responses)),
        *((door, [{"type": "foo"}, {"type": "custom"}], "tools[1]") for door in (routes.chat, routes.responses)),
        (routes.messages, [{"type": "custom"}], "tools[0]"),
        (routes.messages, [{"name": "f", "input_schema": {}}, {"description": "D"}], "tools[1]"),
        (routes.messages, ["f"], "tools[0]"),
        (routes.messages, {}, "tools"),
    ]
    for door, tools, param in unreadable:
        refused = routes.http.post(door.url, json={**door.body(model), "tools": tools})
        assert refused.status_code == 400, (door.path, tools)
        error = refused.json()["error"]
        assert error["message"].startswith(param)
        assert door is routes.messages or error["param"].startswith(param)
    assert routes.asked(model) == []
    strange = {"type": "foo", "name": "f"}
    for request in (ask(tools=(strange,)), ask_responses(tools=(strange,))):
        assert sent("messages", request).notes == [("tool_dropped", "foo")]
        with pytest.raises(BadRequest, match="foo"):
            sent("messages", request, _REJECT)
    for door in (routes.chat, routes.responses):
        noted = door.plain(model, (strange,))
        assert json.loads(noted.headers["x-toolwire-notes"]) == [{"code": "tool_dropped", "subject": "foo"}]
    # Its own server is asked, and answers for itself.
    assert sent("messages", ask_messages(tools=(strange,))).body["tools"] == [strange]


test_museum = theme.test()
