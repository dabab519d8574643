"""Every stream and every plain answer of the Responses endpoint, read strictly: lifecycle, schemas and their agreement.

A situation is a row of `SITUATIONS`: a model and what is asked of it. `make test` takes every pair of situation, tools
and way; `make soak` takes the rest of the product.
"""

from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from tests.sdk.recording_client import GET_TIME, GET_WEATHER, RUN, output_of
from tests.sdk.turns import QUESTION, TURNS
from tests.support.client_readers import Held, Refused, event_faults, hold, shape_faults
from tests.support.pairs import pairwise
from toolwire.backends.demo import MODELS

Json = dict[str, Any]

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

SITUATIONS: dict[str, tuple[str, Json]] = {
    **{model: (model, {}) for model in DEMOS},
    **{turn: (f"up/client-{turn}", {}) for turn in TURNS},
    "rich": ("demo", RICH),
    "history": ("demo", {"input": HISTORY}),
    "not-stored": ("up/client-parallel", {"store": False}),
    "forced": ("demo", {"tool_choice": {"type": "function", "name": "get_time"}}),
    "forced-custom": ("demo", {"tool_choice": {"type": "custom", "name": "run"}}),
    "hosted": ("demo", {"tools": [GET_WEATHER, {"type": "web_search"}]}),
    "nobody": ("nobody", {}),
}
WAYS = {
    "as-usual": {},
    "as-xml": {"x-proxy-output-mode": "obsidian-xml"},
    "extended": {"x-proxy-responses-events": "extended"},
}
CASES = [
    (name, tools, way)
    for name in SITUATIONS
    for tools in (("tools", "no-tools") if name in DEMOS else ("tools",))
    for way in WAYS
]

REFUSED = {"demo-error", "demo-rate-limit", "unauthorized", "overloaded", "nobody"}
BROKEN = {"demo-error-middle", "demo-cut", "error-middle", "error-after-call"}
CUT_SHORT = {"demo-length", "demo-short", "length", "filter"}

Ask = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def ask(base_url: str, http: httpx.Client) -> Ask:
    """Ask the gateway about a situation."""

    def ask(name: str, way: str, tools: str = "tools", **fields: bool) -> httpx.Response:
        model, asked = SITUATIONS[name]
        declared = TOOLS if tools == "tools" else {}
        body = {"model": model, "input": QUESTION, **declared, **asked, **fields}
        return http.post(f"{base_url}/responses", headers=WAYS[way], json=body)

    return ask


def is_begun(name: str, way: str) -> bool:
    """Whether a stream begins. Half a call cannot be shown as XML; an extended stream begins at once."""
    if name in REFUSED:
        return name != "nobody" and way == "extended"
    return not (name == "demo-cut" and way == "as-xml")


@pytest.mark.parametrize(("name", "tools", "way"), pairwise(CASES, "-".join))
def test_a_stream_and_a_plain_answer_are_sound_and_agree(ask: Ask, name: str, tools: str, way: str):
    extended = way == "extended"
    streamed, plain = ask(name, way, tools, stream=True), ask(name, way, tools)
    if is_begun(name, way):
        held = hold(streamed, "responses", stream=True, extended=extended)
        assert event_faults(held.came, extended=extended) == []
        assert held.telemetry is not None
        assert_the_end_is_true(held, name, extended=extended)
    else:
        assert_is_refused(streamed)
    if name in REFUSED | BROKEN:
        assert_is_refused(plain)
    else:
        whole = hold(plain, "responses", stream=False)
        assert shape_faults(whole, "responses", stream=False) == []
        assert comparable(held) == comparable(whole)


def assert_the_end_is_true(held: Held, name: str, *, extended: bool) -> None:
    """The status says how the turn ended, and extended events stand right before the last."""
    waits = extended and "required_action" in held.own
    ended = "failed" if name in REFUSED | BROKEN else "incomplete" if name in CUT_SHORT or waits else "completed"
    assert held.own["status"] == ended
    types = [data["type"] for data in held.came]
    assert types.count("response.required_action") == waits
    if waits:
        assert types[-2:] == ["response.required_action", "response.completed"]
    elif ended == "failed":
        assert types[-2:] == ["error", "response.failed"]


def assert_is_refused(answer: httpx.Response) -> None:
    with pytest.raises(Refused) as refused:
        hold(answer, "responses", stream=False)
    assert refused.value.status >= 400


def comparable(held: Held) -> str:
    """The response and its telemetry without what differs from run to run."""
    own = held.own["id"].removeprefix("resp_")
    shown = {name: value for name, value in held.own.items() if name not in ("created_at", "completed_at")}
    return msgspec.json.encode([shown, held.telemetry], order="sorted").decode().replace(own, "own")


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"background": True, "stream": True}], ids=str)
@pytest.mark.parametrize("name", ["demo", "text", "parallel", "length", "custom", "refusal", "rich", "demo-huge"])
def test_a_replayed_stream_is_as_sound_as_a_fresh_one(
    ask: Ask, base_url: str, http: httpx.Client, name: str, fields: dict[str, bool]
):
    held = hold(ask(name, "as-usual", **fields), "responses", stream="stream" in fields)
    again = http.get(f"{base_url}/responses/{held.own['id']}", params={"stream": "true"})
    replayed = hold(again, "responses", stream=True)
    assert shape_faults(replayed, "responses", stream=True) == []
    assert replayed.own == held.own
