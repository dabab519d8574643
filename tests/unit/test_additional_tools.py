"""Tools that a Responses client declares in items of its input, as Codex does for some models."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolwire.backends import chat, codex, messages, responses
from toolwire.core.errors import BadRequest
from toolwire.core.events import CallArgs, CallEnded, CallStarted, Note
from toolwire.core.request import Message, Request, TextPart, ToolChoice
from toolwire.core.sse import FrameReader
from toolwire.core.tokens import estimate_tokens
from toolwire.dialects.responses import compaction, decode_request, read_request

Json = dict[str, Any]

RECORDINGS = Path(__file__).parent.parent / "recordings"
USER: Json = {"role": "user", "content": "Go."}
SCHEMA: Json = {"type": "object", "properties": {"q": {"type": "string"}}}


def function(name: str, **fields: Any) -> Json:
    return {"type": "function", "name": name, "parameters": SCHEMA, "strict": False, **fields}


def custom(name: str) -> Json:
    return {"type": "custom", "name": name}


def namespace(name: str, *tools: Json) -> Json:
    return {"type": "namespace", "name": name, "description": "", "tools": list(tools)}


def adds(*tools: Json, **fields: Any) -> Json:
    return {"type": "additional_tools", "role": "developer", "id": "at_1", "tools": list(tools), **fields}


def asked(*items: Json, **fields: Any) -> Request:
    return decode_request(json.dumps({"model": "m", "input": list(items), **fields}).encode())


def refused(*items: Json, **fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        asked(*items, **fields)
    return caught.value


def sent(request: Request, kind: str, **profile: Any) -> Json:
    """The body that a server of this kind is sent."""
    module = {"chat": chat, "messages": messages, "responses": responses}[kind]
    opening = module.Conversation(request, "S", module.profile_from(profile)).start()
    return json.loads(opening.body)


def names(body: Json) -> list[str]:
    return [tool["function"]["name"] if "function" in tool else tool["name"] for tool in body["tools"]]


def recorded(file: str) -> list[Json]:
    rows = [json.loads(line) for line in (RECORDINGS / file).read_text().splitlines()]
    return [row["body"] for row in rows if row["dir"] == "upstream_request"]


LITE = (
    *recorded("codex-cli-client/36-model-responses-lite.jsonl"),
    *recorded("codex-cli-client/37-responses-lite-code-mode-exec.jsonl"),
    *recorded("codex-app-server/57-responses-lite-direct-tools.jsonl"),
)


@pytest.mark.parametrize("body", LITE)
def test_what_codex_declares_in_its_input_is_declared_everywhere(body: Json):
    request = decode_request(json.dumps(body).encode())
    declared = [f"{space['name']}__{tool['name']}" for space in body["input"][0]["tools"] for tool in space["tools"]]
    assert [f"{tool.namespace}__{tool.name}" for tool in request.tools] == declared
    assert names(sent(request, "chat")) == names(sent(request, "messages")) == declared
    as_it_came = sent(request, "responses")
    assert as_it_came["input"] == body["input"]
    assert "tools" not in as_it_came
    assert as_it_came["tool_choice"] == "auto"
    opening = codex.Conversation(request, "S").start().outbox[0]
    assert [tool["name"] for tool in opening.params["dynamicTools"]] == declared
    assert "item_dropped" not in [note.code for note in request.notes]


@pytest.mark.parametrize("kind", ["chat", "messages"])
def test_no_message_stands_for_a_declaration(kind: str):
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "ok"}
    history = (adds(function("f")), USER, call, adds(function("g")), output, adds(function("h")))
    body = sent(asked(*history), kind)
    assert [message["role"] for message in body["messages"]] == [
        "user",
        "assistant",
        "tool" if kind == "chat" else "user",
    ]
    assert names(body) == ["f", "g", "h"]


def test_a_model_without_tools_is_told_of_them_in_its_prompt():
    body = sent(asked(adds(function("f")), USER), "chat", tools="prompt")
    assert '"name":"f"' in body["messages"][0]["content"]
    assert "tools" not in body


def test_tools_of_the_request_come_first_and_the_later_declaration_counts():
    later = function("f", description="later")
    request = asked(adds(later, function("g")), USER, adds(function("g")), tools=[function("f"), function("e")])
    assert [(tool.name, tool.description) for tool in request.tools] == [("f", "later"), ("e", ""), ("g", "")]
    assert request.notes == (Note("tool_replaced", "f"),)


def test_one_name_in_two_namespaces_is_two_tools():
    request = asked(adds(namespace("a", function("f")), namespace("b", function("f")), function("f")), USER)
    assert names(sent(request, "chat")) == ["a__f", "b__f", "f"]
    assert request.notes == ()


def test_the_same_tools_are_one_object_in_every_turn():
    first, again = asked(adds(function("f")), USER), asked(adds(function("f")), USER, USER)
    assert first.tools is again.tools


def test_a_tool_choice_may_name_one():
    choice = {"type": "function", "name": "f"}
    request = asked(adds(namespace("space", function("f")), function("g")), USER, tool_choice=choice)
    assert request.tool_choice == ToolChoice("required", "f")
    assert sent(request, "chat")["tool_choice"]["function"] == {"name": "space__f"}
    assert sent(request, "messages")["tool_choice"] == {"type": "tool", "name": "space__f"}
    assert sent(request, "responses")["tool_choice"] == choice
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}
    assert names(sent(asked(adds(function("f"), function("g")), USER, tool_choice=allowed), "chat")) == ["g"]
    assert refused(adds(function("f")), USER, tool_choice={"type": "function", "name": "x"}).param == "tool_choice"


def test_calls_of_them_come_back_as_they_were_declared():
    request = asked(adds(namespace("functions", custom("exec"), function("wait"))), USER, stream=True)
    conversation = chat.Conversation(request, "S")
    chunk = {"index": 0, "id": "c", "function": {"name": "functions__exec", "arguments": '{"input":"1 + 1"}'}}
    data = {"choices": [{"index": 0, "delta": {"tool_calls": [chunk]}, "finish_reason": "tool_calls"}]}
    frames = FrameReader().feed(b"data: " + json.dumps(data).encode() + b"\n\ndata: [DONE]\n\n")
    events = [event for frame in frames for event in conversation.feed(frame)]
    assert [event for event in events if isinstance(event, CallStarted | CallArgs | CallEnded)] == [
        CallStarted("c", "exec", kind="custom", namespace="functions"),
        CallArgs("c", "1 + 1"),
        CallEnded("c"),
    ]


def test_hosted_tools_in_them_are_hosted_tools():
    request = asked(adds(function("f"), {"type": "web_search"}), USER, tools=[{"type": "web_search"}])
    assert [tool.type for tool in request.hosted_tools] == ["web_search"]


@pytest.mark.parametrize("empty", [[], None])
def test_an_empty_list_of_tools_beside_them_is_not_sent(empty: Any):
    body = sent(asked(adds(function("f")), USER, tools=empty, tool_choice="auto"), "responses")
    assert "tools" not in body
    assert body["tool_choice"] == "auto"


def test_a_responses_server_that_does_not_know_them_has_them_among_its_tools():
    inner = namespace("space", function("g"), custom("h"))
    request = asked(adds(inner, {"type": "web_search"}), USER, tools=[function("f")], tool_choice="auto")
    body = sent(request, "responses", additional_tools=False)
    assert [item.get("type", "message") for item in body["input"]] == ["message"]
    plain, space, hosted = body["tools"]
    assert (plain["name"], space["type"], space["name"], hosted) == ("f", "namespace", "space", {"type": "web_search"})
    assert [(tool["type"], tool["name"]) for tool in space["tools"]] == [("function", "g"), ("custom", "h")]


def test_a_name_that_does_not_fit_is_changed_inside_the_item_too():
    long, broken = "f" * 65, {"anyOf": [{"type": "object", "properties": {"q": {"type": "string"}}}]}
    item = adds(namespace("space", function(long), function("g", parameters=broken)), extra=[1])
    request = asked(item, USER, tool_choice={"type": "function", "name": long})
    body = sent(request, "responses")
    [added, _] = body["input"]
    first, second = added["tools"][0]["tools"]
    assert len(first["name"]) == 64
    assert body["tool_choice"]["name"] == first["name"]
    assert (second["parameters"]["type"], added["extra"], added["id"]) == ("object", [1], "at_1")


def test_a_summary_is_asked_for_without_them():
    request = asked(adds(function("f")), USER, {"type": "compaction_trigger"})
    summarising = compaction.make_summary_request(request)
    assert [type(entry) for entry in summarising.entries] == [Message, Message]
    assert "tools" not in sent(summarising, "responses")


def test_their_tokens_are_counted_once():
    plain = estimate_tokens(asked(USER, tools=[function("f" * 400)]))
    added = estimate_tokens(asked(adds(function("f" * 400)), USER))
    assert plain < added < plain + 10
    counted = json.loads(responses.count_tokens(asked(adds(function("f")), USER), responses.OPENAI).body)
    assert counted["input"][0]["type"] == "additional_tools"


def test_tools_of_earlier_turns_are_declared_still():
    earlier = [msgspec.Raw(json.dumps(adds(function("f"))).encode())]
    request = read_request(json.dumps({"model": "m", "input": [adds(function("g")), USER]}).encode()).decode(earlier)
    assert names(sent(request, "chat")) == ["f", "g"]


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"type": "additional_tools"}, "input[1].tools"),
        (adds() | {"tools": None}, "input[1].tools"),
        (adds() | {"tools": {}}, "input[1].tools"),
        (adds() | {"tools": "f"}, "input[1].tools"),
        (adds({"name": "f"}), "input[1].tools[0].type"),
        (adds({"type": "function"}), "input[1].tools[0].name"),
        (adds(namespace("a", {"type": "function"})), "input[1].tools[0].tools[0].name"),
        (adds({"type": "function", "name": 3}), "input[1].tools[0].name"),
        (adds() | {"tools": [3]}, "input[1].tools[0]"),
    ],
)
def test_what_is_wrong_with_one_is_named(item: Json, field: str):
    error = refused(USER, item)
    assert error.param == field
    assert error.message.startswith(field)


def test_a_declaration_says_nothing_about_who_speaks():
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "S"}
    kept = sent(asked(USER, thought, adds(), {"role": "assistant", "content": "Hi"}), "responses")["input"]
    assert kept[1] == thought
    assert len(sent(asked(USER, thought, adds()), "responses")["input"]) == 2


def test_an_entry_of_text_follows_them():
    assert asked(adds(), USER).entries[1].parts == (TextPart("Go."),)
