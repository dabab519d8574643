"""Arguments on every route: text for most, and an object where a protocol takes nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.gate import Routes
from tests.museum.lines import ask, ask_responses, cc, part
from tests.museum.routes import (
    MARKER,
    Kind,
    ask_all,
    ask_messages,
    began,
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
    use,
)
from toolwire.core.request import Request

theme = Theme("arguments")

_USER = {"role": "user", "content": "Go."}
_FOREIGN: tuple[Kind, Kind] = ("chat", "responses")


def _chat_call(arguments: str) -> Json:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


def _called(arguments: str) -> tuple[Request, Request]:
    """A history with one call, of the two clients that have arguments as text."""
    messages = [_USER, {"role": "assistant", "content": None, "tool_calls": [_chat_call(arguments)]}]
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    output = {"type": "function_call_output", "call_id": "c", "output": "ok"}
    return (
        ask(messages=[*messages, {"role": "tool", "tool_call_id": "c", "content": "ok"}], tools=("f",)),
        ask_responses(input=[_USER, item, output], tools=("f",)),
    )


def _called_with(input: Any) -> Request:
    """The same of a Messages client."""
    made = {"type": "tool_use", "id": "c", "name": "f", "input": input}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "ok"}
    return ask_messages(
        messages=[_USER, {"role": "assistant", "content": [made]}, {"role": "user", "content": [result]}]
    )


def _input(request: Request) -> Any:
    """The input of the call, as a Messages server gets it."""
    [made] = sent("messages", request).messages[1]["content"]
    return made["input"]


def _arguments(kind: Kind, request: Request) -> str:
    """The arguments of the call, as a server gets them that takes text."""
    body = sent(kind, request).body
    if kind == "chat":
        return body["messages"][1]["tool_calls"][0]["function"]["arguments"]
    return body["input"][1]["arguments"]


@theme.row("args-start-input")
def _(routes: Routes) -> None:
    reply = completion({"content": None, "tool_calls": [_chat_call('{"x":1}')]}, "tool_calls")
    answered = told_plainly("chat", reply)  # the reading insists on an empty input at the start
    assert answered.calls == [("c", "f", '{"x":1}')]
    assert answered.steps == [("start", 0), ("delta", 0), ("stop", 0)]
    model = routes.script("chat", json.dumps(reply).encode())
    for door in routes.doors:
        assert door.stream(model).said.calls == (("c", "f", '{"x":1}'),)
    # So too where a server of its own dialect puts everything there.
    whole = {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}}
    start, stop = use(0, "c", "f").split(b"\n\n")[:2]
    filled = start.replace(b'"input": {}', b'"input": {"x":1}') + b"\n\n" + stop + b"\n\n"
    for each in (told("messages", began() + filled + over("tool_use")), told_plainly("messages", message(whole))):
        assert [json.loads(arguments) for _, _, arguments in each.calls] == [{"x": 1}]
        assert ("delta", 0) in each.steps


_TWICE = json.dumps(json.dumps({"city": "X"}))


@theme.row("args-double-encoded")
def _(routes: Routes) -> None:
    plain = completion({"tool_calls": [_chat_call(_TWICE)]}, "tool_calls")
    for client in (ask(), ask_responses()):
        for heard in (
            hear("chat", chunks(cc(part(_TWICE, index=0, id="c", name="f")), cc(finish="tool_calls")), client),
            hear_plain("chat", plain, client),
            hear("messages", began() + use(0, "c", "f", _TWICE[:7], _TWICE[7:]) + over("tool_use"), client),
        ):
            assert heard.said.calls == (("c", "f", _TWICE),)
    for request in _called(_TWICE):
        assert [_arguments(kind, request) for kind in _FOREIGN] == [_TWICE] * 2
    # Where a protocol takes an object only, the one inside is it.
    for request in _called(_TWICE):
        assert _input(request) == {"city": "X"}
        assert sent("messages", request).notes == []
    [made] = routes.messages.plain(routes.script("chat", json.dumps(plain).encode())).json()["content"]
    assert made["input"] == {"city": "X"}
    # A layer inside is nobody's business.
    nested = {"where": '{"city":"X"}'}
    for request in (*_called(json.dumps(nested)), _called_with(nested)):
        assert _input(request) == nested
        assert [json.loads(_arguments(kind, request)) for kind in _FOREIGN] == [nested] * 2


def test_a_messages_client_that_streams_gets_the_object_inside_a_string(routes: Routes) -> None:
    reply = completion({"tool_calls": [_chat_call(_TWICE)]}, "tool_calls")
    [(_, _, arguments)] = routes.messages.stream(routes.script("chat", json.dumps(reply).encode())).said.calls
    assert json.loads(arguments) == {"city": "X"}


@pytest.mark.parametrize("text", ["[1]", '"words"', "3"])
def test_what_holds_no_object_is_not_unwrapped_into_one(text: str) -> None:
    for request in (*_called(text), *_called(json.dumps(text))):
        assert MARKER in _input(request)


def _look_at_broken_history(routes: Routes, broken: str) -> None:
    """Where an object is needed it travels inside one, with a note, and comes back out of it."""
    for request in _called(broken):
        assert _input(request) == {MARKER: broken}
        assert sent("messages", request).notes == [("arguments_wrapped", "c")]
        assert [_arguments(kind, request) for kind in _FOREIGN] == [broken] * 2
        assert sent("chat", request).notes == []
    returned = _called_with({MARKER: broken})
    assert [_arguments(kind, returned) for kind in _FOREIGN] == [broken] * 2
    assert _input(returned) == {MARKER: broken}
    model = routes.script("messages", json.dumps(message({"type": "text", "text": "Sorry."})).encode())
    made = {"role": "assistant", "content": None, "tool_calls": [_chat_call(broken)]}
    history = [_USER, made, {"role": "tool", "tool_call_id": "c", "content": "bad JSON"}]
    plain = routes.chat.plain(model, ("f",), messages=history)
    assert routes.chat.said(plain).text == "Sorry."
    assert json.loads(plain.headers["x-toolwire-notes"]) == [{"code": "arguments_wrapped", "subject": "c"}]
    assert routes.chat.stream(model, ("f",), messages=history).said.text == "Sorry."


@theme.row("args-truncated-history")
def _(routes: Routes) -> None:
    _look_at_broken_history(routes, '{"service":"checkout"')


@theme.row("args-malformed-eager")
def _() -> None:
    broken = '{"names": cronjob}'
    streamed = told("messages", began() + use(0, "t1", "f", '{"names": cro', "njob}") + over("tool_use"))
    assert (streamed.calls, streamed.said.finish) == ([("t1", "f", broken)], "tool_calls")
    [made] = streamed.plain["content"]
    assert made["input"] == {MARKER: broken}
    # The calls around it are not touched by it.
    among = told("messages", began() + use(0, "a", "f", broken) + use(1, "b", "g", '{"x":1}') + over("tool_use"))
    assert among.calls == [("a", "f", broken), ("b", "g", '{"x":1}')]
    assert [each["input"] for each in among.plain["content"]] == [{MARKER: broken}, {"x": 1}]
    chatted = told("chat", chunks(cc(part(broken, index=0, id="t1", name="f")), cc(finish="tool_calls")))
    assert (chatted.calls, chatted.plain["content"]) == (streamed.calls, [{**made, "caller": {"type": "direct"}}])


def test_the_marker_is_documented() -> None:
    pages = (Path(__file__).parents[2] / "docs").rglob("*.md")
    assert any(MARKER in page.read_text() for page in pages)


@theme.row("json-nan")
def _() -> None:
    big = '{"x":1,"big":123456789012345678901234567890}'
    for arguments in ('{"x":NaN,"big":123456789012345678901234567890}', '{"x":-Infinity}'):
        words = f'<tool_call>{{"name":"f","arguments":{arguments}}}</tool_call>'
        for answered in (
            told("chat", chunks(cc(content=words), cc(finish="stop")), ask_all("f")),
            told("messages", began() + text_block(0, words) + over("end_turn"), ask_all("f")),
        ):
            assert (answered.said.text, answered.calls, answered.said.finish) == (words, [], "stop")
            assert answered.notes == ("text_block_kept",)
        for made in (
            told("chat", chunks(cc(part(arguments, index=0, id="c", name="f")), cc(finish="tool_calls"))),
            told("messages", began() + use(0, "c", "f", arguments) + over("tool_use")),
        ):
            assert made.calls == [("c", "f", arguments)]
            assert made.plain["content"][0]["input"] == {MARKER: arguments}
        for request in _called(arguments):
            assert _input(request) == {MARKER: arguments}
    block = f'<tool_call>{{"name":"f","arguments":{big}}}</tool_call>'
    for answered in (
        told("chat", chunks(cc(content=block), cc(finish="stop")), ask_all("f")),
        told("chat", chunks(cc(part(big, index=0, id="c", name="f")), cc(finish="tool_calls"))),
        told("messages", began() + use(0, "c", "f", big) + over("tool_use")),
    ):
        assert [arguments for _, _, arguments in answered.calls] == [big]
        assert answered.plain["content"][0]["input"]["big"] == 123456789012345678901234567890
    for request in _called(big):
        assert _input(request)["big"] == 123456789012345678901234567890


test_museum = theme.test()
