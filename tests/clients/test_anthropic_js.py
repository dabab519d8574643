"""The TypeScript SDK of Anthropic on servers of every kind: it reads turns, runs tools, and reports what it saw."""

import json
import os
import subprocess
from typing import Any

import pytest

from tests.clients.histories import calls, history, results, thoughts
from tests.clients.servers import KINDS, Block, Breakdown, Count, Item, Json, Refusal, Stop, Thought, Use, Words
from tests.clients.stage import Stage
from tests.clients.test_js_clients import FOLDER, needs_packages
from tests.conftest import needs

WAYS = ("streamed", "plain")
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
EVERY_WAY = pytest.mark.parametrize("way", WAYS)

THOUGHT = Thought("Hm.", "signed==")
FIRST, SECOND = Use("toolu_1", "look", '{"path":"a"}'), Use("toolu_2", "look", '{"path":"ä \\u2603 \\"b\\""}')
TURNS: dict[str, list[Item]] = {
    "text": [Words("Hello, world.")],
    "thought": [THOUGHT, Words("Yes.")],
    "one-call": [FIRST],
    "no-arguments": [Use("toolu_1", "look", "{}")],
    "everything": [THOUGHT, Words("Let me see."), FIRST, SECOND],
}
REFUSALS = {
    "limited": Refusal(429, "rate_limit_error", "Slow down.", {"retry-after": "7"}),
    "overloaded": Refusal(529, "overloaded_error", "Too much to do."),
    "unauthorized": Refusal(401, "authentication_error", "This key is not mine."),
}
BREAKDOWNS: dict[str, list[Item]] = {
    "error-middle": [Words("Half an"), Breakdown("It broke.")],
    "error-after-call": [FIRST, Breakdown("It broke.")],
}
LOOPS = ("history", "runner", "thread")
FOUND: list[Block] = [
    Block({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "heron"}}),
    Block(
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [{"type": "web_search_result", "url": "a:b", "title": "Heron", "encrypted_content": "signed=="}],
        }
    ),
]


@pytest.fixture(scope="module")
def seen(stage: Stage) -> dict[str, Any]:
    needs("node", "npm")
    needs_packages()
    turns = {**TURNS, **REFUSALS, **BREAKDOWNS}
    for name, turn in turns.items():
        stage.script(f"sdk-{name}", turn)
    for loop in (f"{kind}-{loop}-{way}" for kind in KINDS for loop in LOOPS for way in WAYS):
        stage.script(f"sdk-{loop}", [THOUGHT, FIRST, SECOND], [Words("A heron.")])
    stage.script("sdk-count", Count(17))
    stage.script("sdk-parse", [Words('{"bird":"heron"}')])
    stage.script("sdk-search", [*FOUND, Words("A heron.")])
    stage.script("sdk-stop", [Words("It is the "), Stop("heron")])
    stage.script("sdk-beta", [Words("A heron.")])
    command = ["node", "anthropic.mjs", stage.gateway.url, *turns]
    environment = {"PATH": os.environ["PATH"]}
    ended = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    return json.loads(ended.stdout)


# Turns


def block(item: Item) -> Json:
    """What a client shows of an item; whose signature it is, is not its business."""
    match item:
        case Thought(text):
            return {"type": "thinking", "thinking": text}
        case Use(id, name, arguments):
            return {"type": "tool_use", "id": id, "name": name, "input": json.loads(arguments)}
        case Words(text):
            return {"type": "text", "text": text}
        case _:
            raise ValueError(item)


def told(content: list[Json]) -> list[Json]:
    """The blocks without signatures, and without the fields that say nothing in blocks written by the gateway."""
    nothing = {"citations": None, "caller": {"type": "direct"}}
    return [
        {name: value for name, value in block.items() if name != "signature" and nothing.get(name, ()) != value}
        for block in content
    ]


@EVERY_KIND
@EVERY_WAY
@pytest.mark.parametrize("turn", TURNS)
def test_a_turn_arrives_whole(seen: dict[str, Any], kind: str, way: str, turn: str):
    message = seen[kind]["turns"][way][turn]
    assert told(message["content"]) == [block(item) for item in TURNS[turn]]
    ending = "tool_use" if message["content"][-1]["type"] == "tool_use" else "end_turn"
    assert (message["stop_reason"], message["model"]) == (ending, f"{kind}/sdk-{turn}")


