"""Schemas of tools and formats: passed on as they are, changed only for a server that would refuse them, and then said."""

import itertools
from typing import Any

import pytest

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.lines import ask, ask_responses
from tests.museum.routes import ASK, KINDS, Sent, ask_messages, declared, sent, tools_sent

theme = Theme("schema")


def _told(kind: str, dialect: str, schema: Json, profile: Json | None = None, **fields: Any) -> Json:
    """The one tool that a server is shown."""
    request = ASK[dialect](tools=(declared(dialect, "f", schema, **fields),))
    [tool] = tools_sent(kind, request, **(profile or {}))
    return tool


# Strictness

_BOOK = {
    "type": "object",
    "properties": {"room": {"type": "string"}, "notes": {"type": "string"}},
    "required": ["room"],
}
_UNSAID = "not said"


@theme.row("sch-strict-default")
def _() -> None:
    for dialect in ("chat", "messages"):  # left out means false there, and true at a Responses server
        assert _told("responses", dialect, _BOOK)["strict"] is False
        for kind in ("chat", "messages"):
            assert _told(kind, dialect, _BOOK).get("strict", _UNSAID) in (False, _UNSAID)
    legacy = sent("responses", ask(functions=[{"name": "f", "parameters": _BOOK}])).body["tools"]
    assert [tool["strict"] for tool in legacy] == [False]
    for said in (True, False):
        for dialect in ASK:
            for kind in KINDS:
                assert _told(kind, dialect, _BOOK, strict=said)["strict"] is said
    # Between two that mean the same by it, what is left out stays left out.
    assert "strict" not in _told("responses", "responses", _BOOK)


_CLOSED = {**_BOOK, "required": ["room", "notes"], "additionalProperties": False}


@pytest.mark.parametrize("kind", ["chat", "messages"])
def test_an_omitted_strict_of_a_responses_client_is_said(kind: str) -> None:
    assert _told(kind, "responses", _CLOSED).get("strict") is True


def _format(kind: str, told: Sent) -> Json:
    """The format that a server is asked for."""
    return told.body["text"]["format"] if kind == "responses" else told.body["response_format"]["json_schema"]


@theme.row("sch-strict-hard")
def _() -> None:
    asked = ask_messages(output_config={"format": {"type": "json_schema", "schema": _BOOK}})
    for kind in ("responses", "chat"):
        format = _format(kind, sent(kind, asked))
        assert format["schema"] == _BOOK
        assert not format.get("strict")
    assert _format("responses", sent("responses", asked))["strict"] is False
    for said in (None, True, False):
        schema = {"name": "answer", "schema": _BOOK, "strict": said}
        chatted = ask(response_format={"type": "json_schema", "json_schema": schema})
        assert _format("responses", sent("responses", chatted))["strict"] is bool(said)
        assert _format("chat", sent("chat", chatted)).get("strict") is said
        responded = ask_responses(text={"format": {"type": "json_schema", **schema}})
        assert _format("chat", sent("chat", responded)).get("strict") is said


def test_the_older_name_of_a_format_is_read() -> None:
    told = sent("responses", ask_messages(output_format={"type": "json_schema", "schema": _BOOK}))
    assert _format("responses", told)["schema"] == _BOOK
    assert _format("responses", told)["strict"] is False


@theme.row("sch-strict-unchecked")
def _() -> None:
    # A server that knows strictness is told, and judges the schema itself.
    for dialect in ASK:
        for kind in KINDS:
            tool = _told(kind, dialect, _BOOK, strict=True)
            assert (tool["strict"], tool["parameters"]) == (True, _BOOK)
    # One that does not is not bothered with it.
    for dialect in ASK:
        assert "strict" not in _told("chat", dialect, _BOOK, {"strict": False}, strict=True)


@pytest.mark.parametrize("kind", ["chat", "messages"])
@pytest.mark.parametrize("dialect", [*ASK])
def test_strictness_that_is_dropped_is_noted(kind: str, dialect: str) -> None:
    request = ASK[dialect](tools=(declared(dialect, "f", _BOOK, strict=True),))
    told = sent(kind, request, strict=False)
    assert "strict" not in told.text
    assert "field_dropped" in told.codes


# Keywords

_NAMED_LIKE_KEYWORDS = {
    "type": "object",
    "properties": {
        "file_id": {"type": "string"},
        "properties": {"type": "object"},
        "required": {"type": "boolean"},
        "type": {"type": "string"},
        "anyOf": {"type": "string"},
        "$ref": {"type": "string"},
    },
    "required": ["properties", "anyOf"],
}


