"""openai-node, the Vercel AI SDK and LangChain JS on the Responses endpoint: turns, tool loops, and extended events."""

import functools
import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.clients.loops import SEAL, item, loop, types
from tests.clients.test_js_clients import FOLDER, NOW, PARIS, ROME, SNOW, needs_packages
from tests.conftest import needs
from tests.sdk.turns import ANSWER, RESULT
from tests.support.upstream import Upstream

Reports = Callable[[str], dict[str, Any]]


class Turn(msgspec.Struct, frozen=True):
    text: str = ""
    calls: tuple[dict[str, Any], ...] = ()
    status: str = "completed"
    finish: str = "stop"
    """What the AI SDK calls the end."""


TURNS = {
    "text": Turn("Hello, world."),
    "reasoning": Turn("Done."),
    "one-call": Turn("", (PARIS,), finish="tool-calls"),
    "parallel": Turn("", (PARIS, ROME), finish="tool-calls"),
    "interleaved": Turn("", (PARIS, ROME), finish="tool-calls"),
    "no-arguments": Turn("", (NOW,), finish="tool-calls"),
    "text-and-call": Turn("One moment.", (PARIS,), finish="tool-calls"),
    "call-and-text": Turn("Let us see.", (PARIS,), finish="tool-calls"),
    "unicode": Turn("", (SNOW,), finish="tool-calls"),
    "custom": Turn("", ({"id": "c1", "name": "run", "arguments": "print(1)"},)),
    "refusal": Turn("I will not.", finish="content-filter"),
    "length": Turn("And then", status="incomplete", finish="length"),
    "filter": Turn("Well", status="incomplete", finish="content-filter"),
}
ERRORS = {
    "error-middle": "It broke.",
    "error-after-call": "It broke.",
    "unauthorized": "This key is not mine.",
    "overloaded": "Too much to do.",
}
WAYS = {
    "openai": ("helper", "events", "plain"),
    "ai-sdk": ("streamed", "whole"),
    "langchain": ("streamed", "whole"),
}
LOOPS = {
    "openai": tuple(f"{how}-{way}" for how in ("history", "previous") for way in WAYS["openai"]),
    "ai-sdk": tuple(f"{how}-{way}" for how in ("stored", "unstored") for way in WAYS["ai-sdk"]),
    "langchain": WAYS["langchain"],
}
NOT_SHOWN = {"ai-sdk": ("custom",), "langchain": ("custom", "refusal")}
"""What a client has no word for, or another one."""

WHOLE_TURNS = [
    pytest.param(client, way, turn, id=f"{client}-{way}-{turn}")
    for client, ways in WAYS.items()
    for way in ways
    for turn in TURNS
    if turn not in NOT_SHOWN.get(client, ())
]
BROKEN_TURNS = [
    pytest.param(client, way, turn, id=f"{client}-{way}-{turn}")
    for client, ways in WAYS.items()
    for way in ways
    for turn in ERRORS
]
ALL_LOOPS = [pytest.param(client, name, id=f"{client}-{name}") for client, names in LOOPS.items() for name in names]


@pytest.fixture(scope="module")
def reports(base_url: str, upstream: Upstream) -> Reports:
    """What a client saw of everything; it is asked once."""
    needs("node", "npm")
    needs_packages()
    for client, names in LOOPS.items():
        for name in names:
            replies = loop(f"{client}_{name}".replace("-", "_"), "get_weather", '{"city":"Paris"}', "It is sunny.")
            upstream.replies[f"{client}-{name}"] = replies

    @functools.cache
    def report(client: str) -> dict[str, Any]:
        command = ["node", f"responses-{client}.mjs", base_url, *TURNS, *ERRORS]
        environment = {"PATH": os.environ["PATH"]}
        ended = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, timeout=60, check=False)
        assert ended.returncode == 0, ended.stderr.decode()
        return json.loads(ended.stdout)

    return report


# Turns


