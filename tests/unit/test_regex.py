"""Patterns of clients, matched in bounded time."""

import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwire.core import regex
from toolwire.core.regex import Budget


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("^a+$", ["a", "aaa"], ["", "ab"]), ("b", ["abc"], ["ac"]), ("^(?:ab|c){2}$", ["abc", "cc"], ["ab"]), (r"^\d{2,3}$", ["12", "123"], ["1", "1234"]),
        (r"^[^a-c\d]$", ["d"], ["a", "5"]), (r"^\w+\s\W$", ["a !"], ["a!"]), (r"\bcat\b", ["a cat."], ["cats"]), ("^a?b*?c$", ["c", "abbc"], ["ad"]),
        (r"^\u0041\x42\.$", ["AB."], ["ABC"]), ("^(?<year>[0-9]{4})$", ["2026"], ["26"]), ("^[a\\-z]$", ["-", "a"], ["b"]), ("^[]$", [], ["", "a"]),
        ("^(a*)*$", ["", "aaa"], ["b"]), (r"^[\w.]+$", ["a.b"], ["a b"]), (r"^\t$", ["\t"], ["t"]), ("^$", [""], ["a"]), (r"\B", [""], ["a"]),
    ],
)  # fmt: skip
def test_a_pattern_is_read_as_usual(pattern: str, yes: list[str], no: list[str]):
    node = regex.parse(pattern)
    assert node is not None
    assert [text for text in yes if not regex.matches(node, text, Budget(10_000))] == []
    assert [text for text in no if regex.matches(node, text, Budget(10_000))] == []


@pytest.mark.parametrize("pattern", ["(?=a)", "(?!a)", "(?<=a)", "(a)\\1", r"\p{L}", "(", "a)", "[a", "*", "a{x}", "[b-\\d]", "\\", "\\xZZ", "(" * 20 + ")" * 20, "a" * 2000, "(?i)a"])  # fmt: skip
def test_a_pattern_that_is_not_read_is_told(pattern: str):
    assert regex.parse(pattern) is None


PIECES = st.sampled_from(["a", "b", ".", r"\d", r"\w", "[a-c]", "[^a]", "(a|b)", "(?:(?:ab)?)", r"\.", "x", "-"])
COUNTS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "{2,}"])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(PIECES, COUNTS).map("".join), max_size=5).map("".join),
    st.text(string.ascii_lowercase + "0.-\n", max_size=8),
)
def test_patterns_match_what_the_standard_library_matches(pattern: str, text: str):
    node = regex.parse(f"^{pattern}$")
    assert node is not None
    assert regex.matches(node, text, Budget(100_000)) == bool(re.search(rf"^{pattern}\Z", text, re.ASCII))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(["a", "B", "[^a]", "[^B-Y]", r"[^\W\d]", "[a-cX]", "."]), max_size=4).map("".join),
    st.text("abAByzZ0-", max_size=4),
)
def test_without_case_a_pattern_matches_what_the_standard_library_matches(pattern: str, text: str):
    node = regex.parse(f"^{pattern}$")
    assert node is not None
    found = regex.matches(node, text, Budget(100_000), ignore_case=True)
    assert found == bool(re.search(rf"^{pattern}\Z", text, re.ASCII | re.IGNORECASE))


def test_without_case_an_inverse_class_matches_neither_case_of_its_letters():
    node = regex.parse("^[^a]$")
    assert node is not None
    assert [text for text in "aAbB-" if regex.matches(node, text, Budget(100), ignore_case=True)] == ["b", "B", "-"]
