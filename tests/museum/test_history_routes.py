"""Histories in the words of every server: calls and results stay paired, adjacent and in order."""

import json
from typing import Any

import pytest

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.gate import Routes
from tests.museum.lines import ask, ask_responses
from tests.museum.routes import MARKER, Kind, ask_messages, completion, message, sent, tools_sent, types_of
from toolwire.adapt.history import NO_RESULT
from toolwire.assembly import ToolRules
from toolwire.core.errors import BadRequest
from toolwire.core.request import Request

theme = Theme("history")

_USER = {"role": "user", "content": "Go."}
_STRICT = ToolRules(history="strict")
_FOREIGN: tuple[Kind, Kind] = ("chat", "messages")


# The same pieces of a history, in the words of each client


def _call(id: str, arguments: str = "{}") -> Json:
    return {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}


def _made(*ids: str, text: str | None = None) -> Json:
    return {"role": "assistant", "content": text, "tool_calls": [_call(id) for id in ids]}


def _result(id: str, content: Any = "ok") -> Json:
    return {"role": "tool", "tool_call_id": id, "content": content}


def _item(id: str, arguments: str = "{}") -> Json:
    return {"type": "function_call", "call_id": id, "name": "f", "arguments": arguments}


def _output(id: str, output: Any = "ok") -> Json:
    return {"type": "function_call_output", "call_id": id, "output": output}


def _used(id: str) -> Json:
    return {"type": "tool_use", "id": id, "name": "f", "input": {}}


def _block(id: str, content: Any = "ok") -> Json:
    return {"type": "tool_result", "tool_use_id": id, "content": content}


def _in_chat(*history: Json) -> Request:
    return ask(messages=[_USER, *history], tools=("f",))


def _in_responses(*history: Json) -> Request:
    return ask_responses(input=[_USER, *history], tools=("f",))


def _in_messages(*turns: list[Json]) -> Request:
    """Turns of blocks, of the assistant and the user by turns."""
    told = [
        {"role": role, "content": turn} for role, turn in zip(("assistant", "user") * len(turns), turns, strict=False)
    ]
    return ask_messages(messages=[_USER, *told], tools=("f",))


def _outline(kind: Kind, request: Request) -> list[Any]:
    """What a server gets after the opening message: who speaks, which calls, which results, in order."""
    _, *messages = sent(kind, request).messages
    if kind == "chat":
        return [
            (each["role"], each.get("tool_call_id") or [call["id"] for call in each.get("tool_calls", ())])
            for each in messages
        ]
    return [
        (each["role"], "text" if isinstance(each["content"], str) else [_named(block) for block in each["content"]])
        for each in messages
    ]


def _named(block: Json) -> str:
    return block.get("id") or block.get("tool_use_id") or block["type"]


def _results(kind: Kind, request: Request) -> list[Any]:
    """The contents of the results that a server gets."""
    messages = sent(kind, request).messages
    if kind == "chat":
        return [each["content"] for each in messages if each["role"] == "tool"]
    blocks: list[Json] = [block for each in messages[1:] if each["role"] != "system" for block in each["content"]]
    return [block["content"] for block in blocks if block["type"] == "tool_result"]


_ABORTED = (
    (_in_chat(_made("c1"), {"role": "user", "content": "continue"}), "messages"),
    (_in_responses(_item("c1"), {"role": "user", "content": "continue"}), "input"),
    (_in_messages([_used("c1")], [{"type": "text", "text": "continue"}]), "messages"),
)


@theme.row("hx-missing-result")
def _() -> None:
    for request, field in _ABORTED:
        assert _outline("chat", request) == [("assistant", ["c1"]), ("tool", "c1"), ("user", [])]
        assert _outline("messages", request) == [("assistant", ["c1"]), ("user", ["c1", "text"])]
        placeholder, _ = sent("messages", request).messages[2]["content"]
        assert placeholder["is_error"] is True
        for kind in _FOREIGN:
            assert _results(kind, request) == [NO_RESULT]
            assert sent(kind, request).notes == [("result_missing", "c1")]
            with pytest.raises(BadRequest, match="c1") as refused:
                sent(kind, request, _STRICT)
            assert refused.value.param == field
    orphaned = _in_messages([{"type": "text", "text": "Hm."}], [_block("c9"), {"type": "text", "text": "Hi"}])
    assert _outline("messages", orphaned) == [("assistant", ["text"]), ("user", ["text"])]
    assert sent("chat", orphaned).notes == [("result_dropped", "c9")]


