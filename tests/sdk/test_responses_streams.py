"""Every stream and every plain answer of the Responses endpoint, byte by byte: the lifecycle and the schemas hold."""

from collections.abc import Callable
from functools import cache
from typing import Any

import httpx
import msgspec
import pytest

from tests.sdk.recording_client import (
    GET_TIME,
    GET_WEATHER,
    RUN,
    output_of,
    read_events,
    schema_faults,
    stream_faults,
)
from tests.sdk.turns import QUESTION, TURNS
from tests.support.checked import responses_faults
from tests.support.schemas import response_errors
from toolwire.backends.demo import MODELS

TOOLS = {"tools": [GET_WEATHER, GET_TIME, RUN]}
SCHEMA = {"type": "json_schema", "name": "weather", "schema": {"type": "object"}, "strict": True}
RICH = {
    "instructions": "Be brief.",
    "metadata": {"a": "b"},
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low", "summary": "auto"},
    "temperature": 0,
    "text": {"format": SCHEMA, "verbosity": "low"},
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_time"}]},
    "top_logprobs": 2,
    "truncation": "auto",
    "include": ["reasoning.encrypted_content"],
}
HISTORY = [
    {"role": "user", "content": QUESTION},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
    output_of("c1", "Sun."),
]
DEMOS = [model for model in MODELS if model not in ("demo-slow", "demo-silent")]  # which take their time

SITUATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **{model: (model, TOOLS) for model in DEMOS},
    **{f"{model}-without-tools": (model, {}) for model in DEMOS},
    **{turn: (f"up/client-{turn}", TOOLS) for turn in TURNS},
    "rich": ("demo", {**TOOLS, **RICH}),
    "history": ("demo", {**TOOLS, "input": HISTORY}),
    "not-stored": ("up/client-parallel", {**TOOLS, "store": False}),
    "forced": ("demo", {**TOOLS, "tool_choice": {"type": "function", "name": "get_time"}}),
    "forced-custom": ("demo", {**TOOLS, "tool_choice": {"type": "custom", "name": "run"}}),
    "hosted": ("demo", {"tools": [GET_WEATHER, {"type": "web_search"}]}),
    "nobody": ("nobody", {}),
}
WAYS = {
    "as-usual": {},
    "as-xml": {"x-proxy-output-mode": "obsidian-xml"},
    "extended": {"x-proxy-responses-events": "extended"},
}


def among(*kinds: str) -> set[str]:
    """These situations, with tools and without."""
    return {name for name in SITUATIONS if name.removesuffix("-without-tools") in kinds}


REFUSED = among("demo-error", "demo-rate-limit", "unauthorized", "overloaded", "nobody")
BROKEN = among("demo-error-middle", "demo-cut", "error-middle", "error-after-call")
CUT_SHORT = among("demo-length", "demo-short", "length", "filter")

EVERYTHING = [(name, way) for name in SITUATIONS for way in WAYS]
# Half a call cannot be shown as XML, so a turn that breaks there has not begun. An extended stream begins at once.
UNBEGUN = [
    (name, way)
    for name, way in EVERYTHING
    if name in among("nobody")
    or (name in REFUSED and way != "extended")
    or (name in among("demo-cut") and way == "as-xml")
]
BEGUN = [each for each in EVERYTHING if each not in UNBEGUN]
FAILED = [(name, way) for name, way in EVERYTHING if name in REFUSED | BROKEN]
WHOLE = [each for each in EVERYTHING if each not in FAILED]

Say = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def say(base_url: str, http: httpx.Client) -> Say:
    """What the gateway answers to a situation, asked once."""

    @cache
    def say(name: str, way: str, **fields: bool) -> httpx.Response:
        model, asked = SITUATIONS[name]
        body = {"model": model, "input": QUESTION, **asked, **fields}
        return http.post(f"{base_url}/responses", headers=WAYS[way], json=body)

    return say


def last_response(answer: httpx.Response) -> dict[str, Any]:
    """The response in the last event of a stream."""
    return read_events(answer.content)[0][-1][1]["response"]


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, way in BEGUN if way != "extended"])
def test_a_stream_keeps_the_lifecycle_and_fits_the_schemas(say: Say, name: str, way: str):
    answer = say(name, way, stream=True)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert not stream_faults(answer.content)


@pytest.mark.parametrize("name", [name for name, way in BEGUN if way == "extended"])
def test_an_extended_stream_keeps_the_lifecycle_and_fits_the_schemas(say: Say, name: str):
    frames, done = read_events(say(name, "extended", stream=True).content)
    assert not responses_faults(frames, done=done, extended=True)
    known = (data for _, data in frames if data["type"] not in ("ping", "response.required_action"))
    # A failure keeps the code of the server, of which the SDK lists only some.
    assert [fault for fault in schema_faults(known) if "$.response.error.code" not in fault] == []


@pytest.mark.parametrize(("name", "way"), BEGUN)
def test_a_stream_ends_with_the_truth(say: Say, name: str, way: str):
    response = last_response(say(name, way, stream=True))
    waits = way == "extended" and "required_action" in response
    expected = "failed" if name in REFUSED | BROKEN else "incomplete" if name in CUT_SHORT or waits else "completed"
    assert response["status"] == expected


@pytest.mark.parametrize(("name", "way"), WHOLE)
def test_a_plain_answer_fits_the_schemas(say: Say, name: str, way: str):
    answer = say(name, way)
    assert answer.headers["content-type"] == "application/json"
    assert response_errors(answer.json()) == []


@pytest.mark.parametrize(("name", "way"), WHOLE)
def test_a_plain_answer_says_what_the_stream_says(say: Say, name: str, way: str):
    def seen(response: dict[str, Any]) -> str:
        own = response["id"].removeprefix("resp_")
        left_out = ("created_at", "completed_at")
        shown = {name: value for name, value in response.items() if name not in left_out}
        return msgspec.json.encode(shown, order="sorted").decode().replace(own, "own")

    assert seen(last_response(say(name, way, stream=True))) == seen(say(name, way).json())


@pytest.mark.parametrize(
    ("name", "way", "stream"), [*((*each, False) for each in FAILED), *((*each, True) for each in UNBEGUN)]
)
def test_a_failure_before_the_answer_is_an_error_object(say: Say, name: str, way: str, stream: bool):
    answer = say(name, way, stream=stream)
    assert answer.status_code >= 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("name", ["demo", "parallel", "error-middle"])
def test_the_extended_events_come_in_their_place(say: Say, name: str):
    types = [data["type"] for _, data in read_events(say(name, "extended", stream=True).content)[0]]
    waits = name != "error-middle"
    assert types.count("response.required_action") == waits
    assert types[-2:] == (["response.required_action", "response.completed"] if waits else ["error", "response.failed"])


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"background": True, "stream": True}], ids=str)
@pytest.mark.parametrize("name", ["demo", "text", "parallel", "length", "custom", "refusal", "rich", "demo-huge"])
def test_a_replayed_stream_is_as_sound_as_a_fresh_one(
    say: Say, base_url: str, http: httpx.Client, name: str, fields: dict[str, bool]
):
    answer = say(name, "as-usual", **fields)
    response = last_response(answer) if "stream" in fields else answer.json()
    again = http.get(f"{base_url}/responses/{response['id']}", params={"stream": "true"})
    assert not stream_faults(again.content)
    assert last_response(again) == response
