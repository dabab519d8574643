"""Recordings and what is made of them."""

import io

import pytest

from tests.support.frames import call, completed, created, stream
from toolwire.backends import replay
from toolwire.core.backend import Refuse, Wait
from toolwire.core.collect import collect
from toolwire.core.recording import read_recording, without_secrets
from toolwire.core.request import Request
from toolwire.core.sse import FrameReader
from toolwire.core.stage import Pipeline
from toolwire.replay import show
from toolwire.upstream.record import Recorder


def recorded(tmp_path, data: bytes, status: int = 200, kind: str = "responses") -> bytes:
    recorder = Recorder(str(tmp_path), "turn", kind, "m")
    recorder.start(10.0, status, "text/event-stream")
    for number, frame in enumerate(FrameReader().feed(data)):
        recorder.frame(10.0 + number, frame)
    recorder.close()
    return (tmp_path / "turn.jsonl").read_bytes()


TURN = stream(created(), call("c1", "find", '{"q":"x"}'), completed())


@pytest.mark.parametrize("status", [200, 201])
def test_a_replayed_turn_is_the_recorded_turn(tmp_path, status):
    recording = read_recording(recorded(tmp_path, TURN, status))
    conversation = replay.conversation(Request("m", ()), "S", recording, replay.Profile())
    line = Pipeline(FrameReader(), conversation)
    steps = list(conversation.start().steps)
    turn = collect([event for step in steps for event in line.feed(step)] + list(line.end()))
    assert [(made.id, made.arguments) for made in turn.calls] == [("c1", '{"q":"x"}')]
    assert [made.name for made in turn.calls] == ["find"]
    assert conversation.ended
    assert not conversation.finishing


def test_the_original_timing_can_be_kept(tmp_path):
    recording = read_recording(recorded(tmp_path, TURN))
    timed = replay.conversation(Request("m", ()), "S", recording, replay.Profile("original"))
    waits = [step.seconds for step in timed.start().steps if isinstance(step, Wait)]
    assert waits == [1.0] * (len(recording.lines) - 1)


def test_a_recorded_refusal_is_refused_again(tmp_path):
    recorder = Recorder(str(tmp_path), "turn", "responses", "m")
    recorder.start(0, 429, "application/json")
    recorder.body(0, b'{"error":{"message":"m"}}')
    recorder.close()
    recording = read_recording((tmp_path / "turn.jsonl").read_bytes())
    conversation = replay.conversation(Request("m", ()), "S", recording, replay.Profile())
    [step] = conversation.start().steps
    assert step == Refuse(429, b'{"error":{"message":"m"}}')
    assert conversation.refused(429, {}, step.body).message == "m"
    with pytest.raises(ValueError, match="refused this turn with status 429"):
        show((tmp_path / "turn.jsonl").read_bytes(), io.StringIO())


def test_a_plain_reply_is_shown(tmp_path):
    recorder = Recorder(str(tmp_path), "turn", "responses", "m")
    recorder.start(0, 200, "application/json")
    recorder.body(0, b'{"status":"completed","output":[]}')
    recorder.close()
    out = io.StringIO()
    show((tmp_path / "turn.jsonl").read_bytes(), out)
    assert "TurnEnded(reason='stop')" in out.getvalue()
    conversation = replay.conversation(
        Request("m", ()), "S", read_recording((tmp_path / "turn.jsonl").read_bytes()), replay.Profile()
    )
    assert collect(list(conversation.feed_plain(b"".join(conversation.start().steps)))).reason == "stop"


def test_a_retry_begins_the_recording_anew(tmp_path):
    recorder = Recorder(str(tmp_path), "turn", "responses", "m")
    recorder.start(0, 503, "application/json")
    recorder.body(0, b"first")
    recorder.start(0, 200, "text/event-stream")
    recorder.close()
    assert b"first" not in (tmp_path / "turn.jsonl").read_bytes()


def test_secrets_are_blanked():
    data = b"sk-abcdefghijkl Bearer abc.def-ghi123 eyJhbGciOiJIUzI1.eyJzdWIi.sig"
    assert without_secrets(data) == "[removed] [removed] [removed]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "not a Toolwire recording"),
        (b"{}", "not a Toolwire recording"),
        (b'{"toolwire":2,"kind":"x"}', "version 2"),
        (b'{"toolwire":1,"kind":"telepathy"}', "telepathy backend cannot be replayed"),
    ],
)
def test_anything_else_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        show(text, io.StringIO())


def test_a_replayed_turn_knows_what_its_backend_knows(tmp_path):
    recording = read_recording(recorded(tmp_path, TURN))
    conversation = replay.conversation(Request("m", ()), "S", recording, replay.Profile())
    assert conversation.delta_fields
    assert not conversation.context_window.is_full
    assert conversation.reasoning() == ""
    conversation.stand_in("a", "b")
