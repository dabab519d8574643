"""The last words of a stream that nothing else can be told about, signs of life, and what is left of storing."""

import json
from typing import Any

import pytest

from tests.support.scripts import NAMES, Name
from toolwire.core.events import CallEnded, CallStarted, TextDelta, TurnEnded, TurnStarted
from toolwire.core.notes import TurnStats
from toolwire.core.request import Request
from toolwire.core.stage import Pipeline
from toolwire.dialects import chat, gemini, messages, responses

DIALECTS: dict[Name, Any] = {
    "chat": chat,
    "responses": responses,
    "messages": messages,
    "gemini": gemini,
}


def begun(dialect: Name, request: Request | None = None) -> Any:
    """An encoder in the middle of a turn."""
    encoder = DIALECTS[dialect].StreamEncoder(request or Request("m", ()), "resp_1", 7, TurnStats())
    for event in (TurnStarted("r", "m"), TextDelta("Hi")):
        encoder.feed(event)
    return encoder


@pytest.mark.parametrize(
    ("dialect", "ends"),
    [
        ("chat", ["error", "[DONE]"]),
        ("responses", ["error", "response.failed", "[DONE]"]),
        ("messages", ["error"]),
        ("gemini", ["error"]),
    ],
)
def test_a_stream_that_breaks_off_ends_with_an_error(dialect: Name, ends: list[str]):
    encoder = begun(dialect)
    wire = b"".join(encoder.break_off()).decode()
    found = [line[6:] for line in wire.split("\n") if line.startswith("data: ")]
    kinds = [line if line == "[DONE]" else json.loads(line).get("type", "error") for line in found]
    assert kinds == ends
    assert "Toolwire met an internal error." in wire
    assert "Hi" not in wire


@pytest.mark.parametrize("dialect", NAMES)
def test_nothing_is_left_to_say_behind_the_end(dialect: Name):
    encoder = begun(dialect)
    assert list(Pipeline(encoder).end()) == []


@pytest.mark.parametrize(
    ("dialect", "sign"),
    [
        ("chat", b": keepalive\n"),
        ("responses", b": keepalive\n"),
        ("messages", b'event: ping\ndata: {"type":"ping"}\n\n'),
        ("gemini", b"\r\n"),
    ],
)
def test_a_silent_stream_shows_that_it_lives(dialect: Name, sign: bytes):
    encoder = begun(dialect)
    assert b"".join(encoder.keepalive(15.0)) == sign


def test_a_response_that_could_not_be_stored_says_so_in_its_last_words():
    encoder = begun("responses", responses.read_request(b'{"model":"m","input":"Go."}').decode(store=True))
    for event in (CallStarted("a", "f"), CallEnded("a")):
        encoder.feed(event)
    last = list(encoder.feed(TurnEnded("calls")))
    again = encoder.mark_unstored(last)
    assert len(again) == len(last)
    closing = json.loads(again[-3].split(b"data: ")[1])
    assert (closing["response"]["store"], "required_action" in closing["response"]) == (False, False)
    assert closing["sequence_number"] == json.loads(last[-3].split(b"data: ")[1])["sequence_number"]


def test_the_encoder_of_responses_holds_bytes_and_not_characters():
    encoder = begun("responses")
    for text, size in (("aaaa", 4), ("aa€", 5), ("😀", 4)):
        before = encoder.held
        encoder.feed(TextDelta(text))
        assert encoder.held - before == size


def test_the_encoder_of_responses_knows_what_it_holds():
    encoder = begun("responses")
    assert encoder.held > 0
    assert [item.status for item in encoder.items] == ["in_progress"]
    whole = json.loads(bytes(encoder.response.encode([])))
    assert whole["output"] == []
