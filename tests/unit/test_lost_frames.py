"""What chat and Messages servers do to arguments on the way: frames lost, letters cut in half, totals, failed ends."""

import json
from typing import Any

import pytest

from tests.support.chunks import in_any_chunking
from toolwire.backends import chat, messages
from toolwire.core.collect import Call, Turn, collect
from toolwire.core.events import Note
from toolwire.core.order import TurnOrder
from toolwire.core.request import Request, Tool
from toolwire.core.sse import FrameReader
from toolwire.core.stage import Pipeline

Json = dict[str, Any]
BROKEN = b'data: {"choices":[{"delta":{"tool_calls":[{"ind\n\n'
KEEPALIVE = b"data: : keepalive\n\n"


class Chat:
    """A turn with one call as a chat server streams it."""

    kind = chat

    def frame(self, finish: str | None = None, **delta: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return b"data: " + json.dumps({"id": "x", "model": "m", "choices": [choice]}).encode() + b"\n\n"

    def text(self, text: str) -> bytes:
        return self.frame(content=text)

    def thought(self, text: str) -> bytes:
        return self.frame(reasoning_content=text)

    def call(self, *pieces: bytes | str) -> list[bytes]:
        function = {"name": "f", "arguments": ""}
        first = self.frame(tool_calls=[{"index": 0, "id": "c", "type": "function", "function": function}])
        return [first, *(piece if isinstance(piece, bytes) else self.arguments(piece) for piece in pieces)]

    def arguments(self, text: str) -> bytes:
        return self.frame(tool_calls=[{"index": 0, "function": {"arguments": text}}])

    def end(self, reason: str = "tool_calls") -> list[bytes]:
        return [self.frame(reason), b"data: [DONE]\n\n"]

    def plain(self, reason: str = "tool_calls", text: Any = None, arguments: Any = "{}") -> Json:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        message = {"role": "assistant", "content": text, "tool_calls": [call]}
        return {"id": "x", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": reason}]}


class Messages:
    """The same as a Messages server streams it."""

    kind = messages

    def frame(self, type: str, **fields: Any) -> bytes:
        return f"event: {type}\ndata: {json.dumps({'type': type, **fields})}\n\n".encode()

    def _delta(self, type: str, index: int = 0, **fields: Any) -> bytes:
        return self.frame("content_block_delta", index=index, delta={"type": type, **fields})

    def text(self, text: str) -> bytes:
        return self._delta("text_delta", text=text)

    def thought(self, text: str) -> bytes:
        return self._delta("thinking_delta", thinking=text)

    def call(self, *pieces: bytes | str) -> list[bytes]:
        block = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
        first = self.frame("content_block_start", index=1, content_block=block)
        return [first, *(piece if isinstance(piece, bytes) else self.arguments(piece) for piece in pieces)]

    def arguments(self, text: str) -> bytes:
        return self._delta("input_json_delta", 1, partial_json=text)

    def end(self, reason: str = "tool_use") -> list[bytes]:
        stopped = self.frame("message_delta", delta={"stop_reason": reason})
        return [self.frame("content_block_stop", index=1), stopped, self.frame("message_stop")]

    def plain(self, reason: str = "tool_use", text: Any = None, arguments: Any = None) -> Json:
        call = {"type": "tool_use", "id": "c", "name": "f", "input": arguments or {}}
        said = [{"type": "text", "text": text}] if text is not None else []
        return {"id": "x", "type": "message", "model": "m", "content": [*said, call], "stop_reason": reason}


SERVERS = pytest.mark.parametrize("server", [Chat(), Messages()], ids=["chat", "messages"])
DIALECTS = pytest.mark.parametrize("dialect", ["chat", "messages"])


def turn(server: Any, *frames: bytes, dialect: Any = "", **profile: Any) -> Turn:
    """The turn that these frames make, the same in any chunking."""
    request = Request("m", (), tools=(Tool("f"),), stream=True, dialect=dialect)

    def run(pieces: list[bytes]) -> Turn:
        conversation = server.kind.Conversation(request, "S", server.kind.Profile(**profile))
        line = Pipeline(FrameReader(delta_fields=conversation.delta_fields), conversation, TurnOrder())
        return collect([event for piece in pieces for event in line.feed(piece)] + list(line.end()))

    return in_any_chunking(b"".join(frames), run)


def plain(server: Any, body: Json, dialect: Any = "") -> Turn:
    request = Request("m", (), tools=(Tool("f"),), dialect=dialect)
    return collect(list(server.kind.Conversation(request, "S").feed_plain(json.dumps(body).encode())))


def call_of(turn: Turn) -> Call:
    [call] = [item for item in turn.items if isinstance(item, Call)]
    return call


def codes(turn: Turn) -> list[str]:
    return [note.code for note in turn.notes]


# Lost frames


@SERVERS
@DIALECTS
def test_a_call_with_a_lost_frame_in_it_is_incomplete(server, dialect):
    got = turn(server, *server.call('{"path":"/tmp/', BROKEN, "bar", '"}'), *server.end(), dialect=dialect)
    call = call_of(got)
    assert (call.arguments, call.complete) == ('{"path":"/tmp/', False)
    assert codes(got) == ["frame_skipped", "arguments_gap"]


@SERVERS
def test_a_call_that_was_whole_before_the_lost_frame_is_complete(server):
    assert call_of(turn(server, *server.call('{"a":1}', BROKEN), *server.end())).complete


@SERVERS
def test_arguments_that_were_all_lost_are_not_an_empty_object(server):
    call = call_of(turn(server, *server.call(BROKEN), *server.end()))
    assert (call.arguments, call.complete) == ("", False)


@SERVERS
@pytest.mark.parametrize("heartbeat", [KEEPALIVE, b"event: ping\ndata: ping\n\n"])
def test_a_heartbeat_that_is_no_frame_costs_a_call_nothing(server, heartbeat):
    assert call_of(turn(server, *server.call('{"a"', heartbeat, ":1}"), *server.end())).arguments == '{"a":1}'


def test_a_message_that_tells_all_of_it_closes_the_gap():
    server = Chat()
    function = {"name": "f", "arguments": '{"path":"/tmp/foo/bar"}'}
    message = {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}]}
    total = (
        b"data: " + json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).encode() + b"\n\n"
    )
    got = turn(server, *server.call('{"path":"/tmp/', BROKEN, 'bar"}'), total, b"data: [DONE]\n\n")
    call = call_of(got)
    assert (call.arguments, call.complete) == (function["arguments"], True)
    assert codes(got) == ["frame_skipped"]


