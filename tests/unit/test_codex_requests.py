"""The codex backend: what a request becomes at app-server, what it loses on the way, and what workers run with."""

import json
import re
import tomllib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.codex_lines import (
    BEGUN,
    OPENED,
    RECORDINGS,
    STARTED,
    THREAD,
    USER,
    Talk,
    asked,
    completed,
    raw_call,
    recorded,
)
from toolwire.adapt.history import OPENING
from toolwire.adapt.schemas import adjust
from toolwire.backends import codex
from toolwire.backends.codex import config as codex_config
from toolwire.backends.codex import protocol
from toolwire.backends.codex.config import LIMITS
from toolwire.backends.codex.encode import ONE_AT_A_TIME, ONLY_JSON
from toolwire.backends.codex.protocol import UNASSIGNED
from toolwire.core.request import (
    AudioPart,
    CallEntry,
    Caller,
    Entry,
    FilePart,
    ImagePart,
    Message,
    OtherEntry,
    OtherPart,
    OutputFormat,
    ReasoningEntry,
    RefusalPart,
    Request,
    ResultEntry,
    Sampling,
    TextPart,
    Tool,
    ToolChoice,
)

DATA = "data:image/png;base64,AA"


class ResumedRequest(msgspec.Struct):
    """What app-server was asked for one request."""

    start: dict[str, Any]
    items: list[Any]
    turn: dict[str, Any]
    notes: list[tuple[str, str]]

    @property
    def tools(self) -> dict[str, Any]:
        return {tool["name"]: tool for tool in self.start["dynamicTools"]}


def opened(*entries: Entry, summary: str = "auto", **fields: Any) -> ResumedRequest:
    made = Talk(Request("m", entries or (USER,), **fields), summary=summary)
    [(method, start)] = made.said()
    assert method == "thread/start"
    made.hear(OPENED)
    *injected, (method, turn) = made.said()
    assert method == "turn/start"
    assert turn.pop("threadId") == THREAD
    items = [item for _, params in injected for item in params["items"]]
    assert [method for method, _ in injected] == ["thread/inject_items"] * bool(items)
    made.hear(STARTED)
    return ResumedRequest(start, items, turn, made.notes)


def text(role: str, *texts: str) -> Message:
    return Message(role, tuple(map(TextPart, texts)))  # pyright: ignore[reportArgumentType]


def shown(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": each} for each in texts]}


# A thread


def test_nothing_is_asked_that_was_not():
    assert opened() == ResumedRequest(
        start={
            "model": "m",
            "modelProvider": "toolwire",
            "ephemeral": True,
            "approvalPolicy": "never",
            "sandbox": "read-only",
            "environments": [],
            "experimentalRawEvents": True,
            "baseInstructions": "",
            "developerInstructions": None,
            "dynamicTools": [],
        },
        items=[shown("user", "Go.")],
        turn={"input": [], "summary": "auto"},
        notes=[],
    )


def test_a_request_without_history_injects_none():
    made = Talk(Request("m", (text("system", "Be brief."),)))
    made.said()
    made.hear(OPENED)
    assert [method for method, _ in made.said()] == ["turn/start"]


SPEAKERS: list[tuple[str, tuple[Message, ...], str, str | None, list[Any]]] = [
    ("", (), "", None, []),
    ("I", (), "I", None, []),
    ("", (text("system", "S"),), "S", None, []),
    ("I", (text("system", "S"),), "I\n\nS", None, []),
    ("I", (text("developer", "D"),), "I", "D", []),
    ("", (text("system", "S", "T"), text("system", "U")), "S\n\nT\n\nU", None, []),
    ("", (text("system", "S"), text("developer", "D"), text("system", "T")), "S", "D\n\nT", []),
    ("", (text("developer", "D"), text("developer", "E")), "", "D\n\nE", []),
    ("", (text("system", ""), text("developer", "")), "", None, []),
    ("", (text("user", "U"), text("system", "S")), "", None, [shown("user", "U"), shown("developer", "S")]),
    ("", (text("user", "U"), text("developer", "D")), "", None, [shown("user", "U"), shown("developer", "D")]),
]


@pytest.mark.parametrize(("instructions", "entries", "base", "developer", "items"), SPEAKERS)
def test_what_is_said_first_is_an_instruction_and_later_a_developers_message(
    instructions: str, entries: tuple[Message, ...], base: str, developer: str | None, items: list[Any]
):
    found = opened(*entries, USER, instructions=instructions)
    assert (found.start["baseInstructions"], found.start["developerInstructions"]) == (base, developer)
    assert found.items == [*items, shown("user", "Go.")]


# A history


def test_a_history_becomes_items():
    found = opened(
        text("user", "U", "V"),
        text("assistant", "A"),
        CallEntry("c1", "f", '{"a": 1}'),
        CallEntry("c2", "f", " "),
        ResultEntry("c1", (TextPart("one"), TextPart("two"))),
        ResultEntry("c2", ()),
        CallEntry("c3", "f", "{}"),
        CallEntry("c4", "f", "{}"),
        ResultEntry("c3", (TextPart("see"), ImagePart(DATA))),
        ResultEntry("c4", (TextPart("it broke"),), failed=True),
        Message("user", (TextPart("what is this?"), ImagePart(DATA, "high"))),
    )
    assert found.items == [
        shown("user", "U", "V"),
        shown("assistant", "A"),
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one\ntwo"},
        {"type": "function_call_output", "call_id": "c2", "output": ""},
        {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c4", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c3", "output": [
            {"type": "input_text", "text": "see"},
            {"type": "input_image", "image_url": DATA, "detail": "auto"}]},
        {"type": "function_call_output", "call_id": "c4", "output": "Error: it broke"},
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "what is this?"},
            {"type": "input_image", "image_url": DATA, "detail": "high"}]},
    ]  # fmt: skip
    assert found.notes == []


