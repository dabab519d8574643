"""Schemas as servers need them, and arguments judged by schemas that nobody can trust."""

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.adapt.argument_types import _decoders, fits_type
from toolwire.adapt.arguments import ArgumentJudge
from toolwire.adapt.schemas import CHANGES, adjust
from toolwire.core.collect import Call
from toolwire.core.request import Tool
from toolwire.turns.schemas import compile_simple_pattern, find_problems

Json = dict[str, Any]


def raw(schema: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(schema).encode())


def changed(schema: Any, *needs) -> tuple[Any, tuple[str, ...]] | None:
    made = adjust(raw(schema), needs)
    return (json.loads(bytes(made.parameters)), made.lost) if made is not None else None


STRING, INTEGER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}
LINKED = {
    "$defs": {"N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}, "S": STRING},
    "type": "object",
    "properties": {"n": {"$ref": "#/$defs/N", "description": "head"}, "s": {"$ref": "#/$defs/S"}},
}

TABLE = [
    ("object_top", {}, {"type": "object"}, ()),
    ("object_top", True, {"type": "object"}, ()),
    ("object_top", {"type": ["object", "null"], "properties": {}}, {"type": "object", "properties": {}}, ()),
    ("object_top", {"type": "string"}, {"type": "object"}, ("type",)),
    (
        "object_top",
        {"anyOf": [{"properties": {"k": STRING, "a": STRING}, "required": ["k", "a"]}, {"properties": {"k": INTEGER}, "required": ["k"]}, STRING]},
        {"type": "object", "properties": {"k": {"anyOf": [STRING, INTEGER]}, "a": STRING}, "required": ["k"]},
        ("anyOf",),
    ),
    (
        "object_top",
        {"allOf": [{"properties": {"a": STRING}, "required": ["a"]}, {"properties": {"b": STRING}, "required": ["b", "a"]}]},
        {"type": "object", "properties": {"a": STRING, "b": STRING}, "required": ["a", "b"]},
        (),
    ),
    (
        "object_top",
        {"oneOf": [{"allOf": [{"properties": {"a": STRING}}, {"anyOf": [{"properties": {"b": STRING}}]}]}]},
        {"type": "object", "properties": {"a": STRING, "b": STRING}},
        ("oneOf",),
    ),
    (
        "object_top",
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"a": STRING}}}},
        {"type": "object", "properties": {"a": STRING}, "$defs": {"A": {"type": "object", "properties": {"a": STRING}}}},
        (),
    ),
    ("object_top", {"type": "object", "not": {}, "enum": [{}]}, {"type": "object"}, ("enum", "not")),
    ("properties", {"type": "object"}, {"type": "object", "properties": {}}, ()),
    ("items", {"properties": {"l": {"type": "array"}}}, {"properties": {"l": {"type": "array", "items": {}}}}, ()),
    (
        "inline_refs",
        LINKED,
        {"type": "object", "properties": {"n": {"type": "object", "properties": {"next": {"type": "object"}}, "description": "head"}, "s": STRING}},
        ("$ref",),
    ),
    ("inline_refs", {"properties": {"x": {"$ref": "https://example.com/x"}}}, {"properties": {"x": {}}}, ("$ref",)),
    ("inline_refs", {"properties": {"x": {"$ref": "#/a~1b/~0"}}, "a/b": {"~": STRING}}, {"properties": {"x": STRING}, "a/b": {"~": STRING}}, ()),
    ("no_const", {"properties": {"k": {"const": "md"}}}, {"properties": {"k": {"enum": ["md"]}}}, ()),
    ("no_type_arrays", {"type": ["string", "null"]}, {"anyOf": [STRING, NULL]}, ()),
    ("no_type_arrays", {"items": {"type": ["string"]}}, {"items": STRING}, ()),
    ("no_type_arrays", {"type": ["string", "null"], "anyOf": [{"minLength": 1}]}, {"allOf": [{"anyOf": [{"minLength": 1}]}, {"anyOf": [STRING, NULL]}]}, ()),
    ("nullable", {"type": ["string", "null"]}, {"type": "string", "nullable": True}, ()),
    ("nullable", {"type": ["string", "integer"]}, {"anyOf": [STRING, INTEGER]}, ()),
    ("nullable", {"anyOf": [{"type": "integer", "title": "N"}, NULL], "title": "x"}, {"type": "integer", "title": "x", "nullable": True}, ()),
    ("nullable", {"anyOf": [STRING, INTEGER, NULL]}, {"anyOf": [STRING, INTEGER], "nullable": True}, ()),
    ("plain", {"$schema": "x", "type": "object", "examples": []}, {"type": "object"}, ()),
    ("plain", {"properties": {"n": {"exclusiveMinimum": 1, "format": "uri"}}, "additionalProperties": False}, {"properties": {"n": {}}}, ("exclusiveMinimum", "format", "additionalProperties")),
    ("plain", {"oneOf": [STRING, INTEGER]}, {"anyOf": [STRING, INTEGER]}, ()),
    ("codex", {"properties": {"n": {"type": "integer", "minimum": 1, "title": "N"}}}, {"properties": {"n": {"type": "integer", "minimum": 1, "title": "N"}}}, ("minimum",)),
    ("plain", {"anyOf": [STRING], "allOf": [{"properties": {"a": STRING}}]}, {"anyOf": [STRING], "properties": {"a": STRING}}, ()),
]  # fmt: skip


