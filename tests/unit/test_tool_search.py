"""Search for tools: lowered for servers that know none, restored for the client, declarations that only grow."""

import json
import os
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from toolwire import convert_request
from toolwire.backends import codex
from toolwire.backends.failures import find_refused_part
from toolwire.core.errors import Failure
from toolwire.core.request import Tool
from toolwire.core.tokens import estimate_tokens
from toolwire.dialects import responses
from toolwire.gateway.tools import ranking
from toolwire.gateway.tools.ranking import BadPattern, SearchTooLong, search_by_pattern, search_by_words

Json = dict[str, Any]

SEARCH: Json = {"type": "tool_search", "execution": "client", "description": "Finds tools."}
USER: Json = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]}
SCHEMA: Json = {"type": "object", "properties": {"q": {"type": "string"}}, "required": []}
TARGETS = pytest.mark.parametrize("target", ["chat", "messages", "responses"])


def function(name: str, **fields: Any) -> Json:
    return {"type": "function", "name": name, "description": f"Does {name}.", "parameters": SCHEMA, **fields}


def space(name: str, *tools: str) -> Json:
    inner = [function(tool, defer_loading=True) for tool in tools]
    return {"type": "namespace", "name": name, "description": "", "tools": inner}


def searched(id: str, *tools: Json, query: str = "x", execution: str = "client") -> list[Json]:
    call_id = id if execution == "client" else None
    call: Json = {"type": "tool_search_call", "id": f"tsc_{id}", "call_id": call_id, "execution": execution}
    output: Json = {"type": "tool_search_output", "call_id": call_id, "execution": execution, "tools": [*tools]}
    return [{**call, "status": "completed", "arguments": {"query": query}}, {**output, "status": "completed"}]


def names(body: Json) -> list[str]:
    return [tool.get("function", tool)["name"] for tool in body["tools"]]


def profile(target: str) -> Json:
    """A server that knows no search; a chat server never does."""
    return {} if target == "chat" else {"tool_search": False}


def sent(target: str, *items: Json, tools: tuple[Json, ...] = (function("f"), SEARCH)) -> Json:
    body = {"model": "m", "input": [USER, *items], "tools": list(tools)}
    made = convert_request("responses", target, json.dumps(body), profile=profile(target))  # pyright: ignore[reportArgumentType]
    return json.loads(made.body)


# The client searches


@TARGETS
def test_a_search_is_declared_as_a_function(target: str):
    body = sent(target)
    assert names(body) == ["f", "tool_search"]
    tool = body["tools"][1].get("function", body["tools"][1])
    assert tool["description"] == "Finds tools."
    assert "query" in tool.get("parameters", tool.get("input_schema"))["properties"]


CALLS: dict[str, Json] = {
    "chat": {
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "NAME", "arguments": '{"query": "mail"}'}}
                    ],
                },
            }
        ]
    },
    "messages": {
        "type": "message",
        "role": "assistant",
        "stop_reason": "tool_use",
        "content": [{"type": "tool_use", "id": "c1", "name": "NAME", "input": {"query": "mail"}}],
    },
    "responses": {
        "id": "resp_1",
        "status": "completed",
        "output": [
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "NAME", "arguments": '{"query": "mail"}'}
        ],
    },
}


def called(target: str, name: str, *items: Json) -> Json:
    """The item that a client gets for a call that its server has answered with."""
    body = {"model": "m", "input": [USER, *items], "tools": [function("f"), SEARCH]}
    made = convert_request("responses", target, json.dumps(body), profile=profile(target))  # pyright: ignore[reportArgumentType]
    reply = json.dumps(CALLS[target]).replace("NAME", name)
    [item] = json.loads(made.translate_body(reply))["output"]
    return item


@TARGETS
def test_its_call_comes_back_as_a_search(target: str):
    item = called(target, "tool_search")
    assert item.pop("id").startswith("tsc_")
    assert item == {
        "type": "tool_search_call",
        "call_id": "c1",
        "execution": "client",
        "arguments": {"query": "mail"},
        "status": "completed",
    }