@pytest.mark.parametrize(("client", "way", "turn"), WHOLE_TURNS)
def test_a_turn_arrives_whole(reports: Reports, client: str, way: str, turn: str):
    expected = TURNS[turn]
    end = expected.finish if client == "ai-sdk" else expected.status
    seen = {"text": expected.text, "calls": list(expected.calls), "end": end}
    assert reports(client)["turns"][way][turn] == seen


@pytest.mark.parametrize(("client", "way", "turn"), BROKEN_TURNS)
def test_an_error_is_seen_as_an_error(reports: Reports, client: str, way: str, turn: str):
    assert ERRORS[turn] in reports(client)["turns"][way][turn].get("error", "")


# Tool loops


@pytest.mark.parametrize(("client", "name"), ALL_LOOPS)
def test_the_demo_model_answers_from_a_tool_result(reports: Reports, client: str, name: str):
    assert reports(client)["loops"][name]["demo"].get("text") == ANSWER


@pytest.mark.parametrize(("client", "name"), ALL_LOOPS)
def test_the_answer_to_a_tool_result_arrives(reports: Reports, client: str, name: str):
    assert reports(client)["loops"][name]["scripted"].get("text") == "It is sunny."


@pytest.mark.parametrize(("client", "name"), ALL_LOOPS)
def test_the_model_is_shown_the_whole_loop_in_order(reports: Reports, upstream: Upstream, client: str, name: str):
    reports(client)
    first, second = upstream.of(f"{client}-{name}")
    assert types(first) == ["user"]
    assert types(second) == ["user", "reasoning", "function_call", "function_call_output"]
    assert item(second, "function_call")["arguments"] == '{"city":"Paris"}'
    assert item(second, "function_call_output")["call_id"] == item(second, "function_call")["call_id"]
    assert item(second, "function_call_output")["output"] == RESULT


@pytest.mark.parametrize(("client", "name"), ALL_LOOPS)
def test_reasoning_comes_back_with_its_seal(reports: Reports, upstream: Upstream, client: str, name: str):
    reports(client)
    assert item(upstream.of(f"{client}-{name}")[1], "reasoning")["encrypted_content"] == SEAL


@pytest.mark.parametrize(("client", "name"), ALL_LOOPS)
def test_state_stays_with_the_gateway(reports: Reports, upstream: Upstream, client: str, name: str):
    reports(client)
    for asked in upstream.of(f"{client}-{name}"):
        assert asked.body["store"] is False
        assert "previous_response_id" not in asked.body


@pytest.mark.parametrize("name", LOOPS["ai-sdk"])
def test_the_ai_sdk_needs_two_steps(reports: Reports, name: str):
    assert reports("ai-sdk")["loops"][name]["scripted"].get("steps") == 2


@pytest.mark.parametrize(
    ("name", "reasoning"),
    [(name, "item_reference" if name.startswith("stored") else "reasoning") for name in LOOPS["ai-sdk"]],
)
def test_the_ai_sdk_refers_to_reasoning_that_is_stored(reports: Reports, name: str, reasoning: str):
    sent = reports("ai-sdk")["loops"][name]["scripted"]["sent"]
    assert sent == [["message"], ["message", reasoning, "function_call", "function_call_output"]]


# Extended events


def test_the_stream_helper_reads_the_usual_events(reports: Reports):
    seen = reports("openai")["usual"]["helper"]
    assert "error" not in seen
    assert seen["types"][-1] == "response.completed"


def test_the_stream_helper_gives_up_on_extended_events(reports: Reports):
    assert "response.required_action" in reports("openai")["extended"]["helper"].get("error", "")


def test_only_extended_events_tell_of_a_required_action(reports: Reports):
    usual, extended = (reports("openai")[kind]["events"]["types"] for kind in ("usual", "extended"))
    assert "response.required_action" not in usual
    assert [type for type in extended if type != "response.required_action"] == usual
    assert extended[-2:] == ["response.required_action", "response.completed"]
