"""Calls in a row on their way to a Messages server."""

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.lines import ask, ask_responses
from tests.museum.routes import ask_messages, sent
from toolwire.core.request import Request

theme = Theme("history")

_USER: Json = {"role": "user", "content": "Go."}
_IDS = ("c0", "c1")


def _items(*, between: Json | None = None) -> list[Json]:
    """Two calls and their outputs, as Responses has them, with something in between."""
    calls: list[Json] = [{"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"} for id in _IDS]
    outputs: list[Json] = [{"type": "function_call_output", "call_id": id, "output": "ok"} for id in _IDS]
    return [_USER, calls[0], *([between] if between else []), calls[1], *outputs]


def _blank(words: str) -> Json:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": words}]}


def _chatted() -> list[Json]:
    """The same of a chat client that wrote a message for each call."""
    calls: list[Json] = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in _IDS]
    results: list[Json] = [{"role": "tool", "tool_call_id": id, "content": "ok"} for id in _IDS]
    return [_USER, *({"role": "assistant", "content": "", "tool_calls": [each]} for each in calls), *results]


def _used() -> list[Json]:
    return [{"type": "tool_use", "id": id, "name": "f", "input": {}} for id in _IDS]


def _answered() -> list[Json]:
    return [{"type": "tool_result", "tool_use_id": id, "content": "ok"} for id in _IDS]


def _is_one_batch(request: Request) -> None:
    told = sent("messages", request)
    assert [message["role"] for message in told.body["messages"]] == ["user", "assistant", "user"]
    _, assistant, results = told.body["messages"]
    assert assistant == {"role": "assistant", "content": _used()}, request.dialect
    assert results == {"role": "user", "content": _answered()}
    assert told.codes == []


@theme.row("hx-split-anthropic")
def _() -> None:
    messages = [_USER, {"role": "assistant", "content": _used()}, {"role": "user", "content": _answered()}]
    _is_one_batch(ask_responses(input=_items(), tools=("f",)))
    _is_one_batch(ask(messages=_chatted(), tools=("f",)))
    _is_one_batch(ask_messages(messages=messages, tools=("f",)))
    for words in ("", " \n"):  # a blank message separates nothing
        _is_one_batch(ask_responses(input=_items(between=_blank(words)), tools=("f",)))


test_museum = theme.test()