def test_what_the_model_declined_with_is_text():
    found = opened(
        USER,
        Message("assistant", (RefusalPart("I will not."),)),
        CallEntry("c1", "f", "{}"),
        ResultEntry("c1", (RefusalPart("No."),)),
    )
    assert found.items[1] == shown("assistant", "I will not.")
    assert found.items[3]["output"] == "No."
    assert found.notes == []


@pytest.mark.parametrize(
    ("part", "kind"),
    [(FilePart(id="f1"), "file"), (AudioPart("AA", "wav"), "audio"), (OtherPart("hologram"), "hologram")],
)
def test_parts_that_there_is_no_word_for_are_dropped_and_noted(part: Any, kind: str):
    found = opened(Message("user", (TextPart("U"), part)), text("assistant", "A"))
    assert found.items == [shown("user", "U"), shown("assistant", "A")]
    assert found.notes == [("part_dropped", kind)]


def test_a_message_of_such_parts_alone_is_left_out():
    found = opened(USER, Message("user", (FilePart(id="f1"),)))
    assert (found.items, found.notes) == ([shown("user", "Go.")], [("part_dropped", "file")])
    found = opened(Message("user", (FilePart(id="f1"),)))
    assert found.items == [shown("user", OPENING)]
    assert found.notes == [("part_dropped", "file"), ("message_added", "user")]


def test_entries_of_another_dialect_are_dropped_and_noted():
    found = opened(USER, OtherEntry("web_search_call", msgspec.Raw(b'{"type":"web_search_call"}')))
    assert found.items == [shown("user", "Go.")]
    assert found.notes == [("item_dropped", "web_search_call")]


@pytest.mark.parametrize(
    "entries",
    [
        (Message("user", (TextPart("See."), ImagePart("https://example.com/i.png"))),),
        (
            USER,
            CallEntry("c1", "f", "{}"),
            ResultEntry("c1", (TextPart("See."), ImagePart("https://example.com/i.png"))),
        ),
    ],
)
def test_an_image_by_address_is_not_sent(entries: tuple[Entry, ...]):
    found = opened(*entries)
    assert "https://" not in json.dumps(found.items)
    assert found.notes == [("part_dropped", "image")]


def test_an_image_by_an_id_of_the_servers_own_is_sent():
    found = opened(Message("user", (ImagePart("", id="file-1"),)))
    assert found.items[0]["content"] == [{"type": "input_image", "file_id": "file-1", "detail": "auto"}]
    assert found.notes == []


def test_another_detail_of_an_image_is_noted():
    assert [code for code, _ in opened(Message("user", (ImagePart(DATA, "low"),))).notes] == ["value_changed"]


@pytest.mark.parametrize("detail", ["low", "ultra"])
def test_an_image_is_sent_in_a_detail_that_app_server_takes(detail: str):
    found = opened(Message("user", (ImagePart(DATA, detail),)))
    assert found.items[0]["content"][0]["detail"] in ("auto", "high", "original")


def test_thoughts_return_with_their_own_seal_only():
    found = opened(
        USER,
        ReasoningEntry("rs_1", ("Hm.",), (), "SEAL", "responses"),
        text("assistant", "A"),
        ReasoningEntry("th_1", ("Hm.",), (), "SEAL", "messages"),
        CallEntry("c1", "f", "{}"),
        ResultEntry("c1", ()),
        ReasoningEntry("rs_2", ("Led nowhere.",), (), "SEAL", "responses"),
        text("user", "Next."),
    )
    summary = [{"type": "summary_text", "text": "Hm."}]
    assert [item for item in found.items if item["type"] == "reasoning"] == [
        {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "SEAL"}
    ]
    assert sorted(found.notes) == [("reasoning_dropped", "rs_2"), ("reasoning_dropped", "th_1")]


def test_a_thought_without_a_seal_does_not_return_empty():
    raw = msgspec.Raw(b'{"type":"reasoning","id":"rs_1","content":[{"type":"reasoning_text","text":"Hm."}]}')
    found = opened(USER, ReasoningEntry("rs_1", (), ("Hm.",), raw=raw), text("assistant", "A"), USER)
    assert [item for item in found.items if item["type"] == "reasoning"] == []
    assert found.notes == [("reasoning_dropped", "rs_1")]


# Tools

F, G = Tool("f", "F"), Tool("g")
ANY = "Call a tool before you answer."


