"""Every field of a request with something else in it: it is read, or refused by its name, and never breaks anything."""

import json
from typing import Any

import pytest

from tests.support.demo import converse
from tests.support.fields import BODIES, OTHERS, changed, places, written
from toolwire.assembly import ToolRules, apply_rules
from toolwire.backends import chat as chat_backend
from toolwire.backends import codex
from toolwire.backends import messages as messages_backend
from toolwire.backends import responses as responses_backend
from toolwire.core.collect import Collector
from toolwire.core.errors import BadRequest
from toolwire.core.events import CallArgs, CallEnded, CallStarted, TextDelta, TurnEnded, TurnStarted, Usage
from toolwire.core.notes import TurnStats
from toolwire.core.request import Request
from toolwire.dialects import chat, messages, responses

DIALECTS: Any = {"chat": chat, "responses": responses, "messages": messages}
SEED = "0123456789abcdef01234567"
TURN = [
    TurnStarted(),
    TextDelta("Hm."),
    CallStarted("c9", "find"),
    CallArgs("c9", "{}"),
    CallEnded("c9"),
    Usage(1, 1),
    TurnEnded("calls"),
]


def answer(dialect: Any, request: Request) -> None:
    """Write a turn in answer to the request, streamed and plain."""
    encoder = dialect.StreamEncoder(request, dialect.new_id(SEED), 1, TurnStats())
    collector = Collector()
    for event in TURN:
        encoder.feed(event)
        collector.feed(event)
    [turn] = collector.end()
    dialect.encode_turn(turn, request, dialect.new_id(SEED), 1)


def ask(request: Request) -> None:
    """Ask every backend."""
    fitted = apply_rules(request, ToolRules(), results_anywhere=False)
    for backend in (chat_backend, responses_backend, messages_backend, codex):
        backend.Conversation(fitted, SEED).start()
    for _ in converse(fitted, SEED).start().steps:
        pass


def refusal(dialect: Any, body: dict[str, Any]) -> BadRequest | None:
    """What is said against a request; nothing if it is answered."""
    try:
        request = dialect.decode_request(json.dumps(body).encode())
        answer(dialect, request)
        ask(request)
    except BadRequest as refused:
        return refused
    return None


@pytest.mark.parametrize("name", BODIES)
def test_whatever_is_in_a_field_the_request_is_read_or_refused_by_its_name(name: str):
    dialect, body = BODIES[name]
    asked = {"model": "demo", "stream": True, **body}
    assert refusal(DIALECTS[dialect], asked) is None
    for path in places(body):
        for value in OTHERS:
            try:
                refused = refusal(DIALECTS[dialect], changed(asked, path, value))
            except Exception as error:
                error.add_note(written(path, value))
                raise
            if refused is not None:
                assert refused.code, written(path, value)
                assert names(refused.param or "", path[0]), f"{written(path, value)} is refused for {refused.param}"


def names(param: str, field: str | int) -> bool:
    """Whether the path is in this field. What is wrong with a tool may be seen in the choice that names it."""
    also = {"tools": "tool_choice", "functions": "function_call"}.get(str(field), field)
    return any(param == each or param.startswith((f"{each}.", f"{each}[")) for each in (field, also))


NULLABLE = {
    "chat": ("tools", "tool_choice", "response_format", "stream_options", "stop", "temperature", "metadata", "store",
             "messages.2.content", "messages.2.refusal", "messages.2.tool_calls", "messages.2.audio",
             "messages.5.function_call", "messages.6.content", "tools.0.function.parameters", "tools.0.function.strict",
             "tools.1.custom.format", "response_format.json_schema.strict", "stream_options.include_usage"),
    "responses": ("instructions", "tool_choice", "text", "text.format", "text.verbosity", "text.format.strict",
                  "reasoning", "reasoning.effort", "reasoning.summary", "include", "metadata", "truncation", "prompt",
                  "previous_response_id", "conversation", "background", "store", "max_output_tokens", "service_tier",
                  "tools.0.parameters", "tools.1.strict", "tools.0.description", "tools.2.format", "tools.3.tools",
                  "input.0.id", "input.0.status", "input.2.content", "input.2.encrypted_content", "input.4.id",
                  "input.6.output.0.text", "input.1.content.1.image_url", "input.1.content.1.file_id"),
    "messages": ("system.0.cache_control", "messages.0.content.0.cache_control", "messages.0.content.2.title",
                 "messages.1.content.2.citations", "tools.0.type", "tools.0.cache_control", "metadata",
                 "metadata.user_id", "output_config", "output_config.effort", "output_config.format", "container",
                 "context_management", "thinking"),
}  # fmt: skip
"""Fields that the documents of the APIs have as nullable, or that clients send as null."""


@pytest.mark.parametrize("name", NULLABLE)
def test_null_is_taken_where_it_may_be(name: str):
    dialect, body = BODIES[name]
    asked = {"model": "demo", **body}
    for text in NULLABLE[name]:
        path = tuple(int(key) if key.isdigit() else key for key in text.split("."))
        assert path in set(places(body)), text
        DIALECTS[dialect].decode_request(json.dumps(changed(asked, path, None)).encode())