@TARGETS
def test_a_stream_has_no_deltas_of_a_search(target: str):
    body = {"model": "m", "input": [USER], "tools": [SEARCH], "stream": True}
    made = convert_request("responses", target, json.dumps(body), profile=profile(target))  # pyright: ignore[reportArgumentType]
    call = {"index": 0, "id": "c1", "function": {"name": "tool_search", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"query":'}}
    rest = {"index": 0, "function": {"arguments": '"mail"}'}}
    streams: dict[str, list[Json]] = {
        "chat": [
            *({"choices": [{"index": 0, "delta": {"tool_calls": [each]}}]} for each in (call, more, rest)),
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        ],
        "messages": [
            {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": []}},
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "tool_use", "id": "c1", "name": "tool_search", "input": {}},
            },
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": each}}
                for each in ('{"query":', '"mail"}')
            ),
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
            {"type": "message_stop"},
        ],
        "responses": [
            {"type": "response.created", "response": {"id": "resp_1"}},
            {"type": "response.output_item.added", "output_index": 0, "item": _function_call("")},
            *(
                {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 0, "delta": each}
                for each in ('{"query":', '"mail"}')
            ),
            {"type": "response.output_item.done", "output_index": 0, "item": _function_call('{"query":"mail"}')},
            {"type": "response.completed", "response": {"id": "resp_1", "status": "completed"}},
        ],
    }
    wire = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in streams[target])
    out = b"".join(made.translate([wire[index : index + 7] for index in range(0, len(wire), 7)]))
    events = [json.loads(line[6:]) for line in out.decode().splitlines() if line.startswith("data: {")]
    about = [event for event in events if "item" in event]
    assert [event["type"] for event in about] == ["response.output_item.added", "response.output_item.done"]
    assert [event["item"]["arguments"] for event in about] == [{}, {"query": "mail"}]
    assert {event["item"]["type"] for event in about} == {"tool_search_call"}
    assert not [event for event in events if "arguments" in event["type"]]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def _function_call(arguments: str) -> Json:
    return {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "tool_search", "arguments": arguments}


@TARGETS
def test_what_was_found_is_declared_from_there_on(target: str):
    body = sent(target, *searched("s1", space("mcp__mail", "send", "list")))
    assert names(body) == ["f", "tool_search", "mcp__mail__send", "mcp__mail__list"]
    assert "defer_loading" not in json.dumps(body)
    history = json.dumps(body.get("messages") or body["input"])
    assert "The tools mcp__mail__send, mcp__mail__list can be called." in history
    assert "tool_search_output" not in history


@TARGETS
def test_a_call_of_a_found_tool_has_its_namespace(target: str):
    item = called(target, "mcp__mail__send", *searched("s1", space("mcp__mail", "send")))
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "mcp__mail", "send")


@TARGETS
def test_declarations_only_grow(target: str):
    first = searched("s1", space("mcp__mail", "send"))
    second = [*first, *searched("s2", space("mcp__disk", "read"))]
    third = [*second, *searched("s3", space("mcp__mail", "list", "send"))]
    bodies = [sent(target, *items) for items in ((), first, second, third)]
    for earlier, later in pairwise(bodies):
        field = "messages" if "messages" in earlier else "input"
        assert later["tools"][: len(earlier["tools"])] == earlier["tools"]
        assert later[field][: len(earlier[field])] == earlier[field]
    assert names(bodies[-1])[2:] == ["mcp__mail__send", "mcp__disk__read", "mcp__mail__list"]


@TARGETS
def test_a_search_that_found_nothing_says_so(target: str):
    body = sent(target, *searched("s1"))
    assert names(body) == ["f", "tool_search"]
    assert "No tool was found." in json.dumps(body)


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("target", ["chat", "messages"])
def test_half_a_search_is_left_out(target: str, half: int):
    body = {"model": "m", "input": [USER, searched("s1")[half]], "tools": [function("f"), SEARCH]}
    made = convert_request("responses", target, json.dumps(body))  # pyright: ignore[reportArgumentType]
    assert [note.code for note in made.notes] == ["item_dropped"]
    assert len(json.loads(made.body)["messages"]) == 1