@pytest.mark.parametrize(
    ("choice", "tools", "words", "notes"),
    [
        (None, ["f", "g"], None, []),
        (ToolChoice("auto"), ["f", "g"], None, []),
        (ToolChoice("none"), [], None, []),
        (ToolChoice("required"), ["f", "g"], ANY, ["tool_choice"]),
        (ToolChoice("required", "g"), ["g"], "Call the tool g before you answer.", ["tool_choice"]),
        (ToolChoice("auto", limited=True, allowed=("g",)), ["g"], None, []),
        (ToolChoice("required", limited=True, allowed=("g",)), ["g"], ANY, ["tool_choice"]),
        (ToolChoice("auto", limited=True, allowed=()), [], None, []),
    ],
)
def test_a_tool_choice_is_made_by_the_list_of_tools_and_in_words(
    choice: ToolChoice | None, tools: list[str], words: str | None, notes: list[str]
):
    found = opened(tools=(F, G), tool_choice=choice)
    assert [*found.tools] == tools
    assert found.start["developerInstructions"] == words
    assert found.notes == [("field_dropped", name) for name in notes]


def test_a_choice_without_tools_asks_for_nothing():
    found = opened(tool_choice=ToolChoice("required"), parallel_calls=False)
    assert (found.start["developerInstructions"], found.notes) == (None, [])


@pytest.mark.parametrize(("choice", "said"), [(None, ONE_AT_A_TIME), (ToolChoice("none"), None)])
def test_one_call_at_a_time_is_asked_for_in_words(choice: ToolChoice | None, said: str | None):
    found = opened(tools=(F,), parallel_calls=False, tool_choice=choice)
    assert found.start["developerInstructions"] == said
    assert found.notes == ([("field_dropped", "parallel_tool_calls")] if said else [])
    assert opened(tools=(F,), parallel_calls=True).notes == []


def test_what_is_asked_in_words_comes_behind_what_the_developer_says():
    found = opened(text("developer", "D"), USER, tools=(F,), tool_choice=ToolChoice("required"), parallel_calls=False)
    assert found.start["developerInstructions"] == f"D\n\n{ANY}\n\n{ONE_AT_A_TIME}"


def test_a_tool_has_its_description_and_its_schema():
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    found = opened(tools=(Tool("f", "F", raw_schema(schema)), Tool("g")))
    assert found.start["dynamicTools"] == [
        {"type": "function", "name": "f", "description": "F", "inputSchema": schema},
        {"type": "function", "name": "g", "description": "", "inputSchema": {"type": "object", "properties": {}}},
    ]
    assert found.notes == []


def raw_schema(schema: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(schema).encode())


@pytest.mark.parametrize(("strict", "notes"), [(True, [("field_dropped", "f.strict")]), (False, []), (None, [])])
def test_a_strict_tool_is_not_and_is_noted(strict: bool | None, notes: list[Any]):
    found = opened(tools=(Tool("f", parameters=raw_schema({"type": "object", "properties": {}}), strict=strict),))
    assert "strict" not in found.tools["f"]
    assert found.notes == notes


NAMED = [
    Tool("mcp__docs__search"),
    Tool("mcp__docs__search", kind="custom"),
    Tool("dots.in.name"),
    Tool("bad name/with:signs"),
    Tool("渐"),
    Tool("a" * 200),
    Tool("mcp__" + "a" * 200),
    Tool("search", namespace="docs"),
    Tool("search", namespace="mcp__docs"),
    Tool("search", namespace="n" * 130),
    Tool("patch", kind="custom"),
    Tool("_mcp__x"),
    Tool("a" * 128),
]


def is_taken(name: str) -> bool:
    """Whether app-server takes a tool of this name."""
    return re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", name) is not None and not name.startswith("mcp__")


@pytest.mark.parametrize("tool", NAMED, ids=lambda tool: f"{tool.kind} {tool.namespace[:9]}.{tool.name[:20]}")
def test_a_name_that_does_not_fit_is_restored_in_calls(tool: Tool):
    wrapped, arguments = ('{"input":"a\\nb"}', "a\nb") if tool.kind == "custom" else ('{"a":1}', '{"a":1}')
    made = Talk(Request("m", (USER,), tools=(tool, Tool("other"))))
    [(_, start)] = made.said()
    name = start["dynamicTools"][0]["name"]
    assert is_taken(name)
    call = raw_call("c1", name, wrapped)
    made.hear(BEGUN, call, asked(0, "c1", name, arguments=json.loads(wrapped)), completed())
    [told] = made.turn.calls
    assert (told.id, told.name, told.namespace, told.kind) == ("c1", tool.name, tool.namespace, tool.kind)
    assert told.arguments == arguments
    assert made.turn.notes == ()


@pytest.mark.parametrize("tool", NAMED, ids=lambda tool: f"{tool.kind} {tool.namespace[:9]}.{tool.name[:20]}")
def test_history_and_choice_go_by_the_name_that_fits(tool: Tool):
    call = CallEntry("c1", tool.name, "a\nb" if tool.kind == "custom" else "{}", tool.kind, tool.namespace)
    found = opened(
        USER,
        call,
        ResultEntry("c1", (TextPart("x"),), tool.kind),
        tools=(tool, Tool("other")),
        tool_choice=ToolChoice("required", tool.name, tool.kind),
    )
    [name] = found.tools
    assert found.items[1]["name"] == name
    assert [item["type"] for item in found.items[1:]] == ["function_call", "function_call_output"]
    assert json.loads(found.items[1]["arguments"]) == ({"input": "a\nb"} if tool.kind == "custom" else {})
    assert found.start["developerInstructions"] == f"Call the tool {name} before you answer."


