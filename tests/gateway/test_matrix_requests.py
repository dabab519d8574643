"""The matrix, asked in odd ways: what a client of one dialect may send must reach any service in a form it takes.

A request is a row of `REQUESTS`: what is sent beside the model, for each dialect that has words for it. The service is
as strict as the real one. `make test` takes every pair of request, dialect and kind; `make soak` takes the rest.
"""

from typing import Any

import pytest

from tests.support.backend_writers import reply
from tests.support.conversations import PIXEL, Strict
from tests.support.pairs import pairwise
from tests.support.routes import Routes, asked_path, question
from tests.support.scripts import KINDS, NAMES, SCHEMA, Calls, Name, Says, Script

Json = dict[str, Any]
NO_TURN = "The service says no more than this."

PNG = f"data:image/png;base64,{PIXEL}"
PDF = "JVBERi0xLjQKJSVFT0YK"
ANY_OF = {"anyOf": [SCHEMA, {"type": "object", "required": ["x"]}]}
LONG = "mcp__" + "a_server_with_a_long_name__" * 2 + "and_a_tool_with_a_longer_name_still"
FORMAT = {"name": "answer", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}, "strict": True}  # fmt: skip
CALL = {"id": "call_a", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def chat(*messages: Json, tools: Any = ("look", "find"), **fields: Any) -> Json:
    declared = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in tools]
    history = list(messages) or [{"role": "user", "content": "Go."}]
    return {"messages": history, **({"tools": declared} if declared else {}), **fields}


def responses(*items: Json, tools: Any = ("look", "find"), **fields: Any) -> Json:
    declared = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in tools]
    history = list(items) or [{"role": "user", "content": "Go."}]
    return {"input": history, **({"tools": declared} if declared else {}), **fields}


def messages(*history: Json, tools: Any = ("look", "find"), **fields: Any) -> Json:
    declared = [{"name": name, "input_schema": SCHEMA} for name in tools]
    said = list(history) or [{"role": "user", "content": "Go."}]
    return {"max_tokens": 4096, "messages": said, **({"tools": declared} if declared else {}), **fields}


def with_null_schemas(dialect: Name) -> Json:
    """Tools that take nothing, as some clients declare them."""
    if dialect == "messages":
        return {"tools": [{"name": "look", "input_schema": None}, {"name": "find", "input_schema": SCHEMA}]}
    functions: list[Json] = [
        {"name": "look", "parameters": None, "strict": False},
        {"name": "find", "parameters": SCHEMA, "strict": False},
    ]
    if dialect == "chat":
        return {"tools": [{"type": "function", "function": function} for function in functions]}
    return {"tools": [{"type": "function", **function} for function in functions]}


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def model(content: Any, **fields: Any) -> Json:
    return {"role": "assistant", "content": content, **fields}


def uses(id: str) -> Json:
    return {"type": "tool_use", "id": id, "name": "look", "input": {}}


def called(id: str) -> Json:
    return {"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"}


def image_block(source: Json) -> Json:
    return {"type": "image", "source": source}


