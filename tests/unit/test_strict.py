"""The strict services of the tests: a sound request has nothing against it, and every rule has a request it refuses."""

import copy
import json
from collections.abc import Callable
from functools import reduce
from operator import getitem
from typing import Any

import pytest

from tests.support.scripts import Name
from tests.support.strict import RULES, refusals

Json = dict[str, Any]
ISSUED = {"SEAL": "Hm.", "HIDDEN": ""}
SCHEMA: Json = {"type": "object", "properties": {}}

CHAT: Json = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": [{"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}} for id in ("a", "b")]},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    ],
    "tools": [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}],
    "tool_choice": "auto",
}  # fmt: skip
RESPONSES: Json = {
    "model": "m",
    "store": False,
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "SEAL"},
        {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
    ],
    "tools": [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}],
    "tool_choice": "auto",
}
MESSAGES: Json = {
    "model": "m",
    "max_tokens": 4096,
    "system": "Be brief.",
    "thinking": {"type": "enabled", "budget_tokens": 2048},
    "messages": [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "SEAL"},
            {"type": "redacted_thinking", "data": "HIDDEN"},
            {"type": "text", "text": "So."},
            {"type": "tool_use", "id": "a", "name": "look", "input": {}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "1"}, {"type": "text", "text": "Now?"}]},
    ],
    "tools": [{"name": "look", "input_schema": SCHEMA}],
}  # fmt: skip
SOUND: dict[Name, Json] = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}


def _steps(path: str) -> list[Any]:
    return [int(step) if step.isdigit() else step for step in path.split(".")]


def put(path: str, value: Any) -> Callable[[Json], None]:
    """Sets what is at a path like `messages.1.content`."""
    *way, last = _steps(path)

    def change(body: Json) -> None:
        reduce(getitem, way, body)[last] = value

    return change


def drop(path: str) -> Callable[[Json], None]:
    """Removes what is at a path."""
    *way, last = _steps(path)

    def change(body: Json) -> None:
        del reduce(getitem, way, body)[last]

    return change