def test_a_server_that_knows_the_search_gets_it_as_it_came():
    items = [USER, *searched("s1", space("mcp__mail", "send")), *searched("s2", execution="server")]
    body = {"model": "m", "input": items, "tools": [function("f", defer_loading=True), SEARCH], "store": False}
    made = json.loads(convert_request("responses", "responses", json.dumps(body)).body)
    assert (made["input"], made["tools"]) == (items, body["tools"])


@TARGETS
def test_deferred_tools_without_a_search_are_declared(target: str):
    assert names(sent(target, tools=(function("f", defer_loading=True),))) == ["f"]


@TARGETS
def test_a_tool_that_is_forced_is_declared(target: str):
    tools = [function("f", defer_loading=True), function("g", defer_loading=True), SEARCH]
    choice = {"type": "function", "name": "g"}
    body = {"model": "m", "input": [USER], "tools": tools, "tool_choice": choice}
    made = convert_request("responses", target, json.dumps(body), profile=profile(target))  # pyright: ignore[reportArgumentType]
    assert names(json.loads(made.body)) == ["tool_search", "g"]


@TARGETS
def test_searches_of_a_server_are_read_by_their_order(target: str):
    items = [
        *searched("s1", space("mcp__mail", "send"), execution="server"),
        *searched("s2", space("mcp__disk", "read"), execution="server"),
    ]
    assert names(sent(target, *items))[2:] == ["mcp__mail__send", "mcp__disk__read"]


# Claude's side: deferred tools, references, searches of the server


def claude(name: str, **fields: Any) -> Json:
    return {"name": name, "description": f"Does {name}.", "input_schema": SCHEMA, **fields}


FINDER: Json = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
LATER = tuple(claude(name, defer_loading=True) for name in ("alpha", "beta", "gamma"))


def reference(name: str) -> Json:
    return {"type": "tool_reference", "tool_name": name}


def found(id: str, *tools: str) -> list[Json]:
    """A search that the client has run."""
    use = {"type": "tool_use", "id": id, "name": "ToolSearch", "input": {"query": "x"}}
    result = {"type": "tool_result", "tool_use_id": id, "content": [reference(tool) for tool in tools]}
    return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]


def served(id: str, *tools: str) -> Json:
    """A search that the server has run, in one message with what it said."""
    use = {"type": "server_tool_use", "id": f"srvtoolu_{id}", "name": FINDER["name"], "input": {"query": "x"}}
    content = {"type": "tool_search_tool_search_result", "tool_references": [reference(tool) for tool in tools]}
    result = {"type": "tool_search_tool_result", "tool_use_id": f"srvtoolu_{id}", "content": content}
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": "Hm."}, use, result, {"type": "text", "text": "!"}],
    }


def asked(target: str, *messages: Json, tools: tuple[Json, ...] = (claude("ToolSearch"), *LATER)) -> Json:
    history = [{"role": "user", "content": "Go."}, *messages]
    body = {"model": "m", "max_tokens": 9, "messages": history, "tools": list(tools)}
    made = convert_request("messages", target, json.dumps(body), profile=profile(target))  # pyright: ignore[reportArgumentType]
    return json.loads(made.body)


@TARGETS
def test_a_deferred_tool_is_declared_once_it_was_found(target: str):
    bodies = [
        asked(target),
        asked(target, *found("t1", "beta")),
        asked(target, *found("t1", "beta"), *found("t2", "alpha", "beta")),
    ]
    declared = [names(body) for body in bodies]
    assert declared == [["ToolSearch"], ["ToolSearch", "beta"], ["ToolSearch", "beta", "alpha"]]
    assert "The tool beta can be called." in json.dumps(bodies[1])
    assert "The tools alpha, beta can be called." in json.dumps(bodies[2])
    for earlier, later in pairwise(bodies):
        field = "messages" if "messages" in earlier else "input"
        assert later[field][: len(earlier[field])] == earlier[field]
    assert not any(word in json.dumps(bodies) for word in ("tool_reference", "defer_loading"))


