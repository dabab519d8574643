"""Custom tools behind servers that know functions only, and tools that a server runs itself."""

import json

import pytest

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.gate import Routes
from tests.museum.lines import RULES, ask, ask_responses, cc, part
from tests.museum.routes import (
    ask_all,
    ask_messages,
    began,
    block,
    chunks,
    completion,
    hear,
    hear_plain,
    message,
    over,
    sent,
    text_block,
    told,
    told_plainly,
    types_of,
    use,
)
from toolwire.assembly import ToolRules, drop_hosted_tools
from toolwire.core.errors import BadRequest
from toolwire.core.request import Request

theme = Theme("tools")

_USER: Json = {"role": "user", "content": "Go."}

# Custom tools

_PATCH = {"type": "custom", "name": "apply_patch"}
_CLIENTS = (ask(tools=(_PATCH,)), ask_responses(tools=(_PATCH,)))
"""The dialects that have custom tools."""


def _chunks(*pieces: str) -> bytes:
    """A chat server that calls apply_patch with these pieces of arguments."""
    first, *rest = pieces
    grown = [cc(part(piece, index=0)) for piece in rest]
    return chunks(cc(part(first, index=0, id="c", name="apply_patch")), *grown, cc(finish="tool_calls"))


def _message(*pieces: str) -> bytes:
    """A Messages server that does."""
    return began() + use(0, "c", "apply_patch", *pieces) + over("tool_use")


_WORDS = '*** Begin Patch\n+ "é" 😀\\\n*** End Patch'
_WRAPPED = json.dumps({"input": _WORDS})


@theme.row("cu-not-unwrapped")
def _() -> None:
    for request in _CLIENTS:
        for tell, kind in ((_chunks, "chat"), (_message, "messages")):
            assert _input(kind, tell(*_WRAPPED), request) == _WORDS, "letter by letter: escapes and pairs are cut"
            for alias in ("patch", "content"):
                assert _input(kind, tell(json.dumps({alias: "x"})), request) == "x"
    made = {"id": "c", "type": "function", "function": {"name": "apply_patch", "arguments": _WRAPPED}}
    plain = completion({"tool_calls": [made]}, "tool_calls")
    for request in _CLIENTS:
        assert hear_plain("chat", plain, request).said.calls == (("c", "apply_patch", _WORDS),)
    # A Responses client is told as of any custom call, and while it is written.
    patched = hear("chat", _chunks('{"input":"*** Begin', " Patch\\n", 'x"}'), _CLIENTS[1]).received
    assert [item["type"] for item in patched.output] == ["custom_tool_call"]
    deltas = [event["delta"] for event in patched.of("custom_tool_call_input.delta")]
    assert deltas == ["*** Begin", " Patch\n", "x"]
    assert "function_call_arguments.delta" not in patched.types
    # What is no JSON is the text itself.
    for request in _CLIENTS:
        for tell, kind in ((_chunks, "chat"), (_message, "messages")):
            assert _input(kind, tell("*** Begin", " Patch"), request) == "*** Begin Patch"


def _input(kind: str, data: bytes, request: Request) -> str:
    """The input of the one call that is all of the answer, and is whole."""
    heard = hear(kind, data, request)
    [(id, name, text)] = heard.said.calls
    assert (id, name, heard.said.finish) == ("c", "apply_patch", "tool_calls")
    assert heard.turn.calls[0].kind == "custom"
    return text


# Tools of the server, in the history

_SEARCHED: list[Json] = [
    {"type": "server_tool_use", "id": "ws", "name": "web_search", "input": {"query": "x"}},
    {"type": "web_search_tool_result", "tool_use_id": "ws", "content": []},
]


def _searched(id: str = "a") -> list[Json]:
    """A Messages history: the model called a tool of the client, and then searched the web."""
    used: Json = {"type": "tool_use", "id": id, "name": "f", "input": {}}
    content = [{"type": "text", "text": "T"}, used, *_SEARCHED]
    result = {"type": "tool_result", "tool_use_id": id, "content": "ok"}
    return [_USER, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]


_SEARCHED_ITEMS: list[Json] = [
    _USER,
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "T"}]},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "function_call_output", "call_id": "a", "output": "ok"},
]


_SEARCHES = b"".join(
    (
        began(),
        text_block(0, "T"),
        block(1, {**_SEARCHED[0], "input": {}}, {"type": "input_json_delta", "partial_json": '{"query":"x"}'}),
        block(2, _SEARCHED[1]),
        use(3, "a", "f", "{}"),
        over("tool_use"),
    )
)
_SEARCHES_PLAINLY = message(
    {"type": "text", "text": "T"},
    *_SEARCHED,
    {"type": "tool_use", "id": "a", "name": "f", "input": {}},
    reason="tool_use",
)


