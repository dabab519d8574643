"""Text of others in a terminal or a pipe: it steers nothing and hides nothing."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.agent.events import TextDelta, as_line
from toolwire.core.display import clean, escape_invisible

HOSTILE = ["\x00", "\x07", "\x08", "\r", "\x7f", "\x85", "\x9b", "\u061c", "\u200b", "\u200e", "\u200f", "\u2028",
           "\u202a", "\u202e", "\u2060", "\u2066", "\u2069", "\ufeff", "\U000e0041"]  # fmt: skip


@pytest.mark.parametrize("letter", HOSTILE, ids=ascii)
def test_what_steers_or_hides_is_left_out_or_shown(letter: str) -> None:
    assert clean(f"a{letter}b") == "ab"
    assert escape_invisible(f"a{letter}b").isascii()
    assert json.loads(f'"{escape_invisible(f"a{letter}b")}"') == f"a{letter}b"


def test_escape_sequences_are_left_out_whole() -> None:
    assert clean("a\x1b[31;1mb\x1b]0;title\x07c\x1b]8;;http://x\x1b\\d\x1b(Be") == "abcde"


@pytest.mark.parametrize("text", ["plain", "two\nlines\tand tabs", "日本語 ünï", "می‌خواهم", "👩‍💻 ❤️", "שלום", ""])
def test_words_of_every_language_stay(text: str) -> None:
    assert clean(text) == text


@given(st.text())
def test_no_control_and_no_format_letter_is_left_but_joiners(text: str) -> None:
    visible = ("\n", "\t", "\u200c", "\u200d")
    assert not [each for each in clean(text) if unicodedata.category(each) == "Cc" and each not in visible]
    assert not [
        each
        for each in escape_invisible(text)
        if unicodedata.bidirectional(each) in ("LRE", "RLE", "LRO", "RLO", "LRI")
    ]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_an_event_is_a_line_of_json_that_means_the_same(text: str) -> None:
    line = as_line(TextDelta(text)).decode()
    assert json.loads(line)["text"] == text
    assert clean(line) == line