@TARGETS
def test_a_tool_that_was_called_is_declared(target: str):
    use = {"type": "tool_use", "id": "t1", "name": "gamma", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}
    body = asked(target, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]})
    assert names(body) == ["ToolSearch", "gamma"]


def test_a_server_of_the_dialect_gets_everything_as_it_came():
    messages = [{"role": "user", "content": "Go."}, *found("t1", "beta"), served("s1", "gamma")]
    body = {"model": "m", "max_tokens": 9, "messages": messages, "tools": [claude("ToolSearch"), *LATER, FINDER]}
    made = json.loads(convert_request("messages", "messages", json.dumps(body)).body)
    assert (made["messages"], made["tools"]) == (messages, body["tools"])


@TARGETS
def test_a_search_of_another_server_is_read(target: str):
    body = asked(target, served("s1", "gamma"), {"role": "user", "content": "And?"}, tools=(claude("f"), *LATER))
    assert names(body) == ["f", "gamma"]
    history = json.dumps(body.get("messages") or body["input"])
    assert "The tool gamma can be called." in history
    assert "srvtoolu_" not in history


@TARGETS
def test_without_anybody_who_searches_all_tools_are_declared(target: str):
    history = [{"role": "user", "content": "Go."}]
    body = {"model": "m", "max_tokens": 99, "messages": history, "tools": [claude("f"), *LATER, FINDER]}
    made = convert_request("messages", target, json.dumps(body), profile=profile(target))  # pyright: ignore[reportArgumentType]
    assert names(json.loads(made.body)) == ["f", "alpha", "beta", "gamma"]
    assert [(note.code, note.subject) for note in made.notes] == [("tool_dropped", FINDER["type"])]


def test_a_server_of_the_dialect_keeps_what_it_knows():
    body = {
        "model": "m",
        "max_tokens": 9,
        "top_k": 4,
        "messages": [{"role": "user", "content": "Go."}, *found("t1", "beta")],
        "tools": [claude("ToolSearch", cache_control={"type": "ephemeral"}), *LATER],
    }
    made = convert_request("messages", "messages", json.dumps(body), profile={"tool_search": False})
    sent = json.loads(made.body)
    assert (sent["top_k"], sent["messages"][:2]) == (4, body["messages"][:2])
    assert sent["tools"][0]["cache_control"] == {"type": "ephemeral"}
    assert made.notes == ()


# Other places that know of it


def test_app_server_is_told_of_found_tools():
    body = {
        "model": "m",
        "input": [USER, *searched("s1", space("mcp__mail", "send"))],
        "tools": [function("f"), SEARCH],
    }
    conversation = codex.Conversation(responses.decode_request(json.dumps(body).encode()), "seed")
    opened = conversation.start().outbox[0].params
    reserved = [tool["name"] for tool in opened["dynamicTools"]]
    assert reserved[:2] == ["f", "tool_search"]
    assert len(reserved) == 3
    assert (
        conversation.restore.restore_name("", reserved[2]) == "send"
    )  # names that begin with mcp__ are app-server's own


def test_hidden_tools_are_not_counted():
    def tokens(*items: Json) -> int:
        tools = [function("f"), space("mcp__mail", "send"), {"type": "tool_search"}]
        body = {"model": "m", "input": [USER, *items], "tools": tools}
        return estimate_tokens(responses.decode_request(json.dumps(body).encode()))

    found = searched("s1", space("mcp__mail", "send"), execution="server")
    nothing = searched("s1", execution="server")
    more = len(json.dumps(found[1])) - len(json.dumps(nothing[1]))
    assert tokens(*found) > tokens(*nothing) + more // 4


# What a server refuses

REFUSALS = [
    "tools.3.custom.defer_loading: Extra inputs are not permitted",
    "messages.2.content.0.tool_result.content.0: Input tag 'tool_reference' found using 'type' does not match any",
    "Invalid value: 'tool_search'. Supported values are: 'function' and 'custom'.",
    "Failed to deserialize the JSON body: messages[3]: unknown variant `tool_reference`, expected `text`",
]


@pytest.mark.parametrize("message", REFUSALS)
def test_a_refusal_of_the_search_is_understood(message: str):
    found = find_refused_part(Failure(400, "invalid_request_error", message))
    assert found is not None
    assert (found.part, found.always) == ("tool_search", True)