@pytest.mark.parametrize(("need", "schema", "expected", "lost"), TABLE)
def test_a_need_is_met(need, schema, expected, lost):
    assert changed(schema, need) == (expected, lost)


PROPERTIES = dict.fromkeys(("properties", "required", "type", "$ref", "anyOf", "const", "$defs", "items"), STRING)
NAMED_LIKE_KEYWORDS = {"type": "object", "properties": PROPERTIES, "required": ["type", "$ref"]}
FINE: list[Json] = [
    NAMED_LIKE_KEYWORDS,
    {"type": "object", "properties": {"a": {"enum": [{"$ref": "#"}, {"const": 1}]}}},
    {"type": "object", "properties": {"a": {"default": {"type": ["x", "y"]}, "description": "d"}}},
]


@pytest.mark.parametrize("schema", FINE)
def test_names_and_values_are_not_mistaken_for_keywords(schema: Json):
    assert changed(schema, *(need for need in CHANGES if need != "codex")) is None


def test_nothing_is_written_anew_that_needs_nothing():
    assert adjust(msgspec.Raw(b'{ "type" : "object",  "properties":{}, "x": 1.0e2 }'), tuple(CHANGES)[:2]) is None
    assert adjust(raw({}), ()) is None
    assert adjust(msgspec.Raw(b"{not json"), ("object_top",)) is None


def test_the_model_is_told_what_the_top_no_longer_says():
    either = {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    made = adjust(raw(either), ("object_top",))
    assert made is not None
    assert made.remark.endswith(json.dumps({"anyOf": either["anyOf"]}, separators=(",", ":")))
    long = adjust(raw({"anyOf": [{"required": ["a" * 2000]}]}), ("object_top",))
    assert long is not None
    assert long.remark == ""


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["object", "#", "#/$defs/A", "array"])
)
keys = st.sampled_from(
    ["type", "properties", "anyOf", "allOf", "oneOf", "$ref", "$defs", "items", "required", "enum", "not", "const", "format", "A", "definitions"]
)  # fmt: skip
schemas = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=15
)


@given(schemas, st.sets(st.sampled_from([*CHANGES])))
def test_whatever_a_client_writes_gives_a_schema_or_is_left_alone(schema, needs):
    made = adjust(raw(schema), tuple(needs))
    if made is not None and "object_top" in needs:
        top = json.loads(bytes(made.parameters))
        assert top["type"] == "object"
        assert not {"anyOf", "oneOf", "allOf", "enum", "not"} & {*top}
    find_problems(bytes(raw(schema)), "{}")  # and it is no reason to fall over


@given(schemas)
def test_a_need_that_is_met_is_met(schema):
    made = adjust(raw(schema), ("inline_refs", "object_top", "properties"))
    if made is not None:
        again = adjust(made.parameters, ("object_top", "properties"))
        assert again is None


def doubling(levels: int) -> Json:
    defs: Json = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {}}}


def deep(levels: int) -> Json:
    schema: Json = {}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


