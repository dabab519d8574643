"""Tokens between servers that count differently, and the question how many there will be."""

import json
from typing import Any

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.gate import Routes
from tests.museum.lines import cc
from tests.museum.routes import began, chunks, over, text_block, told
from tests.support.upstream import Reply

theme = Theme("usage")

_START = {"input_tokens": 9, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2}
_CACHE = {"cache_read_input_tokens": 5, "cache_creation_input_tokens": 2}
_TELLINGS: list[tuple[Json, Json]] = [
    # what message_start says, and what message_delta says
    (_START, {**_CACHE, "output_tokens": 16}),
    ({**_START, "output_tokens": 1}, {"output_tokens": 16}),
    ({}, {**_START, "output_tokens": 16}),
    ({**_START, "output_tokens": 16}, {}),
    ({"input_tokens": 0}, {**_START, "output_tokens": 16}),
    (_START, {"input_tokens": None, "cache_read_input_tokens": None, "output_tokens": 16}),
]


def counts(usage: Json) -> Json:
    """What was counted: the rest of the fields is null."""
    return {name: value for name, value in usage.items() if value is not None}


@theme.row("use-cache-double")
def _() -> None:
    for start, end in _TELLINGS:
        heard = told("messages", began(start) + text_block(0, "Hi") + over(usage=end))
        chatted = heard.chat.plain["usage"]
        assert (chatted["prompt_tokens"], chatted["completion_tokens"], chatted["total_tokens"]) == (16, 16, 32)
        assert chatted["prompt_tokens_details"]["cached_tokens"] == 5
        responded = heard.responses.plain["usage"]
        assert (responded["input_tokens"], responded["output_tokens"], responded["total_tokens"]) == (16, 16, 32)
        assert responded["input_tokens_details"]["cached_tokens"] == 5
        assert counts(heard.plain["usage"]) == {**_START, "output_tokens": 16}
        assert counts(heard.blocks.usages[-1]) == {**_START, "output_tokens": 16}


_LATE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}


@theme.row("use-anthropic-final")
def _() -> None:
    alone = chunks(cc(content="Hi"), cc(finish="stop"), {"choices": [], "usage": _LATE})
    combined = chunks(cc(content="Hi"), {**cc(finish="stop"), "usage": _LATE})
    for data in (alone, combined):
        heard = told("chat", data)
        first, final = heard.blocks.usages
        assert (first["input_tokens"], first["output_tokens"]) == (0, 0), "nothing was counted yet"
        assert (final["input_tokens"], final["cache_read_input_tokens"], final["output_tokens"]) == (3, 4, 3)
        assert counts(heard.plain["usage"]) == counts(final)


# How many will there be

_SYSTEM = "Be brief. " * 100
_TOOLS: list[Json] = [
    {"name": f"tool_{place}", "description": "Finds things. " * 20, "input_schema": {"type": "object"}}
    for place in range(3)
]
_USED: list[Json] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "tool_0", "input": {"q": "x" * 400}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "y" * 400}]},
]


def _count(routes: Routes, model: str, **fields: Any) -> tuple[int, list[str]]:
    """The number of tokens, and the notes about it."""
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}
    answer = routes.http.post(f"{routes.gateway.base_url}/messages/count_tokens?beta=true", json=body)
    assert answer.status_code == 200, answer.text
    assert [*answer.json()] == ["input_tokens"]
    notes = json.loads(answer.headers.get("x-toolwire-notes", "[]"))
    return answer.json()["input_tokens"], [note["code"] for note in notes]


@theme.row("cnt-tokens")
def _(routes: Routes) -> None:
    # Whoever cannot ask estimates, with all that the model will read, and says so.
    for model in ("demo", "chat/any", "responses/any"):
        bare, noted = _count(routes, model)
        assert noted == ["tokens_estimated"]
        assert 0 < bare < 50
        system, tools, used = (
            _count(routes, model, **more)[0] for more in ({"system": _SYSTEM}, {"tools": _TOOLS}, {"messages": _USED})
        )
        assert min(system, tools, used) > bare + 150
        assert (
            _count(routes, model, system=_SYSTEM, tools=_TOOLS, messages=_USED)[0] >= system + tools + used - 3 * bare
        )
    # Anthropic counts itself, and is asked with all of it.
    model = routes.script("messages", Reply([b'{"input_tokens":728}'], content_type="application/json"))
    assert _count(routes, model, system=_SYSTEM, tools=_TOOLS, messages=_USED) == (728, [])
    [asked] = routes.asked(model)
    assert asked.path == "/v1/messages/count_tokens"
    assert (asked.body["system"], asked.body["tools"], asked.body["messages"]) == (_SYSTEM, _TOOLS, _USED)
    assert "max_tokens" not in asked.body
    # One that does not know the question costs nobody the answer.
    unknown = routes.script("messages", Reply([b'{"error":{"message":"Not Found"}}'], 404, "application/json"))
    assert _count(routes, unknown, system=_SYSTEM)[1] == ["tokens_estimated"]


test_museum = theme.test()