REQUESTS: dict[str, dict[Name, Json]] = {
    "warm": {"chat": chat(temperature=1.7, top_p=0.9), "responses": responses(temperature=1.7), "messages": messages(temperature=0.7, top_p=0.9)},
    "cold and thinking": {"chat": chat(reasoning_effort="high", temperature=0.2), "responses": responses(reasoning={"effort": "high"}, temperature=0.2)},
    "narrow and thinking": {"chat": chat(reasoning_effort="low", top_p=0.5), "responses": responses(reasoning={"effort": "low"}, top_p=0.5)},
    "thinking in every way": {"chat": chat(reasoning_effort="minimal"), "responses": responses(reasoning={"effort": "xhigh", "summary": "auto"}), "messages": messages(thinking={"type": "adaptive"}, output_config={"effort": "max"})},
    "thinking with a budget": {"messages": messages(thinking={"type": "enabled", "budget_tokens": 2000})},
    "not thinking": {"chat": chat(reasoning_effort="none"), "responses": responses(reasoning={"effort": "none"}), "messages": messages(thinking={"type": "disabled"})},
    "a forced tool and thinking": {"chat": chat(reasoning_effort="high", tool_choice="required"), "responses": responses(reasoning={"effort": "high"}, tool_choice={"type": "function", "name": "look"})},
    "a forced tool": {"chat": chat(tool_choice={"type": "function", "function": {"name": "look"}}), "responses": responses(tool_choice={"type": "function", "name": "look"}), "messages": messages(tool_choice={"type": "tool", "name": "look"})},
    "any tool": {"chat": chat(tool_choice="required"), "responses": responses(tool_choice="required"), "messages": messages(tool_choice={"type": "any"})},
    "no tool": {"chat": chat(tool_choice="none"), "responses": responses(tool_choice="none"), "messages": messages(tool_choice={"type": "none"})},
    "some tools": {"chat": chat(tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "look"}}]}}), "responses": responses(tool_choice={"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]})},
    "one call at a time": {"chat": chat(parallel_tool_calls=False), "responses": responses(parallel_tool_calls=False), "messages": messages(tool_choice={"type": "auto", "disable_parallel_tool_use": True})},
    "one call at a time, and none": {"chat": chat(parallel_tool_calls=False, tool_choice="none"), "responses": responses(parallel_tool_calls=False, tool_choice="none")},
    "tools with null for a schema": {"chat": {**chat(tools=()), **with_null_schemas("chat")}, "responses": {**responses(tools=()), **with_null_schemas("responses")}, "messages": {**messages(tools=()), **with_null_schemas("messages")}},
    "tools declared in the input": {"responses": responses({"type": "additional_tools", "role": "developer", "tools": [*with_null_schemas("responses")["tools"], {"type": "namespace", "name": "space", "description": "", "tools": [{"type": "custom", "name": LONG}]}]}, user("Go."), tools=(), tool_choice="auto")},
    "words about tools that are not there": {"chat": chat(tools=()), "responses": responses(tools=(), tool_choice="auto", parallel_tool_calls=True)},
    "an empty list of tools": {"chat": {**chat(tools=()), "tools": []}, "responses": {**responses(tools=()), "tools": [], "tool_choice": "auto"}, "messages": {**messages(tools=()), "tools": []}},
    "a small limit": {"chat": chat(max_completion_tokens=1), "responses": responses(max_output_tokens=16), "messages": messages(max_tokens=1)},
    "stop sequences": {"chat": chat(stop=["a", "b"]), "messages": messages(stop_sequences=["a", "b"])},
    "a schema for the answer": {"chat": chat(response_format={"type": "json_schema", "json_schema": FORMAT}), "responses": responses(text={"format": {"type": "json_schema", **FORMAT}}), "messages": messages(output_config={"format": {"type": "json_schema", "schema": FORMAT["schema"]}})},
    "an object for an answer": {"chat": chat(user("JSON."), response_format={"type": "json_object"}), "responses": responses(user("JSON."), text={"format": {"type": "json_object"}})},
    "who asks": {"chat": chat(user="me", safety_identifier="id", prompt_cache_key="k", metadata={"a": "b"}), "responses": responses(user="me", safety_identifier="id", metadata={"a": "b"}), "messages": messages(metadata={"user_id": "me"})},
    "long names": {"messages": messages(tools=(LONG,)), "chat": chat(tools=(LONG,)), "responses": responses(tools=(LONG,))},
    "names with dots": {"chat": chat(tools=("files.look", "files_look")), "responses": responses(tools=("files.look", "files_look"))},
    "a tool without parameters": {"chat": {**chat(), "tools": [{"type": "function", "function": {"name": "look"}}]}, "responses": {**responses(), "tools": [{"type": "function", "name": "look", "parameters": None, "strict": None}]}},
    "a schema with alternatives": {"chat": {**chat(), "tools": [{"type": "function", "function": {"name": "look", "parameters": ANY_OF}}]}, "responses": {**responses(), "tools": [{"type": "function", "name": "look", "parameters": ANY_OF, "strict": False}]}},
    "an image": {"chat": chat(user([{"type": "text", "text": "See."}, {"type": "image_url", "image_url": {"url": PNG}}])), "responses": responses(user([{"type": "input_text", "text": "See."}, {"type": "input_image", "image_url": PNG, "detail": "low"}])), "messages": messages(user([{"type": "text", "text": "See."}, image_block({"type": "base64", "media_type": "image/png", "data": PIXEL})]))},
    "an image far away": {"chat": chat(user([{"type": "image_url", "image_url": {"url": "https://x.example/i.png", "detail": "high"}}])), "responses": responses(user([{"type": "input_image", "image_url": "https://x.example/i.png", "detail": "auto"}])), "messages": messages(user([image_block({"type": "url", "url": "https://x.example/i.png"})]))},
    "a document": {"chat": chat(user([{"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}}])), "responses": responses(user([{"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}])), "messages": messages(user([{"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}}]))},
    "an order in between": {"chat": chat(user("Hi."), model("Hello."), {"role": "system", "content": "Be brief."}, user("Go.")), "responses": responses(user("Hi."), model("Hello."), {"role": "developer", "content": "Be brief."}, user("Go."))},
    "two systems": {"chat": chat({"role": "system", "content": "One."}, {"role": "developer", "content": "Two."}, user("Go.")), "responses": responses({"role": "system", "content": "One."}, {"role": "developer", "content": "Two."}, user("Go."), instructions="Zero.")},
    "a system in blocks": {"messages": messages(system=[{"type": "text", "text": "One."}, {"type": "text", "text": "Two.", "cache_control": {"type": "ephemeral"}}])},
    "a greeting first": {"chat": chat(model("How can I help?"), user("Go.")), "responses": responses(model("How can I help?"), user("Go."))},
    "only a system message": {"chat": chat({"role": "system", "content": "Say hello."}), "responses": responses({"role": "developer", "content": "Say hello."})},
    "two users in a row": {"chat": chat(user("Hi."), user("Go.")), "responses": responses(user("Hi."), user("Go.")), "messages": messages(user("Hi."), user("Go."))},
    "calls before, no tools now": {"chat": chat(user("Go."), model(None, tool_calls=[CALL]), {"role": "tool", "tool_call_id": "call_a", "content": "1"}, tools=()), "responses": responses(user("Go."), called("call_a"), {"type": "function_call_output", "call_id": "call_a", "output": "1"}, tools=())},
    "a call that nobody answered": {"chat": chat(user("Go."), model(None, tool_calls=[CALL]), user("Never mind.")), "responses": responses(user("Go."), called("call_a"), user("Never mind.")), "messages": messages(user("Go."), model([uses("call_a")]), user("Never mind."))},
    "an answer that nobody asked for": {"chat": chat(user("Go."), {"role": "tool", "tool_call_id": "call_x", "content": "1"}), "responses": responses(user("Go."), {"type": "function_call_output", "call_id": "call_x", "output": "1"}), "messages": messages(user([{"type": "tool_result", "tool_use_id": "call_x", "content": "1"}, {"type": "text", "text": "Go."}]))},
    "nothing but an answer that nobody asked for": {"chat": chat({"role": "tool", "tool_call_id": "call_x", "content": "1"}), "responses": responses({"type": "function_call_output", "call_id": "call_x", "output": "1"}), "messages": messages(user([{"type": "tool_result", "tool_use_id": "call_x", "content": "1"}]))},
    "a user who says nothing": {"chat": chat(user("")), "responses": responses(user(" ")), "messages": messages(user(" "))},
    "an answer that comes late": {"chat": chat(user("Go."), model(None, tool_calls=[CALL]), user("Wait."), {"role": "tool", "tool_call_id": "call_a", "content": "1"}), "responses": responses(user("Go."), called("call_a"), user("Wait."), {"type": "function_call_output", "call_id": "call_a", "output": "1"})},
    "arguments that are no object": {"chat": chat(user("Go."), model("", tool_calls=[{**CALL, "function": {"name": "look", "arguments": '{"path": "ha'}}]), {"role": "tool", "tool_call_id": "call_a", "content": "1"}), "responses": responses(user("Go."), {**called("call_a"), "arguments": '["x"]'}, {"type": "function_call_output", "call_id": "call_a", "output": "1"})},
    "a result in parts": {"chat": chat(user("Go."), model(None, tool_calls=[CALL]), {"role": "tool", "tool_call_id": "call_a", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": ""}]}), "responses": responses(user("Go."), called("call_a"), {"type": "function_call_output", "call_id": "call_a", "output": [{"type": "input_text", "text": "1"}]}), "messages": messages(user("Go."), model([uses("call_a")]), user([{"type": "tool_result", "tool_use_id": "call_a", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]}]))},
    "an error without words": {"chat": chat(user("Go."), model(None, tool_calls=[CALL]), {"role": "tool", "tool_call_id": "call_a", "content": ""}), "messages": messages(user("Go."), model([uses("call_a")]), user([{"type": "tool_result", "tool_use_id": "call_a", "is_error": True, "content": "No."}]))},
}  # fmt: skip

OWN_FAULT = {("names with dots", "responses")}
"""What a client may not ask a service of its own dialect, which is free to say so."""

CASES = [
    (name, dialect, kind)
    for name, asked in REQUESTS.items()
    for dialect in asked
    for kind in KINDS
    if not (dialect == kind and (name, dialect) in OWN_FAULT)
]


@pytest.mark.parametrize(("name", "dialect", "kind"), pairwise(CASES, "-".join))
def test_a_service_takes_what_any_client_may_ask(routes: Routes, name: str, dialect: Name, kind: Name):
    model = f"asked {name} {dialect} {kind}"
    service = Strict(kind, [Script((Says(NO_TURN),))], stream=False)
    routes.upstream.replies[model] = service
    held = routes.ask(dialect, {"model": f"{kind}/{model}", **REQUESTS[name][dialect]}, key=model)
    assert held.seen.text == NO_TURN
    assert routes.upstream.of(model)[-1].path == asked_path(kind, model, stream=False)


CHOICES: dict[Name, Json] = {
    "chat": {"tool_choice": {"type": "function", "function": {"name": "find"}}},
    "responses": {"tool_choice": {"type": "function", "name": "find"}},
    "messages": {"tool_choice": {"type": "tool", "name": "find"}},
    "gemini": {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["find"]}}},
}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialect", NAMES)
def test_a_service_that_ignores_the_named_tool_is_held_to_it(routes: Routes, dialect: Name, kind: Name, stream: bool):
    script = Script((Calls("call_a", "look"), Calls("call_b", "find", '{"path":"a"}'), Calls("call_c", "look")))
    routes.upstream.replies["wilful"] = reply(script, kind, stream=stream)
    asked = question(dialect, f"{kind}/wilful", script.tools, stream=stream, **CHOICES[dialect])
    held = routes.ask(dialect, asked)
    assert [(call.id, call.name) for call in held.seen.calls] == [("call_b", "find")]
    assert held.seen.finish == "calls"
