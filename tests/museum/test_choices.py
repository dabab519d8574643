"""More than one choice, and the functions of the old API."""

import json
from typing import Any

from tests.museum.cases import Theme
from tests.museum.clients import read_frames
from tests.museum.gate import Routes, Wire
from tests.museum.lines import answer, ask, part, say, sent_upstream
from tests.museum.routes import KINDS, chunks
from tests.support.frames import call, completed, created, stream, text
from toolwire import ToolCallAggregator

theme = Theme("choices")


def _chunk(choice: int, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": choice, "delta": {"tool_calls": list(calls)}, "finish_reason": None}]}


def _finish(choice: int) -> dict[str, Any]:
    return {"choices": [{"index": choice, "delta": {}, "finish_reason": "tool_calls"}]}


def _called(choices: Any) -> dict[int, list[tuple[str, str]]]:
    """Id and arguments of the calls of each choice; each is finished once."""
    assert sorted((each["index"], each["finish_reason"]) for each in choices) == [(0, "tool_calls"), (1, "tool_calls")]
    return {
        each["index"]: [(call["id"], call["function"]["arguments"]) for call in each["message"]["tool_calls"]]
        for each in choices
    }


def _look_at_two_choices(routes: Routes) -> None:
    turn = chunks(
        _chunk(1, part('{"y":2}', index=0, id="b", name="g")),
        _chunk(0, part('{"x":1}', index=0, id="a", name="f")),
        _finish(1),
        _finish(0),
    )
    streamed = routes.http.post(routes.chat.url, json=routes.chat.body(routes.script("chat", turn), n=2, stream=True))
    told = [value for name, value in read_frames(streamed.content) if name == "data" and value != "[DONE]"]
    choices = [choice for chunk in told for choice in chunk["choices"]]
    deltas = [(each["index"], call) for each in choices for call in each["delta"].get("tool_calls", ())]
    assert {(choice, call["index"]) for choice, call in deltas} == {(0, 0), (1, 0)}
    assert sorted((choice, call["id"]) for choice, call in deltas if "id" in call) == [(0, "a"), (1, "b")]
    assert sorted(each["index"] for each in choices if each["finish_reason"]) == [0, 1]
    made = [
        {"index": at, "finish_reason": "tool_calls", "message": {"role": "assistant", "tool_calls": [call]}}
        for at, call in (
            (1, part('{"y":2}', id="b", type="function", name="g")),
            (0, part('{"x":1}', id="a", type="function", name="f")),
        )
    ]
    reply = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": made}
    plain = routes.chat.plain(routes.script("chat", json.dumps(reply).encode()), n=2)
    assert _called(plain.json()["choices"]) == {0: [("a", '{"x":1}')], 1: [("b", '{"y":2}')]}


@theme.row("choice-idx")
def _(wire: Wire, routes: Routes) -> None:
    aggregator = ToolCallAggregator()
    for chunk in (
        _chunk(1, part('{"y":', index=0, id="b", name="g")),
        _chunk(0, part('{"x":', index=0, id="a", name="f")),
        _chunk(1, part("2}", index=0)),
        _chunk(0, part("1}", index=0)),
        _chunk(0, part("{}", index=1, id="c", name="f")),
    ):
        aggregator.ingest_delta(chunk)
    assert [(each.id, each.arguments) for each in aggregator.snapshot(0)] == [("a", '{"x":1}'), ("c", "{}")]
    assert [(each.id, each.arguments) for each in aggregator.snapshot(1)] == [("b", '{"y":2}')]
    # Only a chat server can give more than one choice, and only chat can tell of it.
    _look_at_two_choices(routes)
    response = wire.plain("demo", n=2)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
    # Responses and Messages have no such thing at all.
    response = wire.responses.plain("demo", n=2)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
    for kind in ("responses", "messages"):
        refusal = routes.chat.plain(f"{kind}/nobody", n=2)
        assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "n")
    refusal = routes.responses.plain("chat/nobody", n=2)
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "n")
    for kind in KINDS:
        refusal = routes.messages.plain(f"{kind}/nobody", n=2)
        assert (refusal.status_code, refusal.json()["error"]["message"][:2]) == (400, "n ")


_FUNCTIONS: list[dict[str, Any]] = [
    {"name": "search", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
]
_HISTORY = [
    {"role": "user", "content": "Go."},
    {"role": "assistant", "content": None, "function_call": {"name": "search", "arguments": '{"q":1}'}},
    {"role": "function", "name": "search", "content": "found"},
    {"role": "assistant", "content": None, "function_call": {"name": "search", "arguments": '{"q":2}'}},
    {"role": "function", "name": "search", "content": "found more"},
]


@theme.row("legacy-fc-request")
def _() -> None:
    fields: dict[str, Any] = {"functions": _FUNCTIONS, "function_call": {"name": "search"}, "messages": _HISTORY}
    sent = sent_upstream(**fields)
    [declared] = sent["tools"]
    assert (declared["type"], declared["name"], declared["description"]) == ("function", "search", "Look.")
    assert sent["tool_choice"] == {"type": "function", "name": "search"}
    calls = [item for item in sent["input"] if item["type"] == "function_call"]
    results = [item for item in sent["input"] if item["type"] == "function_call_output"]
    assert [item["arguments"] for item in calls] == ['{"q":1}', '{"q":2}']
    assert [item["call_id"] for item in calls] == [item["call_id"] for item in results]
    assert len({item["call_id"] for item in calls}) == 2
    assert [item["output"] for item in results] == ["found", "found more"]

    request = ask(**fields)
    called = answer(stream(created(), text("Hm."), call("a", "search", '{"q":', "3}", index=1), completed()), request)
    assert called.message["function_call"] == {"name": "search", "arguments": '{"q":3}'}
    assert "tool_calls" not in called.message
    assert (called.content, called.finish) == ("Hm.", "function_call")
    # The old form has room for one call.
    two = stream(created(), call("a", "search", "{}"), call("b", "search", "{}", index=1), completed())
    capped = answer(two, request)
    assert capped.message["function_call"] == {"name": "search", "arguments": "{}"}
    assert capped.notes == ("call_capped",)
    assert say("Nothing found.", request).finish == "stop"
    modern = ask(tools=("search",), messages=_HISTORY)
    assert answer(stream(created(), call("a", "search", "{}"), completed()), modern).finish == "tool_calls"


test_museum = theme.test()
