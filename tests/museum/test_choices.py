"""More than one choice, and the functions of the old API."""

from typing import Any

import pytest

from tests.museum.cases import Theme
from tests.museum.gate import Wire
from tests.museum.lines import answer, ask, chat_json, part, say, sent_upstream
from tests.support.frames import call, completed, created, stream, text
from toolwire import ToolCallAggregator
from toolwire.core.errors import BadRequest
from toolwire.dialects import chat

theme = Theme("choices")


def _chunk(choice: int, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": choice, "delta": {"tool_calls": list(calls)}}]}


@theme.row("choice-idx")
def _(wire: Wire) -> None:
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
    # Only a chat backend can give more than one choice; there is none yet.
    with pytest.raises(BadRequest, match="n must be 1") as refused:
        chat.decode_request(chat_json(n=2))
    assert refused.value.param == "n"
    response = wire.plain("demo", n=2)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
    # Responses has no such thing at all.
    response = wire.responses.plain("demo", n=2)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")


_FUNCTIONS = [{"name": "search", "description": "Look.", "parameters": {"type": "object", "properties": {}}}]
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
    called = answer(stream(created(), text("Hm."), call("a", "search", '{"q":', "3}", place=1), completed()), request)
    assert called.message["function_call"] == {"name": "search", "arguments": '{"q":3}'}
    assert "tool_calls" not in called.message
    assert (called.content, called.finish) == ("Hm.", "function_call")
    # The old form has room for one call.
    two = stream(created(), call("a", "search", "{}"), call("b", "search", "{}", place=1), completed())
    capped = answer(two, request)
    assert capped.message["function_call"] == {"name": "search", "arguments": "{}"}
    assert capped.notes == ("call_capped",)
    assert say("Nothing found.", request).finish == "stop"
    modern = ask(tools=("search",), messages=_HISTORY)
    assert answer(stream(created(), call("a", "search", "{}"), completed()), modern).finish == "tool_calls"


test_museum = theme.test()