HOSTILE: dict[str, tuple[Any, Any]] = {
    "references that double": (doubling(40), {}),
    "a reference to itself": ({"$ref": "#"}, {}),
    "alternatives of itself": ({"anyOf": [{"$ref": "#"}] * 20}, {}),
    "very deep": (deep(450), {}),
    "many alternatives for many items": (
        {"properties": {"a": {"items": {"anyOf": [{"type": "string", "minLength": n} for n in range(900)]}}}},
        {"a": list(range(20000))},
    ),
    "many names": ({"properties": {"a": {"items": {"enum": list(range(5000))}}}}, {"a": ["x"] * 20000}),
    "a pattern that never ends": ({"properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": "a" * 60 + "b"}),
    "a name that never ends": ({"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}, {"a" * 60 + "b": 1}),
    "another draft inside": (
        {"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}}},
        {"a": "a" * 60 + "b"},
    ),
    "names that never end, unevaluated": (
        {"patternProperties": {"^(a+)+$": {}}, "unevaluatedProperties": False},
        {"a" * 60 + "b": 1},
    ),
    "items that are compared": ({"properties": {"a": {"uniqueItems": True}}}, {"a": [{"n": n} for n in range(20000)]}),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "value"), HOSTILE.values(), ids=HOSTILE.keys())
def test_no_schema_takes_long(schema: Any, value: Any):
    began = time.process_time()
    find_problems(json.dumps(schema).encode(), json.dumps(value))
    for need in CHANGES:
        adjust(raw(schema), (need,))
    assert time.process_time() - began < 3


UNUSABLE: dict[str, Any] = {
    "no schema": {"type": "banana"},
    "no object": [1],
    "a reference to somewhere else": {"properties": {"a": {"$ref": "https://example.com/schema.json"}}},
    "a reference to nothing": {"properties": {"a": {"$ref": "#/$defs/nothing"}}},
    "a file": {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
    "too large": {"description": "x" * 100_000},
}


@pytest.mark.parametrize("schema", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_a_schema_that_cannot_be_used_says_so(schema: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *given: pytest.fail("nothing is fetched"))
    assert find_problems(json.dumps(schema).encode(), '{"a":1}') is None


def told(schema: Any, value: Any) -> list[tuple[str, tuple[str, ...]]]:
    found = find_problems(json.dumps(schema).encode(), json.dumps(value))
    assert found is not None
    return [(str(problem), problem.expected) for problem in found]


def test_problems_say_where_and_what():
    schema = {
        "type": "object",
        "properties": {"l": {"items": INTEGER}, "o": {"anyOf": [INTEGER, NULL]}},
        "required": ["r"],
    }
    assert told(schema, {"l": [1, "2"], "o": "3"}) == [
        ("$.l.1 type", ("integer",)),
        ("$.o anyOf", ("integer", "null")),
        ("$ required", ()),
    ]
    assert told({"properties": {"x": False}}, {"x": 1}) == [("$ false", ())]


def test_each_draft_means_what_it_says():
    number = {"type": "number", "minimum": 1, "exclusiveMinimum": True}
    old = {"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"n": number}}
    assert told(old, {"n": 1}) == [("$.n minimum", ())]
    assert told({"properties": {"n": {"exclusiveMinimum": 1}}}, {"n": 1}) == [("$.n exclusiveMinimum", ())]
    seven = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"S": STRING},
        "properties": {"s": {"$ref": "#/definitions/S"}},
    }
    assert told(seven, {"s": 1}) == [("$.s type", ("string",))]
    assert told({"$schema": "https://example.com/mine", "type": "object"}, {}) == []


def test_equal_items_are_found():
    assert told({"properties": {"a": {"uniqueItems": True}}}, {"a": [{"x": 1}, {"x": 1}]}) == [("$.a uniqueItems", ())]


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (r"^\d{4}-\d{2}$", "2024-05", "2024-5"),
        (r"^[a-z][a-z0-9_-]*$", "a-b", "A"),
        (r"^[\w.-]+@[\w-]+$", "a@b", "a@"),
        (r"^#[0-9a-fA-F]{6}$", "#00ff00", "#00ff00\n"),
    ],
)
def test_compile_simple_patterns_are_checked(pattern: str, matching: str, other: str):
    schema = {"properties": {"a": {"pattern": pattern}}}
    assert told(schema, {"a": matching}) == []
    assert told(schema, {"a": other}) == [("$.a pattern", ())]
    assert told(schema, {"a": 3}) == []


@pytest.mark.parametrize(
    "pattern", ["a", "^(a|b)$", r"^\p{L}$", "^a*a*a*$", r"^a\$", "^[z-a]$", "^[[a]$", "^" + "a" * 300 + "$", r"^[\q]$"]
)
def test_other_patterns_are_not(pattern: str):
    assert compile_simple_pattern(pattern) is None


usual_schemas = st.recursive(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array"])},
        optional={"description": st.just("x"), "minLength": st.just(2), "enum": st.sampled_from([["a", 1], ["a"]])},
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3)},
            optional={
                "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
                "additionalProperties": st.one_of(st.booleans(), inner),
            },
        ),
        st.fixed_dictionaries({"type": st.just("array")}, optional={"items": inner}),
    ),
    max_leaves=6,
)
usual_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from([0.0, 1.5, "", "a", "ab"])),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)),
    max_leaves=6,
)


