"""SSE framing: bytes to frames and back, in whatever pieces they come."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.museum.cases import Theme
from tests.museum.gate import Wire
from tests.museum.lines import aggregate, answer, ask, cc, part, relay, say
from tests.museum.routes import began, chunks, over, text_block, told, use
from tests.museum.texts import read_all
from tests.support.chunks import in_any_chunking
from tests.support.frames import call, call_item, completed, created, rs, stream, text
from tests.support.gateway import Gateway, backend
from tests.support.upstream import Pause, Reply
from toolwire.core.notes import TurnStats
from toolwire.core.request import Request
from toolwire.core.sse import Frame, FrameReader
from toolwire.dialects import chat, responses

theme = Theme("framing")


def _frames(data: bytes) -> list[Frame]:
    """What is delivered while the connection is still open."""

    def run(pieces: list[bytes]) -> list[Frame]:
        reader = FrameReader()
        return [frame for piece in pieces for frame in reader.feed(piece)]

    return in_any_chunking(data, run)


@theme.row("sse-crlf")
def _() -> None:
    block = b'event: a\ndata: {"x":1}\n\ndata: {"x":2}\n\n'
    for end in (b"\n", b"\r\n", b"\r"):
        assert _frames(block.replace(b"\n", end)) == [Frame(b"a", b'{"x":1}'), Frame(b"", b'{"x":2}')]
    turn = stream(created(), text("Hi"), call("c", "f", '{"x":', "1}", index=1), completed())
    for end in (b"\r\n", b"\r"):
        assert answer(turn.replace(b"\n", end)).chunks == answer(turn).chunks


@theme.row("sse-crlf-split")
def _() -> None:
    reader = FrameReader()
    pieces = (b"data: a\r", b"\n\r", b"\ndata: b\r\n\r\n")
    assert [frame.data for piece in pieces for frame in reader.feed(piece)] == [b"a", b"b"]
    assert [frame.data for frame in _frames(b"".join(pieces))] == [b"a", b"b"]
    lines = FrameReader()
    pieces = (b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n")  # one event of two lines
    assert [frame.data for piece in pieces for frame in lines.feed(piece)] == [b"a\nb"]


@theme.row("sse-comment-as-data")
def _() -> None:
    comment = b": OPENROUTER PROCESSING\n\n"
    assert _frames(comment + b'data: {"x":1}\n\n:\n\n') == [Frame(b"", b'{"x":1}')]
    told = [created(), text("Hi"), completed()]
    commented = comment + b"".join(frame + comment for frame in told)
    answered = answer(commented)
    assert answered.chunks == answer(b"".join(told)).chunks
    assert answered.notes == ()
    inside = created().replace(b"\ndata:", b"\n: still here\ndata:")
    assert answer(inside + text("Hi") + completed()).content == "Hi"


@theme.row("sse-data-colon")
def _() -> None:
    keepalive = b"data: : keepalive\n\n"
    for turn in (
        stream(created(), text("a"), keepalive, text("b"), completed()),
        stream(keepalive, created(), text("a"), text("b"), completed()),
    ):
        answered = answer(turn)
        assert (answered.content, answered.finish) == ("ab", "stop")
        assert answered.notes == ("frame_skipped",)


@theme.row("sse-ping-blank")
def _(impatient: Wire) -> None:
    for encoder in (
        chat.StreamEncoder(Request("m", ()), "c", 1, TurnStats()),
        responses.StreamEncoder(Request("m", ()), "r", 1, TurnStats()),
    ):
        [comment] = encoder.keepalive(15.0)
        assert comment.startswith(b":")
        assert comment.count(b"\n") == 1
    model = impatient.script(Reply([created(), text("a"), Pause(0.5), text("b"), completed()]))
    for door in impatient.doors:
        streamed = door.stream(model)
        assert streamed.keepalives >= 1
        lines = streamed.raw.split(b"\n")
        assert not any(line.startswith((b"id:", b"retry:")) for line in lines)
        assert all(after for line, after in pairwise(lines) if line.startswith(b":"))
        assert streamed.said.text == "ab"


@theme.row("sse-comment-strict-client")
def _(wire: Wire, impatient: Wire, tmp_path: Path) -> None:
    # The ruling has one form of keepalive here, a comment; for a client that cannot bear it the operator puts it off.
    silent = Reply([created(), text("a"), Pause(0.4), text("b"), completed()])
    gateway = Gateway(tmp_path, "[server]\nkeepalive = 0\n" + backend(wire.upstream.url))
    without = Wire(gateway, wire.upstream, wire.http)
    streams = [door.stream(without.script(silent)) for door in without.doors]
    gateway.stop()
    assert [(each.said.text, each.keepalives) for each in streams] == [("ab", 0)] * 2
    for door in impatient.doors:
        between = door.stream(impatient.script(silent))
        assert between.keepalives >= 1
        assert between.said.text == "ab"  # read strictly, which a comment inside an event would not survive


@theme.row("sse-utf8-split")
def _() -> None:
    arguments = '{"t":"渐 😀"}'
    turn = stream(created(), text("渐😀"), call("c", "f", arguments, index=1), completed())
    expected = answer(turn)
    assert (expected.content, expected.calls) == ("渐😀", [("c", "f", arguments)])
    whole = _frames(turn)
    for place in range(len(turn)):
        reader = FrameReader()
        assert [*reader.feed(turn[:place]), *reader.feed(turn[place:])] == whole
    broken = stream(created(), text("a"), text("渐").replace("渐".encode(), b"\xe6\xb8"), completed())
    failed = answer(broken)
    assert failed.error is not None
    assert failed.error["code"] == "bad_encoding"
    assert (failed.content, failed.finish) == ("a", None)


@theme.row("sse-args-bytechunk")
def _() -> None:
    words = '<tool_call>{"name":"n","arguments":{"t":"ÄÖÜäöüß"}}</tool_call>'
    assert read_all(words).calls == [("n", '{"t":"ÄÖÜäöüß"}')]
    answered = say(words, ask(tools=("n",)), step=1)
    assert answered.named == [("n", '{"t":"ÄÖÜäöüß"}')]
    tagged = "<tool_call><function=n><parameter=t>ÄÖÜ</parameter></function></tool_call>"
    assert read_all(tagged).calls == [("n", '{"t":"ÄÖÜ"}')]


@theme.row("uni-surrogate")
def _() -> None:
    # Escapes inside the arguments are text to us; whoever parses them joins the pair.
    pieces = '{"input":"\\ud83d', '\\ude00"}'
    chunks = cc(part(pieces[0], index=0, id="c", name="f")), cc(part(pieces[1], index=0))
    assert aggregate(*chunks).calls == relay(*chunks).calls == [("c", "f", "".join(pieces))]
    assert answer(stream(created(), call("c", "f", *pieces), completed())).calls == [("c", "f", "".join(pieces))]
    assert read_all(f'<tool_call>{{"name":"f","arguments":{"".join(pieces)}}}</tool_call>').calls[0][1] == "".join(
        pieces
    )

    # A server that cuts its strings between UTF-16 units writes half a pair into one frame and half into the next.
    added = rs("output_item.added", output_index=0, item=call_item("c", "f", ""))
    halves = [
        _ascii("function_call_arguments.delta", item_id="fc_1", delta=half) for half in ('{"t":"\ud83d', '\ude00"}')
    ]
    called = answer(stream(created(), added, *halves, completed()))
    assert [json.loads(arguments) for _, _, arguments in called.calls] == [{"t": "😀"}]
    spoken = answer(
        stream(created(), *(_ascii("output_text.delta", delta=half) for half in ("a\ud83d", "\ude00b")), completed())
    )
    assert spoken.content == "a😀b"

    # One that stays alone costs itself and nothing else, and is noted.
    for pieces in (["a\ud83db"], ["a\ud83d", "b"], ["a", "\ude00b"]):
        deltas = [_ascii("output_text.delta", item_id="msg_1", output_index=0, delta=piece) for piece in pieces]
        lone = answer(stream(created(), *deltas, completed()))
        assert lone.content == "a\ufffdb"
        assert lone.notes != ()
    # So too where it is told as a total: a call must not lose its arguments over it, nor a turn its call.
    item = call_item("c", "f", '{"t":"a\ud83db"}')
    whole = _ascii("output_item.done", output_index=0, item=item)
    done = _ascii("function_call_arguments.done", item_id="fc_1", output_index=0, arguments=item["arguments"])
    final = _ascii("completed", response={"status": "completed", "output": [item]})
    for turn in ((added, done, completed()), (whole, completed()), (final,)):
        replaced = answer(stream(created(), *turn))
        assert [json.loads(arguments) for _, _, arguments in replaced.calls] == [{"t": "a\ufffdb"}]
        assert replaced.notes != ()
    [(_, _, arguments)] = aggregate(cc(part({"t": "\ud83d"}, index=0, id="c", name="f"))).calls
    arguments.encode()


def _ascii(type: str, **fields: Any) -> bytes:
    """A frame with everything beyond ASCII escaped, as many servers write it."""
    return f"data: {json.dumps({'type': f'response.{type}', **fields})}\n\n".encode()


@theme.row("tr-nginx-buffer")
def _(wire: Wire) -> None:
    model = wire.script(Reply([stream(created(), text("a" * 5000), completed())]))
    encoding = {"accept-encoding": "gzip, br"}
    streams = [door.stream(model, headers=encoding).headers for door in wire.doors]
    stored = wire.responses.plain(model, background=True).json()["id"]
    with wire.http.stream("GET", f"{wire.responses.url}/{stored}?stream=true", headers=encoding) as again:
        streams.append(again.headers)
        again.read()
    for headers in streams:
        assert headers["content-type"].startswith("text/event-stream")
        assert headers["cache-control"] == "no-cache, no-transform"
        assert headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in headers
        assert "content-length" not in headers


@theme.row("sse-done-json")
def _() -> None:
    done = b"data: [DONE]\n\n"
    turn = [created(), text("write [DONE] here"), call("c", "f", '{"t":"[DONE]"}', index=1), completed()]
    for given in (
        stream(*turn, done),
        stream(turn[0], done, *turn[1:], done, done),
        stream(*turn).replace(b"\n\n", b"\n\n: [DONE]\n\n"),
    ):
        answered = answer(given)  # the folding insists on one [DONE], the last line
        assert answered.content == "write [DONE] here"
        assert answered.calls == [("c", "f", '{"t":"[DONE]"}')]
        assert answered.notes == ()
    assert answer(stream(created(), text("a"), done)).notes == ("end_missing",)  # it should not end a turn by itself
    # A Messages server has no such line and may send it all the same; its clients never get one.
    blocks = [began(), text_block(0, "write [DONE] here"), use(1, "c", "f", '{"t":"[DONE]"}'), over("tool_use")]
    for sent in (stream(*blocks), stream(*blocks, done), stream(blocks[0], done, *blocks[1:], done)):
        relayed = told("messages", sent)
        assert (relayed.said.text, relayed.calls) == ("write [DONE] here", [("c", "f", '{"t":"[DONE]"}')])
        assert relayed.notes == ()
    chatted = told("chat", chunks(cc(content="write [DONE] here"), cc(content=" [DONE]"), cc(finish="stop")))
    assert chatted.said.text == "write [DONE] here [DONE]"
    for streams in (relayed.data, chatted.data):
        assert [data.count(b"data: [DONE]") for data in streams] == [1, 1, 0]


@theme.row("sse-nonjson")
def _(wire: Wire) -> None:
    page = b"<html>502 Bad Gateway</html>"
    for content_type in (
        "text/event-stream",
        "text/html",
        "text/html; charset=utf-8",
        "application/json",
        "text/plain",
    ):
        model = wire.script(Reply([page], content_type=content_type))
        for door in wire.doors:
            streamed, plain = door.stream(model), door.plain(model)
            assert (streamed.status, plain.status_code) == (502, 502), content_type
            assert streamed.error["message"]
            assert plain.json()["error"]["message"]
    garbage = stream(created(), text("a"), b"data: <html>\n\n", text("b"), completed())
    answered = answer(garbage)
    assert (answered.content, answered.finish, answered.notes) == ("ab", "stop", ("frame_skipped",))


test_museum = theme.test()