@pytest.mark.parametrize("message", ["At least one tool must have defer_loading=false.", "max_tokens is not supported"])
def test_a_fault_of_the_client_is_no_refusal(message: str):
    assert find_refused_part(Failure(400, "invalid_request_error", message)) is None


# Ranking


def tool(name: str, description: str = "", *parameters: str, namespace: str = "") -> Tool:
    schema = msgspec.Raw(json.dumps({"type": "object", "properties": {each: {} for each in parameters}}).encode())
    return Tool(name, description, schema, namespace=namespace)


BOX = (
    tool("send_message", "Sends a text to a channel.", "channel", "text", namespace="mcp__slack"),
    tool("listIssues", "Lists the issues of a repository.", "repository", namespace="mcp__github"),
    tool("create_issue", "Opens a new issue.", "title", "body", namespace="mcp__github"),
    tool("get_weather", "The weather in a city.", "city", "unit"),
    tool("read_file", "Reads a file of the repository.", "path"),
)


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("weather in Rome", "get_weather"),
        ("list issue", "listIssues"),
        ("create an issue on github", "create_issue"),
        ("slack", "send_message"),
        ("path", "read_file"),
        ("channel", "send_message"),
        ("REPOSITORY files", "read_file"),
    ],
)
def test_words_of_name_description_and_parameters_are_found(question: str, first: str):
    assert search_by_words(question, BOX, 3)[0].name == first


def test_nothing_is_found_for_unknown_words():
    assert search_by_words("quantum", BOX, 5) == search_by_words("", BOX, 5) == search_by_words("x", (), 5) == []


def test_no_more_are_found_than_asked_for():
    assert len(search_by_words("issue repository", BOX, 2)) == 2
    assert len(search_by_pattern(".", BOX, 2)) == 2


def test_a_rare_word_counts_more_and_equal_tools_keep_their_order():
    box = [*(tool(f"get_{name}", "Gets a thing.") for name in "abcd"), tool("get_heron", "Gets a thing.")]
    assert search_by_words("get heron", box, 1)[0].name == "get_heron"
    assert [each.name for each in search_by_words("thing", box, 5)] == [each.name for each in box]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("issue", ["listIssues", "create_issue"]),
        ("(?i)ISSUE", ["listIssues", "create_issue"]),
        ("get_.*", ["get_weather"]),
        ("^read|weather", ["get_weather", "read_file"]),
        ("mcp__github", ["listIssues", "create_issue"]),
        (r"\bcity\b", ["get_weather"]),
        ("repository", ["listIssues", "read_file"]),
        ("[x-z]{3}", []),
    ],
)
def test_a_regular_expression_is_found_in_any_case(pattern: str, found: list[str]):
    assert [each.name for each in search_by_pattern(pattern, BOX, 5)] == found


@pytest.mark.parametrize("pattern", ["(", "[", "a" * 201, r"(a)\1", "(?=a)a", "*"])
def test_a_regular_expression_that_is_none_is_refused(pattern: str):
    with pytest.raises(BadPattern):
        search_by_pattern(pattern, BOX, 5)


CATASTROPHES = ["(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*)*x", "(a*)*(a*)*(a*)*!", "(x+x+)+y", "([a-z]+)*[0-9]"]


@pytest.mark.parametrize("pattern", CATASTROPHES)
def test_no_regular_expression_takes_long(pattern: str):
    """`re` would need ages for each of these."""
    box = [tool("f", "a" * 2000 + "?"), tool("g", "x" * 2000)]
    began = sum(os.times()[:2])
    search_by_pattern(pattern, box, 5)
    assert sum(os.times()[:2]) - began < 30


def test_a_search_is_given_up_after_its_steps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranking, "MAX_STEPS", 2000)
    many = [tool(f"f{index}", "a" * 1000) for index in range(100)]
    with pytest.raises(SearchTooLong):
        search_by_pattern("b+", many, 5)
    assert [each.name for each in search_by_pattern("f3$|b+", many, 5)] == ["f3"]  # what was found counts