@theme.row("sch-param-named-properties")
def _() -> None:
    for dialect in ASK:
        for kind in KINDS:
            assert _told(kind, dialect, _NAMED_LIKE_KEYWORDS)["parameters"] == _NAMED_LIKE_KEYWORDS, (dialect, kind)
    # Also when something else has to be changed.
    for dialect in ("chat", "responses"):
        changed = _told("messages", dialect, {**_NAMED_LIKE_KEYWORDS, "anyOf": [{"required": ["type"]}]})
        assert changed["parameters"] == {**_NAMED_LIKE_KEYWORDS, "required": ["properties", "anyOf", "type"]}


_LINKED = {
    "$defs": {"N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}},
    "type": "object",
    "properties": {"n": {"$ref": "#/$defs/N", "description": "head"}},
}


@theme.row("sch-ref-inline")
def _() -> None:
    # OpenAI and Anthropic know references: nothing is deleted, nothing untyped.
    for dialect in ASK:
        for kind in KINDS:
            assert _told(kind, dialect, _LINKED)["parameters"] == _LINKED, (dialect, kind)


_EITHER = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
    "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
}
_WITHOUT_TOP = {key: value for key, value in _EITHER.items() if key != "anyOf"}


@theme.row("sch-top-anyof")
def _() -> None:
    # OpenAI refuses it like Anthropic: "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'…"
    for dialect, kind in itertools.product(ASK, KINDS):
        for word in ("anyOf", "oneOf"):
            schema = {**_WITHOUT_TOP, word: _EITHER["anyOf"]}
            request = ASK[dialect](tools=(declared(dialect, "f", schema), declared(dialect, "g", _BOOK)))
            told = [tool["parameters"] for tool in tools_sent(kind, request)]
            assert told == [_WITHOUT_TOP, _BOOK]
            assert sent(kind, request).notes == [("schema_changed", "f")]
        # What all parts demand can be said without them, and nothing is lost.
        every = {**_WITHOUT_TOP, "allOf": _EITHER["anyOf"]}
        assert _told(kind, dialect, every)["parameters"] == {**_WITHOUT_TOP, "required": ["a", "b"]}
        assert sent(kind, ASK[dialect](tools=(declared(dialect, "f", every),))).codes == []
    # A server that takes it gets it.
    assert _told("chat", "chat", _EITHER, {"schema": []})["parameters"] == _EITHER


def test_alternatives_at_the_top_are_taken_from_a_messages_client_too() -> None:
    told = sent("messages", ask_messages(tools=(declared("messages", "f", _EITHER),)))
    assert [tool["input_schema"] for tool in told.body["tools"]] == [_WITHOUT_TOP]
    assert told.codes == ["schema_changed"]


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_the_description_says_what_was_left_out(dialect: str) -> None:
    tool = _told("messages", dialect, _EITHER, description="Finds.")
    assert tool["description"].startswith("Finds.")
    assert len(tool["description"]) > len("Finds.")


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_parameters_of_the_alternatives_are_merged(dialect: str) -> None:
    branches = [{"properties": {name: {"type": "string"}}, "required": [name]} for name in "ab"]
    tool = _told("messages", dialect, {"type": "object", "anyOf": branches})
    assert {*tool["parameters"]["properties"]} == {"a", "b"}


_UNION = {"type": "object", "properties": {"x": {"type": ["string", "null"]}, "k": {"const": "md"}}}


@theme.row("sch-type-array")
def _() -> None:
    for dialect in ASK:
        for kind in KINDS:
            assert _told(kind, dialect, _UNION)["parameters"] == _UNION, (dialect, kind)


# Servers that know little of JSON Schema

_NARROW = {"schema": ["inline_refs", "nullable", "no_const", "plain"]}
"""The profile of such a server, of which Gemini is one."""


def _narrowed(dialect: str, schema: Json) -> Json:
    return _told("chat", dialect, schema, _NARROW)["parameters"]


@pytest.mark.parametrize("dialect", [*ASK])
def test_references_are_written_out_for_a_narrow_server(dialect: str) -> None:
    schema = _narrowed(dialect, _LINKED)
    assert "$defs" not in schema
    assert "$ref" not in str(schema)
    head = schema["properties"]["n"]
    assert (head["type"], head["description"]) == ("object", "head")
    while "properties" in head:
        head = head["properties"]["next"]
    assert head == {"type": "object"}, "a circle is cut"


@pytest.mark.parametrize("dialect", [*ASK])
def test_lists_of_types_and_constants_are_rewritten_for_a_narrow_server(dialect: str) -> None:
    properties = _narrowed(dialect, _UNION)["properties"]
    assert properties["x"] == {"type": "string", "nullable": True}
    assert properties["k"]["enum"] == ["md"]
    assert "const" not in properties["k"]


@pytest.mark.parametrize("dialect", [*ASK])
def test_names_like_keywords_survive_a_narrow_server(dialect: str) -> None:
    assert _narrowed(dialect, _NAMED_LIKE_KEYWORDS) == _NAMED_LIKE_KEYWORDS


test_museum = theme.test()
