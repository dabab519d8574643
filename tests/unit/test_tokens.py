"""The estimate of a prompt's tokens: rough, but everything counts."""

import msgspec
import pytest

from toolwire.core.request import (
    CallEntry,
    Entry,
    FilePart,
    HostedTool,
    ImagePart,
    Message,
    OtherEntry,
    ReasoningEntry,
    RefusalPart,
    Request,
    ResultEntry,
    TextPart,
    Tool,
)
from toolwire.core.tokens import CHARS_PER_TOKEN, TOKENS_PER_ENTRY, TOKENS_PER_IMAGE, estimate_tokens

RAW = msgspec.Raw(b'{"type":"object","properties":{"where":{"type":"string"}}}')
WORDS = "x" * 400


def tokens(*entries: Entry, **fields: object) -> int:
    return estimate_tokens(Request("m", entries, **fields))  # type: ignore[arg-type]


def test_nothing_is_nothing():
    assert tokens() == 0


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (Message("user", (TextPart(WORDS),)), 100),
        (Message("assistant", (TextPart(WORDS), RefusalPart(WORDS))), 200),
        (Message("user", ()), 0),
        (ResultEntry("c", (TextPart(WORDS),)), 100),
        (ResultEntry("c", (TextPart(WORDS), ImagePart("u"))), 100 + TOKENS_PER_IMAGE),
        (Message("user", (ImagePart("u"), FilePart("d"))), 2 * TOKENS_PER_IMAGE),
        (CallEntry("c", "f" * 4, WORDS), 101),
        (ReasoningEntry("rs", (WORDS,), (WORDS,)), 200),
        (OtherEntry("x", msgspec.Raw(b'"' + WORDS.encode() + b'"')), 402 // CHARS_PER_TOKEN),
    ],
)
def test_every_entry_counts_its_letters_and_a_frame(entry: Entry, expected: int):
    assert tokens(entry) == expected + TOKENS_PER_ENTRY


@pytest.mark.parametrize(
    "fields",
    [
        {"instructions": WORDS},
        {"tools": (Tool("f", WORDS),)},
        {"tools": (Tool("f", parameters=RAW),)},
        {"tools": (Tool("p", kind="custom", format=RAW),)},
        {"hosted_tools": (HostedTool("web_search", RAW),)},
    ],
)
def test_instructions_and_tools_count(fields: dict[str, object]):
    assert tokens(**fields) >= len(RAW) // CHARS_PER_TOKEN


def test_more_is_never_less():
    entries: list[Entry] = []
    last = 0
    for number in range(20):
        entries.append(Message("user", (TextPart("x" * number),)))
        now = tokens(*entries)
        assert now > last
        last = now
