"""Arguments of the demo model fit the schema, or it says where they do not."""

import json
import re
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator

from tests.support.demo import asking, turn
from toolwire.backends.demo.arguments import MAX_ARRAY_ITEMS

Json = Any


def answered(schema: Json) -> tuple[Json, str]:
    """The arguments of a tool with this schema, and what the demo model says about them."""
    tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
    result = turn(asking("about 42", tools=[tool], tool_choice="required"))
    [call] = result.calls
    return json.loads(call.arguments), result.text


def filled(schema: Json) -> Json:
    return answered(schema)[0]


def requiring(schema: Json, **more: Json) -> Json:
    return {"type": "object", "properties": {"x": schema}, "required": ["x"], **more}


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
TREE = {"anyOf": [{"type": "object", "properties": {side: {"$ref": "#/$defs/tree"} for side in ("left", "right")},
                   "required": ["left", "right"]}, {"type": "null"}]}  # fmt: skip

SCHEMAS: dict[str, Json] = {
    "true": True,
    "empty": {},
    "integer": {"type": "integer", "minimum": 100, "multipleOf": 7},
    "number between": {"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 0.2},
    "number below": {"type": "number", "maximum": -3.5},
    "two steps": {"allOf": [{"multipleOf": 4}, {"multipleOf": 6}, {"minimum": 1}], "type": "integer"},
    "a fraction, not an integer": {"oneOf": [{"type": "number"}, {"type": "integer"}]},
    "long": {"type": "string", "minLength": 300},
    "short": {"type": "string", "maxLength": 3},
    "empty text": {"type": "string", "maxLength": 0},
    "pattern": {"type": "string", "pattern": r"^[A-Z]{2}-\d{3,}(?:x|y)?$"},
    "pattern with a length": {"type": "string", "pattern": "^[a-f]+$", "minLength": 12, "maxLength": 14},
    "two patterns": {"allOf": [{"pattern": "^a"}, {"pattern": "b$"}], "type": "string", "pattern": "^a+b+$"},
    "format": {"type": "string", "format": "date-time"},
    "const": {"const": None},
    "enum": {"enum": [[1], {"a": 2}]},
    "array": {"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True},
    "tuple": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "minItems": 2},
    "tuple of Draft 7": {"type": "array", "items": [{"type": "null"}], "additionalItems": {"type": "string"}},
    "contains": {"type": "array", "contains": {"const": "here"}, "minContains": 2, "maxItems": 4},
    "object": {"type": "object", "properties": {"a": {"const": 1}, "b": {}}, "required": ["a"], "additionalProperties": False},
    "undeclared and required": {"type": "object", "required": ["k"], "additionalProperties": {"type": "integer"}},
    "some properties": {"type": "object", "minProperties": 3, "propertyNames": {"pattern": "^[a-z]{2}$"}},
    "by pattern": {"type": "object", "minProperties": 2, "patternProperties": {"^n_": {"type": "null"}}, "additionalProperties": False},
    "dependent": {"type": "object", "required": ["a"], "dependentRequired": {"a": ["b"]}, "properties": {"b": {"type": "integer"}}},
    "reference": {"$ref": "#/$defs/leaf"},
    "anchor": {"$ref": "#named"},
    "recursive": {"$ref": "#/$defs/node"},
    "tree": {"$ref": "#/$defs/tree"},
    "root": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    "either": {"anyOf": [{"type": "null"}, {"type": "string", "minLength": 2}]},
    "exactly one": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
    "told apart": {"oneOf": [{"properties": {"kind": {"const": "a"}}}, {"properties": {"kind": {"const": "b"}}}], "type": "object"},
    "all": {"allOf": [{"type": "object", "required": ["a"]}, {"properties": {"a": {"type": "integer"}}, "required": ["b"]}]},
    "not a text": {"not": {"type": "string"}},
    "not that": {"type": "string", "not": {"enum": ["about 42", "demo"]}},
    "not both": {"type": "object", "required": ["a"], "not": {"required": ["b"]}},
    "if": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "if": {"properties": {"a": {"const": 1}}},
           "then": {"required": ["b"]}, "else": {"required": ["c"]}},
    "types": {"type": ["null", "integer"]},
    "nested": requiring(requiring(requiring({"type": "array", "items": requiring({"type": "boolean"}), "minItems": 1}))),
}  # fmt: skip
DEFS = {
    "leaf": {"type": "integer", "minimum": 5},
    "named": {"$anchor": "named", "type": "boolean"},
    "node": NODE,
    "tree": TREE,
}