@theme.row("hx-split-assistants")
def _() -> None:
    for request in (
        _in_responses(_item("c0"), _item("c1"), _output("c0"), _output("c1")),
        _in_chat(_made("c0", "c1"), _result("c0"), _result("c1")),
        _in_messages([_used("c0"), _used("c1")], [_block("c0"), _block("c1")]),
    ):
        assert _outline("chat", request) == [("assistant", ["c0", "c1"]), ("tool", "c0"), ("tool", "c1")]
        assert _outline("messages", request) == [("assistant", ["c0", "c1"]), ("user", ["c0", "c1"])]
        assert [sent(kind, request).notes for kind in _FOREIGN] == [[], []]
    # Two batches stay two.
    twice = _in_responses(_item("c0"), _output("c0"), _item("c1"), _output("c1"))
    assert [role for role, _ in _outline("chat", twice)] == ["assistant", "tool", "assistant", "tool"]
    assert [role for role, _ in _outline("messages", twice)] == ["assistant", "user", "assistant", "user"]


@theme.row("hx-multipart-rs")
def _() -> None:
    said = {"type": "text", "text": "Let me look."}
    request = _in_messages([said, _used("a"), _used("b")], [_block("a"), _block("b")])
    _, *items = sent("responses", request).body["input"]
    assert [(item["type"], item.get("call_id")) for item in items] == [
        ("message", None),
        ("function_call", "a"),
        ("function_call", "b"),
        ("function_call_output", "a"),
        ("function_call_output", "b"),
    ]
    assert items[0]["content"] == [{"type": "output_text", "text": "Let me look."}]
    assert sent("chat", request).messages[1] == _made("a", "b", text="Let me look.")


_TOOLS = [{"type": "function", "name": "late"}]
_UNKNOWN: list[Json] = [
    {"type": "additional_tools", "role": "developer", "id": "at_1", "tools": _TOOLS},
    {"type": "tool_search_call", "id": "ts_1", "call_id": "s1", "execution": "client", "arguments": {"q": 1}},
    {"type": "tool_search_output", "id": "to_1", "call_id": "s1", "status": "completed", "tools": _TOOLS},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "of its own origin"},
    {"type": "brand_new", "content": 3},
]


_REPLIES: dict[Kind, Json] = {
    "chat": completion({"content": "Hi"}),
    "messages": message({"type": "text", "text": "Hi"}),
}


@theme.row("rs-unknown-input")
def _(routes: Routes) -> None:
    history = [*_UNKNOWN[:2], _item("c"), *_UNKNOWN[2:], _output("c")]
    dropped = [("item_dropped", item["type"]) for item in _UNKNOWN[3:]]  # a search is a call with a result
    roles = {"chat": ["user", "assistant", "tool", "tool"], "messages": ["user", "assistant", "user"]}
    for kind in _FOREIGN:
        request = _in_responses(*history)
        assert [each["role"] for each in sent(kind, request).messages] == roles[kind]
        assert all(each.get("content") or each.get("tool_calls") for each in sent(kind, request).messages)
        assert sent(kind, request).notes == dropped
        assert [tool["name"] for tool in tools_sent(kind, request)] == ["f", "late"]
        model = routes.script(kind, json.dumps(_REPLIES[kind]).encode())
        plain = routes.responses.plain(model, ("f",), input=[_USER, *history])
        assert routes.responses.said(plain).text == "Hi"
        noted = [(note["code"], note["subject"]) for note in json.loads(plain.headers["x-toolwire-notes"])]
        assert noted == dropped
        assert [each["role"] for each in routes.asked(model)[-1].body["messages"]] == roles[kind]
        # What refers to something that nobody keeps is refused.
        lost = routes.responses.plain(model, input=[_USER, {"type": "item_reference", "id": "msg_9"}])
        assert (lost.status_code, lost.json()["error"]["param"]) == (404, "input[1]")


@theme.row("args-json-history-400")
def _() -> None:
    broken = '{"path":"x","error_retry:: 240}'
    made = {"role": "assistant", "content": None, "tool_calls": [_call("c", broken)]}
    for request in (_in_chat(made, _result("c")), _in_responses(_item("c", broken), _output("c"))):
        [used] = sent("messages", request).messages[1]["content"]
        assert used["input"] == {MARKER: broken}  # nothing is guessed, nothing is lost
        assert sent("messages", request).notes == [("arguments_wrapped", "c")]
        assert sent("chat", request).messages[1]["tool_calls"] == [_call("c", broken)]