@EVERY_KIND
@EVERY_WAY
def test_tokens_are_counted_as_anthropic_counts_them(seen: dict[str, Any], kind: str, way: str):
    usage = seen[kind]["turns"][way]["text"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (12, 8, 5)


@EVERY_KIND
@EVERY_WAY
def test_tokens_of_thoughts_are_counted_apart(seen: dict[str, Any], kind: str, way: str):
    assert seen[kind]["turns"][way]["thought"]["usage"]["output_tokens_details"] == {"thinking_tokens": 2}


@EVERY_KIND
def test_pieces_are_heard_as_they_come(seen: dict[str, Any], kind: str):
    heard = seen[kind]["heard"]
    assert (heard["thinking"], heard["text"]) == (["H", "m."], ["Let m", "e see."])
    assert "".join(heard["inputJson"]) == FIRST.arguments + SECOND.arguments
    assert len(heard["inputJson"]) == 4


# Errors


@EVERY_KIND
@EVERY_WAY
def test_a_rate_limit_says_when_to_come_back(seen: dict[str, Any], kind: str, way: str):
    error = seen[kind]["turns"][way]["limited"]
    assert (error["name"], error["type"], error["wait"]) == ("RateLimitError", "rate_limit_error", "7")
    assert "Slow down." in error["error"]


@EVERY_KIND
@EVERY_WAY
def test_a_key_that_is_not_known_is_an_error_of_its_own(seen: dict[str, Any], kind: str, way: str):
    error = seen[kind]["turns"][way]["unauthorized"]
    assert (error["name"], error["type"]) == ("AuthenticationError", "authentication_error")
    assert "This key is not mine." in error["error"]


@EVERY_KIND
@EVERY_WAY
def test_an_overload_is_an_error_of_its_own(seen: dict[str, Any], kind: str, way: str):
    error = seen[kind]["turns"][way]["overloaded"]
    assert (error["name"], error["type"]) == ("OverloadedError", "overloaded_error")


@EVERY_KIND
@EVERY_WAY
@pytest.mark.parametrize("turn", BREAKDOWNS)
def test_a_turn_that_breaks_is_an_error(seen: dict[str, Any], kind: str, way: str, turn: str):
    error = seen[kind]["turns"][way][turn]
    assert error["type"] == "api_error"
    assert "It broke." in error["error"]


# Tools


def loops(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("loop", [f"{name}-{way}" for name in names for way in WAYS])


@EVERY_KIND
@loops("history", "runner", "thread")
def test_the_answer_to_the_results_arrives(seen: dict[str, Any], kind: str, loop: str):
    assert seen[kind]["loops"][loop] == {"text": "A heron."}


def last_of(stage: Stage, kind: str, loop: str) -> Any:
    return stage.upstream.of(f"sdk-{kind}-{loop}")[-1]


@EVERY_KIND
@loops("history", "runner", "thread")
def test_results_stand_with_their_calls(seen: dict[str, Any], stage: Stage, kind: str, loop: str):
    asked = last_of(stage, kind, loop)
    made = [(use.id, use.name, json.loads(use.arguments)) for use in (FIRST, SECOND)]
    assert calls(asked) == made
    assert results(asked) == [("toolu_1", "a heron"), ("toolu_2", "a heron")]
    assert "Look at a." in json.dumps(history(asked)[0])


@loops("history", "runner")
def test_a_thought_comes_back_to_a_messages_server_as_it_was(seen: dict[str, Any], stage: Stage, loop: str):
    signed = {"type": "thinking", "thinking": "Hm.", "signature": "signed=="}
    assert thoughts(last_of(stage, "messages", loop)) == [signed]


@loops("history", "runner")
def test_a_thought_comes_back_to_a_responses_server_as_it_was(seen: dict[str, Any], stage: Stage, loop: str):
    summary = [{"type": "summary_text", "text": "Hm."}]
    signed = {"type": "reasoning", "id": "rs_0", "summary": summary, "encrypted_content": "signed=="}
    assert thoughts(last_of(stage, "responses", loop)) == [signed]


@EVERY_KIND
@loops("history", "runner")
def test_nothing_is_left_out(seen: dict[str, Any], stage: Stage, kind: str, loop: str):
    assert stage.notes(f"{kind}/sdk-{kind}-{loop}", 2) == [{}, {}]


# Other requests


def test_tokens_are_counted_by_the_server_that_can(seen: dict[str, Any]):
    assert seen["messages"]["counted"] == {"tokens": 17, "notes": None}


@pytest.mark.parametrize("kind", ["responses", "chat"])
def test_tokens_are_estimated_where_nobody_counts(seen: dict[str, Any], kind: str):
    counted = seen[kind]["counted"]
    assert counted["tokens"] > 10
    assert counted["notes"] == '[{"code":"tokens_estimated"}]'


@EVERY_KIND
def test_an_answer_in_a_given_form_is_read(seen: dict[str, Any], stage: Stage, kind: str):
    assert seen[kind]["parsed"] == {"bird": "heron"}
    [asked] = stage.asked("sdk-parse", kind)
    assert {"responses": "text", "chat": "response_format", "messages": "output_config"}[kind] in asked.body
    assert '"bird"' in json.dumps(asked.body)


# What only Messages servers have


@EVERY_WAY
def test_the_search_of_a_messages_server_is_shown(seen: dict[str, Any], way: str):
    assert seen["own"]["searched"][way]["content"] == [
        *(block.fields for block in FOUND),
        {"type": "text", "text": "A heron."},
    ]


@EVERY_WAY
def test_the_word_at_which_a_messages_server_stopped_is_said(seen: dict[str, Any], way: str):
    message = seen["own"]["stopped"][way]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "heron")


def test_betas_are_made_known_to_a_messages_server(seen: dict[str, Any], stage: Stage):
    [asked] = stage.asked("sdk-beta", "messages")
    assert asked.headers["anthropic-beta"] == "context-management-2025-06-27"