SOLVED = {"two steps", "a fraction, not an integer", "pattern", "pattern with a length", "two patterns", "contains", "array", "some properties", "by pattern", "dependent", "anchor", "if", "tuple of Draft 7", "told apart", "not a text"}  # fmt: skip
"""What only a solver could fill."""


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_required_property_is_filled_or_said_to_be_unfilled(name: str):
    schema = requiring(SCHEMAS[name], **{"$defs": DEFS})
    validator = Draft7Validator if "Draft 7" in name else Draft202012Validator
    validator.check_schema(schema)
    value, said = answered(schema)
    assert validator(schema).is_valid(value) or said.startswith("The demo model cannot fill the arguments of look: ")
    assert bool(said) == (name in SOLVED)


@pytest.mark.parametrize("pattern", [r"^[A-Z]{2}-\d{3,}(?:x|y)?$", "(?=a)b", "^(?:ab){3}$"])
def test_a_pattern_that_cannot_be_filled_simply_is_said(pattern: str):
    value, said = answered(requiring({"type": "string", "pattern": pattern}))
    assert value == {"x": "about 42"}
    assert said == "The demo model cannot fill the arguments of look: $.x pattern."


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"pattern": "^[a-z]+$"}, "demo"), ({"pattern": "^[A-Z]{3}$"}, "ABC"), ({"pattern": r"^\d{4}-\d{2}-\d{2}$"}, "2026-01-31"), ({"pattern": r"^\d+$"}, "1"),
        ({"pattern": "^x-", "default": "x-1"}, "x-1"), ({"pattern": "^y-", "examples": ["n", "y-1"]}, "y-1"),
    ],
)  # fmt: skip
def test_a_pattern_is_filled_from_the_prompt_the_schema_or_a_sample(schema: Json, text: str):
    assert answered(requiring({"type": "string", **schema})) == ({"x": text}, "")


@pytest.mark.parametrize(
    "schema", [{}, {"type": "object"}, {"properties": {"a": {"type": "object"}}}, requiring({})["properties"]]
)
def test_what_is_optional_is_left_out(schema: Json):
    assert answered(schema) == ({}, "")


@pytest.mark.parametrize(
    "schema",
    [
        requiring(False), requiring({"$ref": "#"}), requiring({"type": "array", "minItems": MAX_ARRAY_ITEMS + 1}),
        requiring({"allOf": [{"type": "string"}, {"type": "integer"}]}), requiring({"type": "string", "minLength": 10**12}),
        {"type": "string"}, requiring({"type": "integer", "minimum": 3, "exclusiveMinimum": True}),
    ],
)  # fmt: skip
def test_what_cannot_be_satisfied_is_said(schema: Json):
    assert answered(schema)[1].startswith("The demo model cannot fill the arguments of look: ")


@pytest.mark.parametrize(
    "nonsense",
    [
        {"type": 5}, {"type": [[]]}, {"type": None}, {"enum": "q"}, {"enum": {}}, {"anyOf": {}}, {"anyOf": [5]}, {"properties": [1]}, {"required": 5},
        {"required": [None, {}]}, {"minLength": "x"}, {"minimum": []}, {"multipleOf": 0}, {"multipleOf": -2}, {"pattern": "("}, {"pattern": 5}, {"items": 5},
        {"$ref": 5}, {"$ref": "#/nowhere"}, {"$ref": "https://example.com/x"}, {"if": 5}, {"not": 5}, {"contains": 5}, {"maxItems": -1}, {"format": []},
        {"patternProperties": {"[": 5}}, {"dependentRequired": {"a": 5}}, {"default": {}}, {"examples": 5}, {"minimum": 1e308, "maximum": 1e308},
    ],
)  # fmt: skip
def test_a_schema_that_makes_no_sense_gets_a_call_all_the_same(nonsense: Json):
    for schema in (nonsense, requiring(nonsense)):
        assert isinstance(filled(schema), dict)


def test_a_default_and_an_example_are_used_where_the_prompt_has_nothing():
    assert filled(requiring({"type": "boolean", "default": True})) == {"x": True}
    assert filled({"type": "object", "properties": {"a": requiring({"type": "integer", "maximum": 9, "default": 5})}, "required": ["a"]}) == {"a": {"x": 5}}  # fmt: skip


