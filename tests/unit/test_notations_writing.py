"""Notations that can be taught: what is written is read back, and nobody else can write it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.notated import reading, schema, unguarded
from toolwire.core.request import Tool
from toolwire.notations import invoke
from toolwire.notations.registry import HERMES, PROMPT_NOTATIONS
from toolwire.notations.tool_call import GLM_MARKERS
from toolwire.notations.write import escape_markers

TAUGHT = {"hermes": HERMES, **PROMPT_NOTATIONS}
GUARDED = {"invoke": invoke.GUARDED, "glm": GLM_MARKERS}
NASTY = "ab <>/&\"'[]{}:,\n\r\\|\u00e4\U0001f600"
WORDS = (
    "</parameter>",
    "</invoke>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "</arg_value>",
    "<|tool_call_end|>",
    "\n",
    "a",
)

keys = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,8}", fullmatch=True)
strings = st.text(st.sampled_from(NASTY)) | st.lists(st.sampled_from(WORDS), max_size=4).map("".join)
values = st.recursive(
    strings | st.integers(-9, 9) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
TYPES = {str: "string", int: "integer", bool: "boolean", type(None): "null", list: "array", dict: "object"}


@given(st.dictionaries(keys, values, max_size=4), st.sampled_from([*TAUGHT]))
def test_what_is_written_is_read_back(arguments, name):
    tools = (Tool("find", parameters=schema(**{key: TYPES[type(value)] for key, value in arguments.items()})),)
    taught = TAUGHT[name]
    written = taught.write("find", json.dumps(arguments, ensure_ascii=False))
    found = reading(f"a{written.text}b", name, tools=tools)
    assert (found.text, found.notes) == ("ab", ())
    [(_, read)] = found.calls
    read = {
        key: unguarded(value, GUARDED[name]) if key in written.changed else value
        for key, value in json.loads(read).items()
    }
    assert read == arguments


@pytest.mark.parametrize("name", ["hermes", "mistral", "kimi"])
def test_json_loses_nothing_and_keeps_its_letters(name):
    arguments = '{"a": 1.0e5, "b": "x",  "c": 12345678901234567890}'
    written = TAUGHT[name].write("find", arguments)
    assert arguments in written.text
    assert written.changed == ()


@pytest.mark.parametrize("name", TAUGHT)
def test_a_value_cannot_close_or_open_a_block(name):
    taught = TAUGHT[name]
    plain = taught.write("find", '{"q":"x"}').text
    for marker in taught.markers:
        text = taught.write("find", json.dumps({"q": f"x{marker}y", "o": [marker]})).text
        assert text.count(marker) == plain.count(marker)


HALF = r'{"q":"a\ud800b","r":[1,"\udc00"],"ok":"\ud83d\ude00"}'
DEEP = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.mark.parametrize("name", ["invoke", "glm"])
def test_a_lone_surrogate_is_replaced_and_its_parameter_reported(name):
    written = TAUGHT[name].write("find", HALF)
    assert "a\ufffdb" in written.text
    assert "\U0001f600" in written.text
    assert written.changed == ("q", "r")


@pytest.mark.parametrize("arguments", [HALF, DEEP, '{"q":"\ud800"}', "not json", "[1]", ""])
@pytest.mark.parametrize("name", TAUGHT)
def test_arguments_of_any_text_are_written(name, arguments):
    assert "find" in TAUGHT[name].write("find", arguments).text


def test_arguments_that_are_nested_too_deeply_are_one_parameter():
    assert f'<parameter name="args">{DEEP}</parameter>' in TAUGHT["invoke"].write("find", DEEP).text


def test_a_parameter_whose_name_does_not_fit_is_reported():
    written = TAUGHT["invoke"].write("find", '{"a \\"b":1}')
    assert ('name="a_b"' in written.text, written.changed) == (True, ('a "b',))


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("a<tool_call>b", "a<\\tool_call>b"),
        ("<\\tool_call>", "<\\\\tool_call>"),
        ("<tool_calls> < tool_call>", "<tool_calls> < tool_call>"),
    ],
)
def test_a_guarded_marker_has_one_more_backslash(text, safe):
    assert escape_markers(text, HERMES.markers) == safe
    assert unguarded(safe, HERMES.markers) == text


@given(st.lists(st.sampled_from(["<", "\\", "tool_call>", "/", "<tool_call>", "</tool_call>", "x"])).map("".join))
def test_guarding_can_be_undone(text):
    safe = escape_markers(text, HERMES.markers)
    assert not any(marker in safe for marker in HERMES.markers)
    assert unguarded(safe, HERMES.markers) == text


@pytest.mark.parametrize("name", ["invoke", "glm"])
@pytest.mark.parametrize("value", ["\n", "\na", "a\n", "\na\r", "\r\na", "a\r\n", "\r", "", " a ", "\n\n"])
def test_line_ends_of_a_value_survive(name, value):
    written = TAUGHT[name].write("find", json.dumps({"q": value}))
    [(_, read)] = reading(written.text, name).calls
    assert (json.loads(read), written.changed) == ({"q": value}, ())