@given(usual_schemas, usual_values)
def test_what_fits_the_type_of_a_schema_has_no_problems(schema: dict[str, Any], value: Any):
    data, arguments = json.dumps(schema).encode(), json.dumps(value)
    assert not fits_type(data, arguments) or find_problems(data, arguments) == []


USUAL = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "A path", "minLength": 1},
        "mode": {"type": "string", "enum": ["read", "write"]},
        "line": {"type": "integer", "minimum": 1, "maximum": 9},
        "share": {"type": "number"},
        "note": {"type": ["string", "null"], "default": None},
        "either": {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "null"}}]},
        "edits": {
            "type": "array",
            "maxItems": 1,
            "items": {"type": "object", "properties": {"new": {}}, "required": ["new"], "additionalProperties": False},
        },
    },
    "required": ["path"],
}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"path": "ä\U0001f600"},
        {"mode": "write", "line": 9, "share": 1, "note": "n", "either": [None], "edits": []},
        {"share": 0.5, "note": None, "either": True, "other": {"deep": [1]}},
    ],
)
def test_arguments_that_fit_a_usual_schema_are_decoded_only(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    def refuse(schema: bytes, arguments: str) -> None:
        raise AssertionError("the library is not needed")

    tool = Tool("read", parameters=raw(USUAL))
    call = Call("c", "read", json.dumps({"path": "p", **fields}))
    assert ArgumentJudge([tool], refuse).check(call, call.arguments).notes == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"path": ""},
        {"path": None},
        {"mode": "append"},
        {"line": 0},
        {"line": 10},
        {"line": 1.5},
        {"line": True},
        {"share": "1"},
        {"note": 1},
        {"either": [1]},
        {"edits": [{}]},
        {"edits": [{"new": 1, "more": 1}]},
        {"edits": [{"new": 1}, {"new": 2}]},
    ],
)
def test_arguments_that_do_not_fit_are_left_to_the_library(fields: dict[str, Any]):
    data, arguments = json.dumps(USUAL).encode(), json.dumps({"path": "p", **fields})
    assert find_problems(data, arguments)
    assert not fits_type(data, arguments)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "string", "pattern": "^a$"},
        {"type": "string", "minLength": "1"},
        {"type": "integer", "minimum": 0.5},
        {"type": "number", "maximum": 1},
        {"type": "string", "enum": ["a", 1]},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "string"}},
        {"type": "object", "required": "a"},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "anything"},
        {"anyOf": 5},
        {"anyOf": []},
        {"$ref": "#"},
        {"not": {}},
        {"type": []},
        True,
        5,
    ],
)
def test_a_schema_with_an_unusual_part_has_no_type(part: Any):
    schema = {"type": "object", "properties": {"a": part}}
    assert not fits_type(json.dumps(schema).encode(), "{}")


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"path":"p"} 1', '{"path":"\\ud83d"}', '{"path":"\ud83d"}'])
def test_a_text_that_is_no_object_does_not_fit(text: str):
    assert not fits_type(json.dumps(USUAL).encode(), text)


def test_the_type_of_the_largest_schema_is_made_once():
    inner = {"type": "object", "properties": {"a": {}}}

    def largest(parts: int) -> bytes:
        properties = {f"p{index}": inner for index in range(parts)}
        return json.dumps({"type": "object", "description": "x" * 40_000, "properties": properties}).encode()

    fitting = largest(132)
    assert fits_type(fitting, "{}")
    assert fitting in _decoders
    assert not fits_type(largest(133), "{}")