def costly() -> dict[str, Json]:
    """Schemas that ask for more than they should get."""
    wide = {f"p{number}": {"$ref": "#"} for number in range(2000)}
    many = [
        {"type": "object", "required": [f"k{number}"], "properties": {"a": {"minLength": number}}}
        for number in range(12)
    ]
    deep: Json = {"type": "string"}
    for _ in range(300):
        deep = requiring(deep)
    return {
        "wide": {"type": "object", "properties": wide, "required": list(wide)},
        "options of options": requiring({"allOf": [{"anyOf": many}, {"anyOf": many}, {"anyOf": many}, {"anyOf": many}, {"not": {}}]}),
        "a loop": requiring({"$ref": "#/$defs/a"}, **{"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}),
        "deep": deep,
        "unique": requiring({"type": "array", "uniqueItems": True, "minItems": 256, "items": {"type": "integer"}}),
        "patterns": requiring({"type": "string", "allOf": [{"pattern": "^(a+)+(b|a)*c{0,9}$", "minLength": 300}] * 50}),
        "patterns of names": requiring({"type": "object", "minProperties": 100, "patternProperties": {f"(a|{n})*(a|b){{9}}$": {} for n in range(500)}}),
        "many patterns": requiring(requiring({"type": "string", "pattern": "^(a|a)*(a|b){9}(a|c)*$"}), allOf=[{"required": [f"k{n}"], "properties": {f"k{n}": {"type": "string", "pattern": f"^(a|{n})*(a|b){{9}}c$"}}} for n in range(60)]),
        "wide and merged": requiring({"allOf": [{"$ref": "#"}] * 60}, required=[f"p{n}" for n in range(500)], properties={f"p{n}": {"allOf": [{"$ref": "#"}] * 60} for n in range(500)}),
        "an enum": requiring({"enum": list(range(30_000)), "not": {"enum": list(range(30_000))}}),
        "a large schema": requiring({"description": "x" * 300_000}),
        "an array": requiring({"type": "array", "minItems": 10**12}),
        "a text": requiring({"type": "string", "minLength": 10**12}),
    }  # fmt: skip


@pytest.mark.parametrize("name", costly())
def test_no_schema_takes_long(name: str):
    schema = costly()[name]
    start = time.process_time()
    value = filled(schema)
    assert time.process_time() - start < 2
    assert len(json.dumps(value)) < 1_000_000


# Any schema that something satisfies


WORDS = ["", "a", "Paris", "x1", "2026-01-01", "ab-cd", "AAA", "hello world"]
PATTERNS = [
    "^[a-z]+$", "^[A-Z]{3}$", r"^\d{4}-\d{2}-\d{2}$", "^(a|b)", r"^\w+$", "[a-z]", r"^(?:x|y)\d*$", "^.*$", "^[^0-9]*$", "o w", "^(foo|ab)-[a-c]{1,3}d?$",
]  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers(-50, 50) | st.sampled_from([0.5, -1.25, 2.0, 0.1]) | st.sampled_from(WORDS)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=6,
)
TYPES = {
    str: "string",
    list: "array",
    dict: "object",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


def is_valid(value: Json, schema: Json) -> bool:
    return Draft202012Validator(schema).is_valid(value)


@st.composite
def satisfied_by(draw: Any, value: Json, depth: int = 3, *, alone: bool = True) -> Json:
    """A schema that this value satisfies. Unless it stands `alone`, it has no `contains`."""
    kinds = ["enum", "const", "anyOf", "oneOf", "allOf", "not", "$ref", "if", True, {}] if depth else []
    kind = draw(st.sampled_from([*["keywords"] * 6, *kinds]))

    def part(inner: Json, **more: bool) -> Json:
        return draw(satisfied_by(inner, max(depth - 1, 0), **more))

    match kind:
        case "enum":
            return {"enum": [*draw(st.lists(VALUES, max_size=2)), value]}
        case "const":
            return {"const": value}
        case "anyOf":
            others = [draw(satisfied_by(draw(VALUES), depth - 1)) for _ in range(draw(st.integers(0, 2)))]
            return {
                "anyOf": draw(
                    st.permutations([part(value, alone=alone), *others, *draw(st.sampled_from([[], [False]]))])
                )
            }
        case "oneOf":
            other = {"allOf": [{"not": {"const": value}}, {"const": draw(VALUES)}]}
            return {"oneOf": draw(st.permutations([part(value, alone=alone), other]))}
        case "allOf":
            return {"allOf": [part(value, alone=False), part(value, alone=False)]}
        case "not":
            other = {"const": draw(VALUES)}
            return {"allOf": [part(value, alone=alone)], **({} if is_valid(value, other) else {"not": other})}
        case "$ref":
            return {"$ref": part(value, alone=alone)}  # it gets a name later
        case "if":
            return {
                "if": {"const": value},
                "then": part(value, alone=False),
                "else": draw(satisfied_by(draw(VALUES), depth - 1)),
            }
        case "keywords":
            type = TYPES[value.__class__]
            about = {
                "string": about_text,
                "integer": about_number,
                "number": about_number,
                "array": about_array,
                "object": about_object,
            }
            keywords = about[type](draw, value, part, alone=alone) if type in about else {}
            declared = draw(st.sampled_from([type, type, [type, "null"], None]))
            return {
                **keywords,
                **(
                    {}
                    if declared is None
                    else {"type": sorted({*declared}) if isinstance(declared, list) else declared}
                ),
            }
        case _:
            return kind  # fmt: skip


def some(draw: Any, keywords: dict[str, Json]) -> dict[str, Json]:
    return {key: keywords[key] for key in sorted(keywords) if draw(st.booleans())}


def about_text(draw: Any, value: str, part: Any, *, alone: bool) -> Json:
    keywords: dict[str, Json] = {
        "minLength": draw(st.integers(0, len(value))),
        "maxLength": len(value) + draw(st.integers(0, 4)),
    }
    patterns = [pattern for pattern in PATTERNS if re.search(pattern, value)]
    return some(draw, {**keywords, **({"pattern": draw(st.sampled_from(patterns))} if patterns else {})})


def about_number(draw: Any, value: float, part: Any, *, alone: bool) -> Json:
    steps = [step for step in (1, 2, 3, 5, 0.5, 0.25, 0.1) if is_valid(value, {"multipleOf": step})]
    near, far = st.integers(0, 3), st.sampled_from([0.5, 1, 10])
    keywords = {"minimum": value - draw(near), "maximum": value + draw(near), "exclusiveMinimum": value - draw(far)}
    return some(
        draw,
        {
            **keywords,
            "exclusiveMaximum": value + draw(far),
            **({"multipleOf": draw(st.sampled_from(steps))} if steps else {}),
        },
    )


def about_array(draw: Any, value: list[Json], part: Any, *, alone: bool) -> Json:
    own = draw(st.integers(0, len(value)))
    rest = [part(each) for each in value[own:]]
    keywords: dict[str, Json] = {
        "minItems": draw(st.integers(0, len(value))),
        "maxItems": len(value) + draw(st.integers(0, 2)),
    }
    keywords["items"] = {"anyOf": rest} if rest else False
    if is_valid(value, {"uniqueItems": True}):
        keywords["uniqueItems"] = True
    if value and alone:
        keywords["contains"] = part(draw(st.sampled_from(value)))
    return {**some(draw, keywords), **({"prefixItems": [part(each) for each in value[:own]]} if own else {})}


def about_object(draw: Any, value: dict[str, Json], part: Any, *, alone: bool) -> Json:
    names = sorted(value)
    keywords: dict[str, Json] = {"additionalProperties": False, "propertyNames": {"pattern": "^[a-z]$"}}
    keywords |= {"minProperties": draw(st.integers(0, len(value))), "maxProperties": draw(st.integers(len(value), 5))}
    if names:
        name = draw(st.sampled_from(names))
        keywords["required"] = draw(st.lists(st.sampled_from(names), unique=True))
        keywords["dependentRequired"] = {name: draw(st.lists(st.sampled_from(names), unique=True))}
        keywords["patternProperties"] = {f"^{name}": part(value[name], alone=False)}
    properties = {name: part(each, alone=False) for name, each in value.items()}
    return {
        **some(draw, keywords),
        "properties": {**properties, **draw(st.sampled_from([{}, {"z": False}, {"z": {"type": "string"}}]))},
    }


def with_references(schema: Json, defs: dict[str, Json]) -> Json:
    """The schema, with what stands where a reference belongs put under `$defs`."""
    if isinstance(schema, list):
        return [with_references(each, defs) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = f"d{len(defs)}"
        defs[name] = True
        defs[name] = with_references(schema["$ref"], defs)
        return {"$ref": f"#/$defs/{name}"}
    return {key: value if key in ("const", "enum") else with_references(value, defs) for key, value in schema.items()}


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=True,
)
@given(st.data())
def test_arguments_fit_a_schema_or_are_said_not_to(data: st.DataObject):
    value = data.draw(VALUES)
    defs: dict[str, Json] = {}
    schema = requiring(with_references(data.draw(satisfied_by(value)), defs))
    schema["$defs"] = defs
    assert is_valid({"x": value}, schema)
    made, said = answered(schema)
    assert is_valid(made, schema) or said


KEYWORDS = st.sampled_from(
    ["type", "enum", "const", "properties", "required", "items", "prefixItems", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref", "$defs",
     "minimum", "maximum", "multipleOf", "minLength", "maxLength", "pattern", "format", "minItems", "maxItems", "uniqueItems", "contains",
     "additionalProperties", "patternProperties", "propertyNames", "minProperties", "dependentRequired", "dependentSchemas", "default", "examples"]
)  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["string", "object", "integer", "array", "#", "#/$defs/a", "^a(b|", "date", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS | st.sampled_from("ab"), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(ANYTHING)
def test_anything_in_place_of_a_schema_gets_a_call(schema: Json):
    filled(requiring(schema))