_PNG = "data:image/png;base64,AA"


@theme.row("hx-output-array")
def _() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    request = _in_responses(_item("c"), _output("c", parts))
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert (_results("chat", request), _results("messages", request)) == (["a\nb"], [texts])
    for same in (_in_chat(_made("c"), _result("c", texts)), _in_messages([_used("c")], [_block("c", texts)])):
        assert (_results("chat", same), _results("messages", same)) == (["a\nb"], [texts])
    for output, written in (({"a": [1]}, '{"a": [1]}'), (3, "3"), (1.5, "1.5"), (True, "true")):
        other = _in_responses(_item("c"), _output("c", output))
        assert (_results("chat", other), _results("messages", other)) == ([written], [written])  # JSON once
    # An image goes where the server has a place for it, and no further than its own result.
    image = _in_responses(_item("c"), _output("c", [*parts, {"type": "input_image", "image_url": _PNG}]))
    [shown] = _results("messages", image)
    assert types_of(shown) == ["text", "text", "image"]
    assert shown[2]["source"] == {"type": "base64", "media_type": "image/png", "data": "AA"}
    _, _, result, seen = sent("chat", image).messages
    assert (result["role"], seen["role"]) == ("tool", "user")
    assert result["content"].startswith("a\nb\n")
    assert seen["content"][-1]["image_url"]["url"] == _PNG


@theme.row("hx-empty-result")
def _() -> None:
    nothings: list[Any] = ["", [], None]
    for nothing in nothings:
        for request in (
            _in_chat(_made("c"), _result("c", nothing)),
            _in_responses(_item("c"), _output("c", nothing)),
            _in_messages([_used("c")], [_block("c", nothing)]),
        ):
            assert _outline("chat", request) == [("assistant", ["c"]), ("tool", "c")]
            assert _results("chat", request) == [""]
            told = sent("chat", request, empty_result="(no output)").messages[-1]
            assert told == _result("c", "(no output)")
            assert _outline("messages", request) == [("assistant", ["c"]), ("user", ["c"])]
            assert not _results("messages", request)[0]
            if request.dialect != "messages":  # whose own words stand
                [told] = sent("messages", request, empty_result="(no output)").messages[2]["content"]
                assert told == _block("c", "(no output)")
            assert [sent(kind, request).notes for kind in _FOREIGN] == [[], []]


@theme.row("hx-dev-between")
def _() -> None:
    plan = {"role": "developer", "content": "plan…"}
    for request in (
        _in_responses(_item("c1"), plan, _output("c1")),
        _in_chat(_made("c1"), plan, _result("c1")),
        ask_messages(messages=[
            _USER, {"role": "assistant", "content": [_used("c1")]}, {"role": "system", "content": "plan…"},
            {"role": "user", "content": [_block("c1")]},
        ]),
    ):  # fmt: skip
        assert _outline("chat", request) == [("assistant", ["c1"]), ("tool", "c1"), ("system", [])]
        assert sent("chat", request).messages[-1]["content"] == "plan…"
        assert sent("chat", request, developer=True).messages[-1] == plan
        if request.dialect == "messages":  # whose role it has in the middle, where the model takes it
            assert _outline("messages", request) == [("assistant", ["c1"]), ("user", ["c1"]), ("system", "text")]
            assert sent("messages", request).messages[-1]["content"] == "plan…"
        else:
            assert _outline("messages", request) == [("assistant", ["c1"]), ("user", ["c1", "text"])]
            assert "plan…" in sent("messages", request).messages[-1]["content"][-1]["text"]
        assert [sent(kind, request).notes for kind in _FOREIGN] == [[("result_moved", "c1")]] * 2
        assert [_results(kind, request) for kind in _FOREIGN] == [["ok"], ["ok"]]
    # So too with a batch, of which one came in time.
    batch = _in_responses(_item("c1"), _item("c2"), _output("c1"), plan, _output("c2"))
    assert _outline("chat", batch) == [("assistant", ["c1", "c2"]), ("tool", "c1"), ("tool", "c2"), ("system", [])]


test_museum = theme.test()
