"""Arguments that are nearly JSON: mended where it is certain what they say, and never made to say anything else."""

import ast
import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.adapt.repair import Problem, repair_json, retype

MENDED = [
    ("{'city': 'Oslo'}", '{"city": "Oslo"}', "quotes"),
    ("{'it': 'it\\'s \"so\"'}", '{"it": "it\'s \\"so\\""}', "quotes"),
    ("{city: 1, $b_2: 2}", '{"city": 1, "$b_2": 2}', "keys"),
    ("{true: 1}", '{"true": 1}', "keys"),
    ('{"a": True, "b": [False, None]}', '{"a": true, "b": [false, null]}', "words"),
    ('{"a": 1, "b": [1, 2, ], }', '{"a": 1, "b": [1, 2 ] }', "commas"),
    ('{"a": "x\n\ty\x01"}', '{"a": "x\\n\\ty\\u0001"}', "controls"),
    ('```json\n{"a": 1}\n```', '{"a": 1}', "fence"),
    ('  ```\n{"a": 1}```\n', '{"a": 1}', "fence"),
    ('{"a": "b"', '{"a": "b"}', "brackets"),
    ('{"a": {"b": [true', '{"a": {"b": [true]}}', "brackets"),
    ('{"a": 1.10\n', '{"a": 1.10\n}', "brackets"),
    ('{"a": [1, 2]', '{"a": [1, 2]}', "brackets"),
    ("{'a': True,}", '{"a": true}', "quotes words commas"),
]

UNCERTAIN = {
    "an open string may be half of one": '{"path": "/home/ann',
    "a number that nothing follows may be half of one": '{"n": 12',
    "a word that is cut is none": '{"a": tru',
    "behind a comma more was to come": '{"a": 1,',
    "behind a colon too": '{"a":',
    "and behind a key": '{"a"',
    "an object that was only opened": '{"a": {',
    "nothing at all": "",
    "a quote inside single quotes": "{'it': 'it's'}",
    "an escape that JSON does not have": '{"re": "\\d+"}',
    "an escape that is cut": '{"a": "\\u12"}',
    "words that are no values": '{"a": undefined}',
    "numbers that JSON does not have": '{"a": NaN, "b": -Infinity}',
    "hexadecimal": '{"a": 0x1F}',
    "a missing comma": '{"a": 1 "b": 2}',
    "a missing colon": '{"a" 1}',
    "a value without a key": "{,}",
    "two commas": '{"a": 1,, "b": 2}',
    "the wrong bracket": '{"a": [1}',
    "a bracket too many": '{"a": 1}}',
    "two objects": '{"a": 1}{"b": 2}',
    "words around it": 'Here: {"a": 1}',
    "a number for a key": "{1: 2}",
    "a fence without an end": '```json\n{"a": 1}',
    "a comment": '{"a": 1 /* one */}',
}


@pytest.mark.parametrize(("given", "expected", "fixes"), MENDED)
def test_what_is_certain_is_mended(given: str, expected: str, fixes: str):
    mended = repair_json(given)
    assert mended is not None
    assert (mended.text, mended.fixes) == (expected, tuple(fixes.split()))
    json.loads(mended.text)


@pytest.mark.parametrize("text", UNCERTAIN.values(), ids=UNCERTAIN.keys())
def test_what_is_not_certain_is_left_alone(text: str):
    assert repair_json(text) is None


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)
objects = st.dictionaries(st.text(), values, max_size=4)


@given(values, st.sampled_from([None, 1]), st.booleans())
def test_json_is_never_changed(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    mended = repair_json(text)
    assert mended is not None
    assert (mended.text, mended.fixes) == (text, ())


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(string.printable.replace("\x0b", "").replace("\x0c", "")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(string.ascii_letters), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(string.ascii_letters), plain_values, max_size=4))
def test_what_python_writes_is_read_as_python_reads_it(value):
    written = repr(value)
    mended = repair_json(written)
    assert mended is not None
    assert json.loads(mended.text) == ast.literal_eval(written) == value


@given(objects, st.data())
def test_a_text_that_is_cut_anywhere_says_no_other_value(value, data):
    """Closing brackets may leave out what had not come yet, but what is there is as it was written."""
    text = json.dumps(value)
    cut = data.draw(st.integers(0, len(text)))
    mended = repair_json(text[:cut])
    if mended is not None:
        assert _is_part(json.loads(mended.text), value)


def _is_part(part, whole) -> bool:
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            key in whole and _is_part(each, whole[key]) for key, each in part.items()
        )
    if isinstance(part, list):
        return isinstance(whole, list) and all(map(_is_part, part, whole[: len(part)])) and len(part) <= len(whole)
    return part == whole and type(part) is type(whole)


@given(st.text("{}[]:,'\"\\ \n0123abtrufalsenN`-._", max_size=40))
def test_anything_at_all_gives_json_or_nothing(text):
    mended = repair_json(text)
    if mended is not None:
        json.loads(mended.text)
        assert mended.fixes or mended.text == text


@pytest.mark.parametrize(
    ("text", "path", "wanted", "expected"),
    [
        ('{"n": "3", "x": 1.10}', ("n",), ("integer",), '{"n":3,"x":1.10}'),
        ('{"n":"12345678901234567890123"}', ("n",), ("integer",), '{"n":12345678901234567890123}'),
        ('{"n":"3"}', ("n",), ("number",), '{"n":3}'),
        ('{"n":"3.50"}', ("n",), ("number",), '{"n":3.50}'),
        ('{"b":"true"}', ("b",), ("boolean",), '{"b":true}'),
        ('{"b":"null"}', ("b",), ("integer", "null"), '{"b":null}'),
        ('{"o":"{\\"a\\":1}"}', ("o",), ("object",), '{"o":{"a":1}}'),
        ('{"l":["1","2"]}', ("l", 1), ("integer",), '{"l":["1",2]}'),
        ('"{\\"a\\":1}"', (), ("object",), '{"a":1}'),
        ('{"n":"3.5"}', ("n",), ("integer",), None),
        ('{"n":"three"}', ("n",), ("integer",), None),
        ('{"n":" 3"}', ("n",), ("integer",), None),
        ('{"n":"03"}', ("n",), ("integer",), None),
        ('{"b":"True"}', ("b",), ("boolean",), None),
        ('{"b":"yes"}', ("b",), ("boolean",), None),
        ('{"s":3}', ("s",), ("string",), None),
        ('{"o":"[1]"}', ("o",), ("object",), None),
        ('{"n":3}', ("n",), ("boolean",), None),
        ('{"n":"\\ud83d"}', ("n",), ("integer",), None),
        ('{"n":"3","s":"\\ud83d"}', ("n",), ("integer",), None),
    ],
)
def test_a_string_that_holds_just_what_is_wanted_loses_its_quotes(text, path, wanted, expected):
    assert retype(text, [Problem(path, "type", wanted)]) == expected