BROKEN: list[tuple[Name, str, Callable[[Json], None]]] = [
    ("chat", "tools", drop("tools")),
    ("chat", "tools", put("tools", [])),
    ("chat", "tools", put("tool_choice", {"type": "function", "function": {"name": "seek"}})),
    ("chat", "name", put("tools.0.function.name", "a.b")),
    ("chat", "name", put("tools.0.function.name", "x" * 65)),
    ("chat", "name", put("tools", CHAT["tools"] * 2)),
    ("chat", "name", put("messages.2.tool_calls.0.function.name", "a b")),
    ("chat", "stream-options", put("stream_options", {"include_usage": True})),
    ("chat", "stop", put("stop", ["a", "b", "c", "d", "e"])),
    ("chat", "temperature", put("temperature", 2.5)),
    ("chat", "calls", put("messages.2.tool_calls", [])),
    ("chat", "content", put("messages.2", {"role": "assistant", "content": None})),
    ("chat", "content", put("messages.1.content", None)),
    ("chat", "content", put("messages.3.content", [{"type": "image_url", "image_url": {"url": "https://x"}}])),
    ("chat", "id", put("messages.2.tool_calls.0.id", "x" * 41)),
    ("chat", "arguments", put("messages.2.tool_calls.0.function.arguments", {})),
    ("chat", "pairs", drop("messages.4")),
    ("chat", "pairs", drop("messages.2")),
    ("chat", "pairs", put("messages.3", {"role": "user", "content": "Wait."})),
    ("chat", "pairs", put("messages.2.tool_calls.0.id", "b")),
    ("chat", "shape", put("min_p", 0.5)),
    ("responses", "tools", drop("tools")),
    ("responses", "tools", put("tool_choice", {"type": "function", "name": "seek"})),
    ("responses", "name", put("tools.0.name", "x" * 129)),
    ("responses", "name", put("input.2.name", "a.b")),
    ("responses", "input", put("input", [])),
    ("responses", "limit", put("max_output_tokens", 15)),
    ("responses", "temperature", put("temperature", 3)),
    ("responses", "item-id", put("input.2.id", "call_1")),
    ("responses", "item-id", put("input.1.id", "rs_" + "x" * 64)),
    ("responses", "item-id", put("input.0.id", "fc_1")),
    ("responses", "id", put("input.2.call_id", "x" * 65)),
    ("responses", "content", put("input.0.content.0.type", "output_text")),
    ("responses", "pairs", drop("input.3")),
    ("responses", "pairs", put("input.3.call_id", "b")),
    ("responses", "pairs", put("input.3.type", "custom_tool_call_output")),
    ("responses", "thoughts", put("input.1.encrypted_content", "FORGED")),
    ("responses", "thoughts", drop("input.1.encrypted_content")),
    ("responses", "thoughts", put("input.2", {"role": "user", "content": "Wait."})),
    ("responses", "shape", put("min_p", 0.5)),
    ("messages", "limit", drop("max_tokens")),
    ("messages", "tools", drop("tools")),
    ("messages", "name", put("tools.0.name", "a.b")),
    ("messages", "name", put("tools.0.name", "x" * 129)),
    ("messages", "name", put("tools", MESSAGES["tools"] * 2)),
    ("messages", "name", put("messages.1.content.3.name", "a b")),
    ("messages", "schema", put("tools.0.input_schema", {"type": "string"})),
    ("messages", "schema", put("tools.0.input_schema", {"type": "object", "anyOf": []})),
    ("messages", "tools", put("tool_choice", {"type": "tool", "name": "seek"})),
    ("messages", "thinking", put("tool_choice", {"type": "any"})),
    ("messages", "thinking", put("temperature", 0.5)),
    ("messages", "thinking", put("top_p", 0.5)),
    ("messages", "thinking", put("thinking.budget_tokens", 1000)),
    ("messages", "thinking", put("thinking.budget_tokens", 4096)),
    ("messages", "temperature", put("temperature", 1.5)),
    ("messages", "roles", drop("messages.0")),
    ("messages", "roles", drop("messages.2")),
    ("messages", "empty", put("messages.0.content", [])),
    ("messages", "empty", put("messages.2.content.0", {"type": "tool_result", "tool_use_id": "a", "is_error": True})),
    ("messages", "empty-text", put("messages.0.content", " ")),
    ("messages", "empty-text", put("system", " ")),
    ("messages", "empty-text", put("messages.2.content.0.content", [{"type": "text", "text": ""}])),
    ("messages", "id", put("messages.1.content.3.id", "a:0")),
    ("messages", "arguments", put("messages.1.content.3.input", "{}")),
    ("messages", "pairs", drop("messages.2.content.0")),
    ("messages", "pairs", put("messages.2.content.0.tool_use_id", "b")),
    ("messages", "pairs", put("messages.2.content", MESSAGES["messages"][2]["content"][::-1])),
    ("messages", "pairs", put("messages", MESSAGES["messages"] * 2)),
    ("messages", "thoughts", put("messages.1.content.0.thinking", "Aha.")),
    ("messages", "thoughts", put("messages.1.content.0.signature", "FORGED")),
    ("messages", "thoughts", put("messages.1.content.1.data", "FORGED")),
    ("messages", "thoughts", put("messages.1.content", MESSAGES["messages"][1]["content"][2:])),
    ("messages", "cache", put("tools", [{**MESSAGES["tools"][0], "name": f"t{n}", "cache_control": {"type": "ephemeral"}} for n in range(5)])),
    ("messages", "shape", put("min_p", 0.5)),
    ("messages", "shape", put("messages.0.role", "system!")),
]  # fmt: skip


@pytest.mark.parametrize("kind", SOUND)
def test_a_sound_request_is_taken(kind: Name):
    assert refusals(kind, SOUND[kind], ISSUED) == []


@pytest.mark.parametrize("kind", SOUND)
def test_the_rules_alone_need_no_seals_where_there_are_none(kind: Name):
    body = json.loads(json.dumps(SOUND[kind]))
    assert all(reason.startswith("thoughts: ") for reason in RULES[kind](body, {}))


@pytest.mark.parametrize(("kind", "rule", "change"), BROKEN, ids=[f"{n}-{k}-{r}" for n, (k, r, _) in enumerate(BROKEN)])
def test_a_request_that_breaks_a_rule_is_refused_for_it(kind: Name, rule: str, change: Callable[[Json], None]):
    body = copy.deepcopy(SOUND[kind])
    change(body)
    assert rule in {reason.partition(":")[0] for reason in refusals(kind, body, ISSUED)}
