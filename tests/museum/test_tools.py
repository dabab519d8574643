"""Tools that are not functions: custom ones, namespaces, and those that a server runs itself."""

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
    sent_for,
    sent_upstream,
)
from tests.support.frames import call_item, completed, created, rs, stream, text
from toolwire.assembly import ToolRules, apply_rules, drop_hosted_tools
from toolwire.core.errors import BadRequest

theme = Theme("tools")

_GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"}
_PATCH = {"type": "custom", "name": "apply_patch", "format": _GRAMMAR}
_NESTED = {
    "name": "apply_patch",
    "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /.+/s"}},
}


def _custom(input: str, **fields: Any) -> Json:
    return {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c", "name": "apply_patch", "input": input, **fields}


def _custom_call(*pieces: str) -> bytes:
    where = {"item_id": "ctc_1", "output_index": 0}
    return stream(
        rs("output_item.added", output_index=0, item=_custom("")),
        *(rs("custom_tool_call_input.delta", delta=piece, **where) for piece in pieces),
        rs("custom_tool_call_input.done", input="".join(pieces), **where),
        rs("output_item.done", output_index=0, item=_custom("".join(pieces))),
    )


@theme.row("cu-format-dropped")
def _() -> None:
    assert sent_for(ask_responses(tools=(_PATCH,)))["tools"] == [_PATCH]
    # Chat puts the grammar one level deeper.
    for spelled in (_PATCH, {"type": "custom", "custom": {"name": "apply_patch", "format": _GRAMMAR}}):
        assert sent_upstream(tools=(spelled,))["tools"] == [_PATCH]
    assert sent_upstream(tools=({"type": "custom", "custom": _NESTED},))["tools"] == [_PATCH]
    pieces = '*** Begin "Patch"\n', "+ {}\n", "😀"
    turn = stream(created(), _custom_call(*pieces), completed())
    for answered in (
        answer(turn, ask(tools=(_PATCH,))),
        answer(stream(created(), completed([_custom("".join(pieces))]))),
    ):
        assert answered.calls == [("c", "apply_patch", "".join(pieces))]
        [item] = answered.response["output"]
        assert (item["type"], item["input"]) == ("custom_tool_call", "".join(pieces))


_HISTORY: list[Json] = [
    {"role": "user", "content": "Go."},
    {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "x", "status": "completed"},
    {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
]


def _mended(*items: Json) -> tuple[list[tuple[str, str]], list[str]]:
    """What becomes of a history: its items by type and call, and the notes."""
    request = apply_rules(ask_responses(input=list(items)), RULES)
    sent = [(item["type"], item["call_id"]) for item in sent_for(request)["input"] if "call_id" in item]
    return sent, [note.code for note in request.notes]


@theme.row("cu-history")
def _() -> None:
    assert sent_for(apply_rules(ask_responses(input=_HISTORY), RULES))["input"] == _HISTORY
    # Each family has its own form of output: one that came in the other's is put right.
    user, called, output = _HISTORY
    function = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
    expected = [("custom_tool_call", "c1"), ("custom_tool_call_output", "c1")]
    assert _mended(user, called, output) == (expected, [])
    sent, notes = _mended(user, called, function)
    assert sent == expected
    assert notes == ["result_retyped"]


@theme.row("cu-chat-shape")
def _() -> None:
    turn = stream(created(), _custom_call("*** ", "Begin"), completed())
    flat, nested = {"type": "custom", "name": "apply_patch"}, {"type": "custom", "custom": {"name": "apply_patch"}}
    for declared in (flat, nested):
        answered = answer(turn, ask(tools=(declared,)))
        custom = {"name": "apply_patch", "input": "*** Begin"}
        assert answered.message["tool_calls"] == [{"id": "c", "type": "custom", "custom": custom}]
        assert answered.finish == "tool_calls"
        assert sent_upstream(tools=(declared,))["tools"] == [flat]
        named = {"type": "custom", "custom": {"name": "apply_patch"}}
        for choice in (named, flat):
            assert sent_upstream(tools=(declared,), tool_choice=choice)["tool_choice"] == flat
    made = {"id": "c", "type": "custom", "custom": {"name": "apply_patch", "input": "x"}}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]
    assert sent_upstream(messages=messages)["input"][1:] == [
        {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
    ]


_HOSTED: list[Json] = [{"type": "web_search"}, {"type": "image_generation"}]


@theme.row("bi-reject-all")
def _(wire: Wire) -> None:
    dropped = [{"code": "tool_dropped", "subject": each["type"]} for each in _HOSTED]
    for door in wire.doors:
        plain = door.plain("demo-parallel", ("shell", *_HOSTED))
        assert [name for _, name, _ in door.said(plain).calls] == ["shell"] * 3
        assert json.loads(plain.headers["x-toolwire-notes"]) == dropped
        streamed = door.stream("demo-parallel", ("shell", *_HOSTED))
        assert [name for _, name, _ in streamed.said.calls] == ["shell"] * 3
        assert streamed.telemetry["notes"] == dropped
        forced = door.plain("demo", ("shell", *_HOSTED), tool_choice={"type": "web_search"})
        assert forced.status_code == 400, "what was dropped cannot be forced"
        assert forced.json()["error"]["param"] == "tool_choice"
    for request in (ask(tools=("shell", *_HOSTED)), ask_responses(tools=("shell", *_HOSTED))):
        with pytest.raises(BadRequest, match="web_search") as refused:
            drop_hosted_tools(request, ToolRules(unsupported="reject"))
        assert refused.value.param == "tools"


@theme.row("bi-silent-drop")
def _() -> None:
    search = {"type": "web_search", "filters": {"allowed_domains": ["example.org"]}, "brand_new": 1}
    for sent in (
        sent_upstream(tools=(search,), tool_choice={"type": "web_search"}),
        sent_for(ask_responses(tools=(search,), tool_choice={"type": "web_search"})),
    ):
        assert sent["tools"] == [search]
        assert sent["tool_choice"] == {"type": "web_search"}
    # What it leaves in the answer reaches a client that has a place for it, and is noted for one that has not.
    item = {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "x"}}
    where = {"item_id": "ws_1", "output_index": 0}
    turn = stream(
        created(),
        rs("output_item.added", output_index=0, item={**item, "status": "in_progress"}),
        *(rs(f"web_search_call.{state}", **where) for state in ("in_progress", "searching", "completed")),
        rs("output_item.done", output_index=0, item={**item, "status": "completed"}),
        text("Found.", "msg_1", 1),
        completed(),
    )
    answered = answer(turn, ask(tools=(search,)))
    assert (answered.content, answered.notes) == ("Found.", ("item_dropped",))
    told = answered.received
    assert [each["type"] for each in told.output] == ["web_search_call", "message"]
    assert [each for each in told.types if each.startswith("web_search_call.")] == [
        "web_search_call.in_progress",
        "web_search_call.searching",
        "web_search_call.completed",
    ]


def _namespace(name: str, *tools: str) -> Json:
    functions = [{"type": "function", "name": tool, "parameters": {"type": "object"}} for tool in tools]
    return {"type": "namespace", "name": name, "description": f"Tools of {name}.", "tools": functions}


_NAMESPACES = (_namespace("mcp__docs__", "search", "open"), _namespace("mcp__mail__", "search"))


@theme.row("ns-not-restored")
def _(wire: Wire) -> None:
    request = ask_responses(tools=_NAMESPACES)
    assert sent_for(request)["tools"] == [*_NAMESPACES]
    spaces = "mcp__docs__", "mcp__mail__"
    items = [call_item(f"c{place}", "search", "{}", f"fc_{place}", namespace=each) for place, each in enumerate(spaces)]
    streamed = stream(
        created(),
        *(
            stream(
                rs("output_item.added", output_index=place, item={**item, "arguments": ""}),
                rs("function_call_arguments.delta", item_id=item["id"], output_index=place, delta="{}"),
                rs("output_item.done", output_index=place, item=item),
            )
            for place, item in enumerate(items)
        ),
        completed(),
    )
    whole = stream(created(), completed(items))
    for turn in (streamed, whole):
        for rules in (RULES, ToolRules(dedup=True), ToolRules(output_mode="obsidian-xml")):
            told = answer_responses(turn, request, rules)
            calls = [item for item in told.output if item["type"] == "function_call"]
            assert [(item["name"], item["namespace"]) for item in calls] == [("search", each) for each in spaces]
            for type in ("output_item.added", "output_item.done"):
                found = [event["item"] for event in told.of(type) if event["item"]["type"] == "function_call"]
                assert [item["namespace"] for item in found] == [*spaces]
    capped = answer_responses(streamed, request, ToolRules(max_calls=1))
    assert [item["namespace"] for item in capped.output] == ["mcp__docs__"]
    # They return as they were.
    history = [{"role": "user", "content": "Go."}, *items]
    history += [{"type": "function_call_output", "call_id": item["call_id"], "output": "ok"} for item in items]
    assert sent_for(apply_rules(ask_responses(input=history), RULES))["input"] == history
    output = wire.responses.plain("demo", _NAMESPACES[1:], tool_choice="required").json()["output"]
    assert [item["namespace"] for item in output if item["type"] == "function_call"] == ["mcp__mail__"]


@theme.row("bi-fail-closed")
def _(wire: Wire) -> None:
    unreadable: list[tuple[Any, str]] = [
        ([{"type": "function"}], "tools[0]"),
        ([{"type": "custom"}], "tools[0]"),
        ([{"type": "web_search"}, {"name": "f"}], "tools[1]"),
        (["f"], "tools[0]"),
        ({}, "tools"),
    ]
    for tools, param in unreadable:
        for door in wire.doors:
            refused = wire.http.post(door.url, json={**door.body("demo"), "tools": tools})
            assert refused.status_code == 400, (door.path, tools)
            assert refused.json()["error"]["param"].startswith(param)
    inner = [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}, {"type": "function"}]}]
    refused = wire.responses.plain("demo", inner)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools[0].tools[1].name")
    strange = {"type": "foo", "name": "f"}
    for request in (ask(tools=(strange,)), ask_responses(tools=(strange,))):
        with pytest.raises(BadRequest, match="foo"):
            drop_hosted_tools(request, ToolRules(unsupported="reject"))
    for door in wire.doors:
        noted = door.plain("demo", (strange,))
        assert json.loads(noted.headers["x-toolwire-notes"]) == [{"code": "tool_dropped", "subject": "foo"}]


test_museum = theme.test()