@theme.row("ord-server-tool")
def _() -> None:
    for id in ("a", "functions.f:0"):  # the second has to be renamed, which changes nothing else
        _, assistant, _ = sent("messages", ask_messages(messages=_searched(id), tools=("f",))).messages
        assert types_of(assistant["content"]) == ["text", "tool_use", *types_of(_SEARCHED)]
    assert sent("messages", ask_messages(messages=_searched(), tools=("f",))).messages == _searched(), "as received"
    # From other dialects the call of the client comes last, and its result at once.
    called = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chatted = [_USER, {"role": "assistant", "content": "T", "tool_calls": [called]}]
    chatted += [{"role": "tool", "tool_call_id": "a", "content": "ok"}]
    for request in (ask_responses(input=_SEARCHED_ITEMS, tools=("f",)), ask(messages=chatted, tools=("f",))):
        rebuilt = sent("messages", request)
        _, assistant, user = rebuilt.messages
        assert types_of(assistant["content"]) == ["text", "tool_use"]
        assert types_of(user["content"]) == ["tool_result"]
        assert rebuilt.codes == (["item_dropped"] if request.dialect == "responses" else [])
    # Other servers get the pair without what they could not read.
    lowered = sent("chat", ask_messages(messages=_searched(), tools=("f",)))
    assert [each["role"] for each in lowered.messages] == ["user", "assistant", "tool"]
    assert lowered.codes == ["item_dropped"] * 2
    lowered = sent("responses", ask_messages(messages=_searched(), tools=("f",)))
    assert types_of(lowered.body["input"]) == ["message", "message", "function_call", "function_call_output"]
    assert lowered.codes == ["item_dropped"] * 2
    # In an answer the call of the client is the only one, and its own clients see the others in their place.
    for answered in (told("messages", _SEARCHES, ask_all("f")), told_plainly("messages", _SEARCHES_PLAINLY)):
        assert answered.calls == [("a", "f", "{}")]
        assert (answered.said.text, answered.said.finish) == ("T", "tool_calls")
        assert answered.block_types == ["text", *types_of(_SEARCHED), "tool_use"]
        assert answered.messages.notes == ()


# Tools of one vendor's server at another's

_SEARCH: Json = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
_ANSWERS = {
    "chat": chunks(cc(content="From memory."), cc(finish="stop")),
    "messages": began() + text_block(0, "From memory.") + over(),
}


def _dropped(type: str) -> list[Json]:
    return [{"code": "tool_dropped", "subject": type}]


def _names(body: Json) -> list[str]:
    return [tool.get("name") or tool["function"]["name"] for tool in body.get("tools", ())]


@theme.row("bi-server-tool-dead")
def _(routes: Routes) -> None:
    # Its own server may be asked for it by name.
    forced = sent("messages", ask_messages(tools=(_SEARCH,), tool_choice={"type": "tool", "name": "web_search"}))
    assert forced.body["tool_choice"] == {"type": "tool", "name": "web_search"}
    assert forced.body["tools"] == [_SEARCH]
    # Dropped, and said: streamed, plain, with other tools and alone.
    for tools, left in ((("f", _SEARCH), ["f"]), ((_SEARCH,), [])):
        model = routes.script("chat", _ANSWERS["chat"])
        streamed = routes.messages.stream(model, tools)
        plain = routes.messages.plain(model, tools)
        assert streamed.said.text == routes.messages.said(plain).text == "From memory."
        assert streamed.telemetry["notes"] == json.loads(plain.headers["x-toolwire-notes"]) == _dropped(_SEARCH["type"])
        assert [_names(asked.body) for asked in routes.asked(model)] == [left] * 2
    # Anthropic gets its own, and nobody else's.
    model = routes.script("messages", _ANSWERS["messages"])
    routes.messages.plain(model, ("f", _SEARCH))
    assert routes.asked(model)[-1].body["tools"][1] == _SEARCH
    for door in (routes.chat, routes.responses):
        noted = door.plain(model, ("f", {"type": "web_search"}))
        assert json.loads(noted.headers["x-toolwire-notes"]) == _dropped("web_search")
        assert _names(routes.asked(model)[-1].body) == ["f"]
    # Where the operator prefers it, refused.
    request = ask_messages(tools=("f", _SEARCH))
    with pytest.raises(BadRequest, match="web_search_20250305") as refused:
        drop_hosted_tools(request, ToolRules(unsupported="reject"))
    assert refused.value.param == "tools"
    assert drop_hosted_tools(request, RULES).hosted_tools == ()


test_museum = theme.test()