# Letters cut in half


@SERVERS
@DIALECTS
def test_a_letter_cut_in_half_is_whole_again(server, dialect):
    got = turn(
        server,
        server.thought("a\ud83d"),
        server.thought("\ude00b"),
        server.text("c\ud83d"),
        server.text("\ude00d"),
        *server.call('{"t":"e\ud83d', '\ude00f"}'),
        *server.end(),
        dialect=dialect,
    )
    assert "".join(part for item in got.items for part in getattr(item, "parts", ())) == "a😀b"
    assert got.text == "c😀d"
    assert (call_of(got).arguments, call_of(got).complete) == ('{"t":"e😀f"}', True)
    assert got.notes == ()


@SERVERS
@DIALECTS
@pytest.mark.parametrize("pieces", [('{"t":"a\ud83d', 'b"}'), ('{"t":"a', '\ude00b"}'), ('{"t":"a\ud83db"}',)])
def test_half_a_letter_that_stays_alone_is_replaced(server, dialect, pieces):
    got = turn(server, *server.call(*pieces), *server.end(), dialect=dialect)
    assert (call_of(got).arguments, call_of(got).complete) == ('{"t":"a\ufffdb"}', True)
    assert codes(got) == ["letter_replaced"]


@SERVERS
def test_half_a_letter_at_the_very_end_is_noted(server):
    got = turn(server, server.text("a\ud83d"), *server.end(), dialect="")
    assert (got.text, codes(got)[0]) == ("a", "letter_replaced")