@given(st.lists(st.text("ab._-/渐", max_size=4).map(lambda end: f"mcp__{end}") | st.text(max_size=140), unique=True))
def test_names_fit_and_stay_apart(names: list[str]):
    made = [LIMITS.fit_name(name) for name in names]
    assert all(map(is_taken, made))
    assert len(set(made)) == len(names)
    assert made == [LIMITS.fit_name(name) for name in names], "the same in every turn"


# Schemas


def described(schema: Any) -> tuple[str, list[tuple[str, str]], Any]:
    """The description that a tool of this schema gets, what is noted, and its schema."""
    found = opened(tools=(Tool("f", "F.", raw_schema(schema)),))
    return found.tools["f"]["description"], found.notes, found.tools["f"]["inputSchema"]


def keywords(schema: Any, path: str = "") -> set[tuple[str, str]]:
    """Every keyword in a schema that limits what may be said, with its place."""
    if not isinstance(schema, dict):
        return set()
    found = {(path, key) for key in schema}
    for key in ("properties", "$defs"):
        for name, inner in schema.get(key, {}).items():
            found |= keywords(inner, f"{path}.{name}" if path else name)
    return found


def recorded_schema() -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema as it was given to app-server, and as it reached the model."""
    [start] = [row["msg"]["params"] for row in recorded("38") if row.get("msg", {}).get("method") == "thread/start"]
    [sent] = [row["body"] for row in recorded("38") if row["dir"] == "upstream_request"]
    return start["dynamicTools"][0]["inputSchema"], sent["tools"][0]["parameters"]


_SAYS_NOTHING = {"$schema", "title", "x-vendor", "examples"}


def test_all_that_app_server_is_known_to_forget_is_told_to_the_model():
    given_schema, left = recorded_schema()
    lost = {(path, key) for path, key in keywords(given_schema) - keywords(left) if key not in _SAYS_NOTHING}
    assert lost, "or this says nothing"
    description, notes, _ = described(given_schema)
    told = json.loads(description.partition("by field: ")[2])
    assert {(path, key) for path, key in lost if key not in told.get(path, {})} == set()
    assert notes == [("schema_changed", "f")]


FORGOTTEN: dict[str, Any] = {
    "const": "fixed",
    "contains": {"type": "string"},
    "default": "a",
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {"required": ["b"]}},
    "exclusiveMaximum": 9,
    "exclusiveMinimum": 1,
    "format": "date-time",
    "maxItems": 3,
    "maxLength": 3,
    "maxProperties": 3,
    "maximum": 9,
    "minLength": 1,
    "minProperties": 1,
    "minimum": 1,
    "multipleOf": 2,
    "not": {"type": "null"},
    "pattern": "^a+$",
    "patternProperties": {"^a": {"type": "string"}},
    "prefixItems": [{"type": "string"}],
    "propertyNames": {"pattern": "^a"},
    "uniqueItems": True,
}

PLACES = {
    "a property": lambda inner: {"p": inner},
    "an inner property": lambda inner: {"p": {"type": "object", "properties": {"q": inner}}},
    "an item": lambda inner: {"p": {"type": "array", "items": inner}},
    "an alternative": lambda inner: {"p": {"anyOf": [inner, {"type": "null"}]}},
    "one of": lambda inner: {"p": {"oneOf": [{"type": "null"}, inner]}},
    "all of": lambda inner: {"p": {"allOf": [inner]}},
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("keyword", FORGOTTEN)
def test_a_keyword_that_gets_lost_is_in_the_description_and_noted(keyword: str, place: str):
    inner = {"type": "string", keyword: FORGOTTEN[keyword]}
    description, notes, _ = described({"type": "object", "properties": PLACES[place](inner)})
    assert notes == [("schema_changed", "f")]
    start, _, rest = description.partition("\n\nConstraints on the input, by field: ")
    assert start == "F."
    assert json.loads(rest).popitem()[1][keyword] == FORGOTTEN[keyword]


def test_a_keyword_of_properties_without_a_name_is_in_the_description():
    inner = {"type": "string", "pattern": "^a+$"}
    description, notes, _ = described(
        {"type": "object", "properties": {"p": {"type": "object", "additionalProperties": inner}}}
    )
    assert notes == [("schema_changed", "f")]
    assert "^a+$" in description


def test_a_condition_is_in_the_description():
    condition = {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}}
    description, notes, _ = described({"type": "object", "properties": {"p": {"type": "object", **condition}}})
    assert json.loads(description.partition("by field: ")[2]) == {"p": condition}
    assert notes == [("schema_changed", "f")]


def test_a_keyword_in_a_definition_is_in_the_description():
    schema = {
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/Small"}, "q": {"$ref": "#/definitions/Big"}},
        "$defs": {"Small": {"type": "integer", "maximum": 9}},
        "definitions": {"Big": {"type": "integer", "minimum": 9}},
    }
    description, notes, _ = described(schema)
    assert json.loads(description.partition("by field: ")[2]) == {"Small": {"maximum": 9}, "Big": {"minimum": 9}}
    assert notes == [("schema_changed", "f")]


def test_limits_of_all_alternatives_and_of_the_field_itself_are_in_the_description():
    choices = [{"type": "string", "minLength": 1}, {"type": "integer", "minimum": 7}]
    description, *_ = described({"type": "object", "properties": {"p": {"anyOf": choices, "default": None}}})
    assert [word for word in ("minLength", "minimum", "default") if word not in description] == []


def test_properties_that_are_called_like_keywords_are_only_names():
    properties = {name: {"type": "string"} for name in (*FORGOTTEN, "properties", "items")}
    assert described({"type": "object", "properties": properties})[:2] == ("F.", [])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "minItems": 1}}},
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"type": "string", "title": "A", "examples": ["b"]}}, "title": "T"},
        {"type": "object", "properties": {"a": {"type": "string", "enum": ["x"], "description": "A."}}},
        {"type": "object", "properties": {}, "additionalProperties": False},
    ],
)
def test_a_schema_that_loses_nothing_goes_without_a_word(schema: Any):
    assert described(schema) == ("F.", [], schema)


@pytest.mark.parametrize(
    "inner",
    [
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"oneOf": [{"type": "string"}, {"type": "null"}]},
        {"allOf": [{"type": "string"}]},
        {"enum": ["a"]},
        {"$ref": "#/properties/b"},
        {"properties": {"c": {"type": "string"}}},
        {"additionalProperties": {"type": "string"}},
        {"items": {"type": "string"}},
    ],
    ids=lambda inner: next(iter(inner)),
)
def test_a_description_that_app_server_keeps_is_not_repeated(inner: Any):
    schema = {"type": "object", "properties": {"a": {**inner, "description": "A."}, "b": {"type": "string"}}}
    assert described(schema) == ("F.", [], schema)


def test_a_description_without_a_type_is_not_lost():
    description, *_ = described({"type": "object", "properties": {"a": {"description": "Anything at all."}}})
    assert "Anything at all." in description


def test_more_than_a_model_would_read_is_noted_only():
    properties = {f"field_{number}": {"type": "string", "pattern": "x" * 50} for number in range(30)}
    description, notes, _ = described({"type": "object", "properties": properties})
    assert (description, notes) == ("F.", [("schema_changed", "f")])


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, {"type": "object", "properties": {}}),
        ({"type": "object"}, {"type": "object", "properties": {}}),
        (True, {"type": "object", "properties": {}}),
        (
            {"type": "object", "properties": {"a": {"type": "array"}}},
            {"type": "object", "properties": {"a": {"type": "array", "items": {}}}},
        ),
    ],
)
def test_a_schema_is_an_object_with_properties(schema: Any, expected: Any):
    assert described(schema)[2] == expected


def test_alternatives_at_the_top_become_properties_and_a_remark():
    one, two = (
        {"type": "object", "properties": {name: {"type": "string", "minLength": 1}}, "required": [name]}
        for name in "ab"
    )
    description, notes, schema = described({"anyOf": [one, two]})
    assert sorted(schema["properties"]) == ["a", "b"]
    assert schema["type"] == "object"
    assert "anyOf" in description
    assert "minLength" in description
    assert notes == [("schema_changed", "f")]


@pytest.mark.parametrize(
    "items",
    [
        [{"type": "string"}],
        pytest.param([]),
    ],
)
def test_a_tuple_of_items_is_not_sent(items: list[Any]):
    """App-server refuses it, and all of the request with it."""
    *_, schema = described({"type": "object", "properties": {"a": {"type": "array", "items": items}}})
    assert not isinstance(schema["properties"]["a"].get("items"), list)


def test_a_number_of_items_is_sent_as_an_integer():
    inner = {"type": "array", "items": {"type": "string"}, "minItems": 1.0}
    *_, schema = described({"type": "object", "properties": {"a": inner}})
    assert str(schema["properties"]["a"].get("minItems", 1)) == "1"


@pytest.mark.parametrize("inner", [{"type": "array", "items": True}, {"anyOf": [True, {"type": "null"}]}])
def test_anything_is_sent_as_an_object_wherever_it_stands(inner: Any):
    *_, schema = described({"type": "object", "properties": {"a": inner}})
    assert "true" not in json.dumps(schema)


@pytest.mark.parametrize(
    ("inner", "expected"),
    [({"const": 5}, {"type": "integer"}), ({"enum": [1, 2]}, {"type": "integer"}), (True, {})],
)
def test_what_app_server_would_take_for_a_string_is_sent_as_what_it_is(inner: Any, expected: dict[str, Any]):
    *_, schema = described({"type": "object", "properties": {"a": inner}})
    sent = schema["properties"]["a"]
    assert isinstance(sent, dict)
    assert expected.items() <= sent.items()


def test_what_cannot_be_read_as_a_schema_is_left_to_app_server():
    assert adjust(msgspec.Raw(b'{"type":'), LIMITS.schema) is None


# How to answer

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}}


def test_a_format_with_a_schema_is_the_turns_and_any_object_is_asked_for_in_words():
    found = opened(output_format=OutputFormat(raw_schema(SCHEMA), "name", "why", strict=True))
    assert found.turn == {"input": [], "summary": "auto", "outputSchema": SCHEMA}
    assert found.start["developerInstructions"] is None
    found = opened(output_format=OutputFormat())
    assert found.turn == {"input": [], "summary": "auto"}
    assert found.start["developerInstructions"] == ONLY_JSON
    assert found.notes == [("field_dropped", "response_format")]


@pytest.mark.parametrize("summary", ["auto", "detailed", "none"])
def test_effort_and_summary_are_the_turns(summary: str):
    found = opened(sampling=Sampling(effort="high"), summary=summary)
    assert found.turn == {"input": [], "effort": "high", "summary": summary}
    assert found.notes == []


def test_verbosity_and_tier_are_the_threads():
    found = opened(sampling=Sampling(verbosity="low", service_tier="flex"))
    assert found.start["config"] == {"model_verbosity": "low"}
    assert found.start["serviceTier"] == "flex"
    assert found.notes == []


@pytest.mark.parametrize("tier", ["auto", "default", None])
def test_the_usual_tier_is_not_asked_for(tier: str | None):
    assert "serviceTier" not in opened(sampling=Sampling(service_tier=tier)).start


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"sampling": Sampling(temperature=0.0)}, "temperature"),
        ({"sampling": Sampling(top_p=0.5)}, "top_p"),
        ({"sampling": Sampling(max_tokens=5)}, "max_tokens"),
        ({"sampling": Sampling(stop=("x", "y"))}, "stop"),
        ({"caller": Caller(user="u")}, "user"),
        ({"caller": Caller(safety_identifier="s")}, "safety_identifier"),
        ({"caller": Caller(prompt_cache_key="k")}, "prompt_cache_key"),
        ({"caller": Caller(metadata=msgspec.Raw(b'{"a":1}'))}, "metadata"),
        ({"extra": {"logit_bias": msgspec.Raw(b"{}")}}, "logit_bias"),
        ({"tools": (F,), "tool_choice": ToolChoice("required")}, "tool_choice"),
        ({"tools": (F,), "parallel_calls": False}, "parallel_tool_calls"),
        ({"tools": (Tool("f", cache=msgspec.Raw(b"{}")),)}, "cache_control"),
        ({"tools": (Tool("f", strict=True),)}, "f.strict"),
    ],
)
def test_a_field_that_is_dropped_is_noted_once(fields: dict[str, Any], name: str):
    assert opened(**fields).notes == [("field_dropped", name)]


def test_a_mark_for_the_cache_is_noted_once():
    marked = Message("user", (TextPart("a", msgspec.Raw(b"{}")), TextPart("b", msgspec.Raw(b"{}"))))
    assert opened(marked).notes == [("field_dropped", "cache_control")]


def test_the_name_of_a_speaker_is_noted_once():
    found = opened(Message("user", (TextPart("a"),), "Ann"), Message("user", (TextPart("b"),), "Bob"))
    assert found.notes == [("field_dropped", "messages.name")]


def test_everything_that_is_dropped_is_noted():
    found = opened(
        sampling=Sampling(0.5, 0.5, 5, ("x",), "low", "low", "flex"),
        caller=Caller("u", "s", "k", msgspec.Raw(b"{}")),
        tools=(F,),
        tool_choice=ToolChoice("required", "f"),
        parallel_calls=False,
        extra={"n_probs": msgspec.Raw(b"1"), "mirostat": msgspec.Raw(b"1")},
    )
    names = [subject for code, subject in found.notes if code == "field_dropped"]
    assert sorted(names) == [
        "max_tokens", "metadata", "mirostat", "n_probs", "parallel_tool_calls", "prompt_cache_key",
        "safety_identifier", "stop", "temperature", "tool_choice", "top_p", "user",
    ]  # fmt: skip


# What is declined


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("item/commandExecution/requestApproval", {"decision": "decline"}),
        ("item/fileChange/requestApproval", {"decision": "decline"}),
        ("item/tool/requestUserInput", {"answers": {}}),
        ("mcpServer/elicitation/request", {"action": "decline", "content": None}),
        ("item/permissions/requestApproval", {"permissions": {}, "scope": "turn"}),
        ("item/tool/call", {"contentItems": [{"type": "inputText", "text": "Why."}], "success": False}),
        ("applyPatchApproval", {"decision": "denied"}),
        ("execCommandApproval", {"decision": "denied"}),
        ("account/chatgptAuthTokens/refresh", None),
        ("attestation/generate", None),
        ("currentTime/read", None),
        ("something/new", None),
    ],
)
@pytest.mark.parametrize("id", [0, "a"])
def test_a_request_is_declined_in_its_own_way(method: str, result: Any, id: int | str):
    line = protocol.decline(method, id, "Why.")
    assert line.endswith(b"\n")
    expected = {"result": result} if result is not None else {"error": {
        "code": -32601, "message": f"Toolwire does not serve {method}."}}  # fmt: skip
    assert json.loads(line) == {"id": id, **expected}


# What workers run with


def flat(table: dict[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{path}.{key}" if path else key
        found |= flat(value, name) if isinstance(value, dict) else {name: value}
    return found


def test_the_configuration_has_every_setting_that_is_recommended():
    recommended = flat(tomllib.loads((RECORDINGS / "gateway-config-recommended.toml").read_text("utf-8")))
    ours = flat(tomllib.loads(codex_config.write_configuration("/home/models.json", 300)))
    own = ("model_providers.upstream.", "model_providers.toolwire.")
    apart = {"model", "model_provider", "model_catalog_json"}
    assert {name: value for name, value in ours.items() if name not in apart and not name.startswith(own)} == {
        name: value for name, value in recommended.items() if name not in apart and not name.startswith(own)
    }
    assert ours["model_provider"] == "toolwire"
    assert ours["model_catalog_json"] == "/home/models.json"
    for name in (
        "wire_api",
        "supports_websockets",
        "request_max_retries",
        "stream_max_retries",
        "stream_idle_timeout_ms",
    ):
        assert ours[own[1] + name] == recommended[own[0] + name]


@pytest.mark.parametrize(
    ("given", "provider"),
    [
        ({}, {"name": "OpenAI", "requires_openai_auth": True}),
        ({"key_variable": "KEY"}, {"name": "OpenAI", "requires_openai_auth": True, "env_key": "KEY"}),
        ({"base_url": "http://x/v1"}, {"name": "toolwire", "base_url": "http://x/v1"}),
        (
            {"base_url": "http://x/v1", "key_variable": "KEY"},
            {"name": "toolwire", "base_url": "http://x/v1", "env_key": "KEY"},
        ),
    ],
)
def test_a_worker_goes_to_the_address_or_where_its_login_says(given: dict[str, str], provider: dict[str, Any]):
    config = tomllib.loads(codex_config.write_configuration("m.json", 1.5, **given))
    assert config["model_providers"]["toolwire"] == {
        "wire_api": "responses",
        "supports_websockets": False,
        "request_max_retries": 0,
        "stream_max_retries": 0,
        "stream_idle_timeout_ms": 1500,
        **provider,
    }


@given(st.text(st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc"))))
def test_any_address_and_path_can_be_configured(value: str):
    config = tomllib.loads(codex_config.write_configuration(value, 1, value or "x", value))
    assert config["model_catalog_json"] == value
    assert config["model_providers"]["toolwire"]["base_url"] == (value or "x")


def test_the_catalogue_has_each_model_once_and_switches_everything_off():
    models = json.loads(codex_config.write_catalogue(["a", "b", "a"]))["models"]
    assert [model["slug"] for model in models] == ["a", "b"]
    [known] = [
        model
        for model in json.loads((RECORDINGS / "gateway-model-catalog.json").read_text("utf-8"))["models"]
        if model["slug"] == "mock-model"
    ]
    for model in models:
        assert model["display_name"] == model["slug"]
        assert sorted(model) == sorted(name for name in known if name != "context_window"), "which would compact"
        for name in ("shell_type", "apply_patch_tool_type", "tool_mode", "multi_agent_version", "use_responses_lite",
                     "supports_search_tool", "experimental_supported_tools"):  # fmt: skip
            assert model[name] == known[name]
        assert model["truncation_policy"]["limit"] >= 10**9


def test_a_catalogue_holds_at_least_one_model():
    assert len(json.loads(codex_config.write_catalogue([]))["models"]) == 1


leaves = st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=("Cs",)))
tables = st.dictionaries(
    st.text("abc_", min_size=1, max_size=4),
    st.recursive(
        leaves | st.lists(leaves, max_size=3),
        lambda inner: (
            st.dictionaries(st.text('abc_./ "', max_size=4), inner, min_size=1, max_size=3)
            | st.lists(st.dictionaries(st.text("abc_.", max_size=4), inner, max_size=3), max_size=2)
        ),
        max_leaves=5,
    ),
    max_size=3,
)


@given(tables)
def test_overrides_are_arguments_that_say_the_same(overrides: dict[str, Any]):
    arguments = codex_config.make_arguments(overrides)
    assert arguments[::2] == ["-c"] * (len(arguments) // 2)
    assert tomllib.loads("\n".join(arguments[1::2])) == overrides
    assert [key for key in arguments[1::2] if not re.fullmatch(r"[\w.]+", key.partition("=")[0])] == []


def test_overrides_of_inner_tables_have_dots():
    assert codex_config.make_arguments({"features": {"goals": True}, "model_verbosity": "low", "x": {"y": {"z": [1, "a"]}}}) == [
        "-c", "features.goals=true", "-c", 'model_verbosity="low"', "-c", 'x.y.z=[1,"a"]'
    ]  # fmt: skip


def test_overrides_with_names_that_no_path_can_hold_are_tables():
    """Codex splits the key of an override at every dot, also inside quotes."""
    overrides = {"projects": {"/home/x.y": {"trust_level": "trusted"}}, "hooks": [{"command": ["a"]}]}
    assert codex_config.make_arguments(overrides) == [
        "-c", 'projects={"/home/x.y"={"trust_level"="trusted"}}', "-c", 'hooks=[{"command"=["a"]}]'
    ]  # fmt: skip


def test_key_variables_of_providers_with_dots_in_their_names_are_found():
    overrides = {"model_providers": {"my.own": {"env_key": "MINE"}, "b": {"env_key": "OTHER"}}}
    assert codex_config.find_key_variables(overrides) == ["MINE", "OTHER"]


@pytest.mark.parametrize(
    ("agent", "version"),
    [
        ("toolwire/0.166.0 (Linux; x86_64) xterm (toolwire; 0.1.0)", (0, 166, 0)),
        ("toolwire/0.9.12-alpha.3 (x)", (0, 9, 12)),
        ("toolwire", None),
        ("", None),
    ],
)
def test_a_worker_says_its_version(agent: str, version: tuple[int, int, int] | None):
    assert protocol.version_of(agent) == version


def test_the_recorded_version_will_do():
    [agent] = [row["msg"]["result"]["userAgent"] for row in recorded("01") if "userAgent" in str(row.get("msg"))]
    version = protocol.version_of(agent)
    assert version is not None
    assert version >= protocol.MIN_VERSION


def test_a_profile_is_read_and_refuses_what_it_does_not_know():
    assert codex.profile_from({"turns": 5, "summary": "none"}) == codex.Profile(turns=5, summary="none")
    with pytest.raises(msgspec.ValidationError):
        codex.profile_from({"turn": 5})


def test_a_thread_is_started_with_the_provider_of_its_workers():
    for named, expected in (({}, "toolwire"), ({"provider": "mine"}, "mine")):
        [opened] = codex.Conversation(Request("m", (USER,)), "S", **named).start().outbox
        assert opened.params["modelProvider"] == expected


# Whose a line is, and how a thread is left


def envelope(**message: Any) -> protocol.Envelope:
    return protocol.read(json.dumps(message).encode())


def test_a_line_names_its_thread_or_the_request_that_it_answers():
    told = envelope(method="turn/started", params={"threadId": "t", "turn": {"id": "u"}})
    assert (told.thread, told.is_answer, told.refusal, told.unassigned) == ("t", False, b"", b"")
    answer = envelope(id="3.turn", result={"turn": {"id": "u"}})
    assert (answer.id, answer.is_answer, answer.refusal, answer.unassigned) == ("3.turn", True, b"", b"")
    limits = envelope(method="account/rateLimits/updated", params={"rateLimits": {}})
    assert (limits.holds_limits, limits.thread, limits.unassigned) == (True, "", b"")


def test_a_request_can_be_declined_and_one_of_no_thread_is_told_to_all():
    call = envelope(id=4, method="item/tool/call", params={"threadId": "t", "callId": "c"})
    assert call.is_call
    assert call.refusal == protocol.decline("item/tool/call", 4)
    assert call.unassigned == b""
    other = envelope(id=5, method="some/request")
    assert other.refusal == protocol.decline("some/request", 5)
    assert json.loads(other.unassigned) == {"method": UNASSIGNED, "params": {"message": "some/request"}}


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        (b'{"id":6,"method":"item/tool/call","params":{"threadId":7}}', protocol.decline("item/tool/call", 6)),
        (b'{"method":"turn/started","params":[]}', b""),
        (b"nothing", b""),
    ],
)
def test_a_line_that_cannot_be_read_is_told_to_all_threads_and_a_request_declined(line: bytes, refusal: bytes):
    unread = protocol.read(line)
    assert unread.refusal == refusal
    assert json.loads(unread.unassigned) == {"method": UNASSIGNED, "params": {"message": ""}}
    assert protocol.read(unread.unassigned).unassigned == b""


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"result": {"userAgent": "toolwire/0.166.0 (Linux)"}}, ""),
        ({"result": {"userAgent": "toolwire/0.120.0 (Linux)"}}, "version 0.120.0 is too old, at least 0.166.0 is needed"),
        ({"result": {"userAgent": "other"}}, "it calls itself 'other', which names no version"),
        ({"error": {"code": 1, "message": "No."}}, "it calls itself '', which names no version"),
    ],
)  # fmt: skip
def test_a_worker_says_whether_it_can_be_used(answer: dict[str, Any], why: str):
    assert protocol.find_fault(envelope(id="1.hello", **answer)) == why
    assert protocol.initialize("9.9").params["clientInfo"]["version"] == "9.9"


def test_a_turn_is_interrupted_once_and_when_its_id_is_known():
    tracker = protocol.ThreadTracker()
    tracker.note_sent(protocol.start_thread({}))
    assert not tracker.is_running
    tracker.feed(envelope(id="1.thread", result={"thread": {"id": "t"}}))
    tracker.note_sent(protocol.start_turn("t", {}))
    assert (tracker.thread, tracker.is_running, tracker.interrupt()) == ("t", True, None)
    tracker.feed(envelope(method="turn/started", params={"threadId": "t", "turn": {"id": "u"}}))
    asked = tracker.interrupt()
    assert asked is not None
    assert (asked.method, asked.params) == ("turn/interrupt", {"threadId": "t", "turnId": "u"})
    assert tracker.interrupt() is None
    tracker.feed(envelope(method="turn/completed", params={"threadId": "t", "turn": {"id": "u"}}))
    assert not tracker.is_running
    assert tracker.unsubscribe().params == tracker.probe().params == {"threadId": "t"}


@pytest.mark.parametrize(("name", "runs"), [("turn", False), ("interrupt", False), ("steer", True), ("probe", True)])
def test_a_turn_that_cannot_be_started_or_interrupted_does_not_run(name: str, runs: bool):
    tracker = protocol.ThreadTracker()
    tracker.note_sent(protocol.start_turn("t", {}))
    tracker.feed(envelope(id=f"1.{name}", error={"code": 1, "message": "No."}))
    assert tracker.is_running is runs