@SERVERS
@DIALECTS
@pytest.mark.parametrize("arguments", [{"t": "a\ud83db"}, '{"t":"a\ud83db"}'])
def test_half_a_letter_in_a_plain_reply_is_replaced(server, dialect, arguments):
    got = plain(server, server.plain(text="x\ude00y", arguments=arguments), dialect)
    assert (got.text, json.loads(call_of(got).arguments)) == ("x\ufffdy", {"t": "a\ufffdb"})
    assert set(codes(got)) == {"letter_replaced"}


# Totals


@SERVERS
def test_snapshots_of_arguments_are_read_as_totals(server):
    frames = (*server.call('{"a"', '{"a":1', '{"a":1}', '{"a":1}'), *server.end())
    got = turn(server, *frames, arguments="snapshot")
    assert (call_of(got).arguments, call_of(got).complete, got.notes) == ('{"a":1}', True, ())
    assert call_of(turn(server, *frames)).arguments != '{"a":1}'


@SERVERS
def test_a_snapshot_closes_the_gap_before_it(server):
    got = turn(server, *server.call('{"a"', BROKEN, '{"a":1}'), *server.end(), arguments="snapshot")
    assert (call_of(got).arguments, call_of(got).complete) == ('{"a":1}', True)


def test_half_a_snapshot_is_no_complete_call():
    server = Chat()
    assert not call_of(turn(server, *server.call('{"a"', '{"a":1'), *server.end(), arguments="snapshot")).complete


@pytest.mark.parametrize("fields", [{"id": "c"}, {"index": 0}, {}])
def test_snapshots_may_stand_beside_their_function(fields):
    server = Chat()
    totals = ['{"q', '{"query": "x', '{"query": "x"}']
    frames = [
        server.frame(tool_calls=[{**fields, "type": "function", "function": {"name": "f"}, "arguments": total}])
        for total in totals
    ]
    got = turn(server, *frames, *server.end(), arguments="snapshot")
    assert (call_of(got).name, call_of(got).arguments) == ("f", totals[-1])


@pytest.mark.parametrize("input", ['{"a":1}', {"a": 1}])
def test_an_input_in_a_string_is_not_encoded_twice(input):
    server = Messages()
    for dialect in ("", "messages"):
        assert json.loads(call_of(plain(server, server.plain(arguments=input), dialect)).arguments) == {"a": 1}
        block = {"type": "tool_use", "id": "c", "name": "f", "input": input}
        started = server.frame("content_block_start", index=1, content_block=block)
        assert json.loads(call_of(turn(server, started, *server.end(), dialect=dialect)).arguments) == {"a": 1}


# Ends that are failures


@pytest.mark.parametrize(
    ("reason", "status"),
    [("error", 502), ("network_error", 502), ("insufficient_system_resource", 503), ("Abort", 502)],
)
@SERVERS
@DIALECTS
def test_a_reason_that_means_failure_fails_the_turn(server, dialect, reason, status):
    for got in (
        turn(server, server.text("a"), *server.end(reason), dialect=dialect),
        plain(server, server.plain(reason), dialect),
    ):
        assert got.failure is not None
        assert (got.failure.status, got.failure.code) == (status, reason.lower())
        assert got.failure.retryable


def test_an_error_inside_a_choice_fails_the_turn():
    error = {"code": 429, "message": "Too many.", "metadata": {}}
    choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error", "error": error}
    frame = b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"
    body = {"id": "x", "choices": [{"index": 0, "message": {"content": "a"}, "error": error}]}
    for got in (turn(Chat(), Chat().text("a"), frame), plain(Chat(), body)):
        assert got.failure is not None
        assert got.failure.message == "Too many."


def test_a_filter_of_a_messages_server_is_one():
    assert turn(Messages(), Messages().text("a"), *Messages().end("guardrail_intervened")).reason == "filter"


def test_a_note_of_the_gap_names_its_call():
    got = turn(Chat(), *Chat().call('{"a"', BROKEN), *Chat().end())
    assert Note("arguments_gap", "c") in got.notes
