"""Transport: what breaks, stalls or comes in the wrong form still reaches the client as the truth."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.museum.cases import Theme
from tests.museum.gate import Door, Wire
from tests.museum.lines import answer
from tests.support.frames import call, call_item, completed, created, rs, stream, text
from tests.support.gateway import Gateway, backend
from tests.support.upstream import Cut, Pause, Reply
from toolwire.gateway.sinks import Pace

theme = Theme("transport")


def _half_a_call() -> bytes:
    return stream(
        created(),
        rs("output_item.added", output_index=0, item=call_item("a", "f", "")),
        rs("function_call_arguments.delta", item_id="fc_1", output_index=0, delta='{"x":'),
    )


@theme.row("err-silent-trunc")
def _(wire: Wire) -> None:
    for steps in ([_half_a_call(), Pause(0.05), Cut()], [_half_a_call()]):  # reset, and a clean end in the middle
        model = wire.script(Reply(steps))
        for door in wire.doors:
            streamed, plain = door.stream(model), door.plain(model)
            assert streamed.status == 200
            assert streamed.said.finish is None
            assert streamed.error["type"] == "server_error"
            assert streamed.said.calls == (("a", "f", '{"x":'),)
            assert plain.status_code == 502
            assert plain.json()["error"]["message"] == streamed.error["message"]
        told = wire.responses.stream(model).received
        assert told.types[-2:] == ["error", "failed"]  # numbered on, or it would be a violation
        assert [item["status"] for item in told.output] == ["incomplete"]
        assert told.of("output_item.done") == []  # nobody runs half a call


@theme.row("err-inband-ignored")
def _(wire: Wire) -> None:
    error = {"code": "server_is_overloaded", "message": "Overloaded"}
    for told in (
        rs("failed", response={"status": "failed", "error": error}),
        b'event: error\ndata: {"type":"error","error":{"code":"server_is_overloaded","message":"Overloaded"}}\n\n',
        b'event: error\ndata: {"type":"error","code":"server_is_overloaded","message":"Overloaded"}\n\n',
    ):
        after_text = answer(stream(created(), text("Half"), told, text(" more"), completed()))
        assert (after_text.content, after_text.finish) == ("Half", None)
        assert after_text.error is not None
        assert after_text.error["message"] == "Overloaded"
        assert after_text.response["error"] == {"code": "server_is_overloaded", "message": "Overloaded"}
        model = wire.script(stream(created(), text("Half"), told))
        for door in wire.doors:
            assert door.plain(model).status_code == 503
            assert door.stream(wire.script(stream(created(), told))).status == 503  # nothing was committed yet


@theme.row("err-bare-json")
def _(wire: Wire) -> None:
    bare = b'{"error":{"message":"boom"}}\n'
    model = wire.script(bare)
    for door in wire.doors:
        streamed, plain = door.stream(model), door.plain(model)
        assert (streamed.error["message"], streamed.status) == ("boom", 502)
        assert (plain.json()["error"]["message"], plain.status_code) == ("boom", 502)
        midway = door.stream(wire.script(Reply([created() + text("Half"), Pause(0.05), bare])))
        assert midway.said.text == "Half"
        assert midway.error["message"] == "boom"  # read out of a strictly framed stream


@theme.row("err-disconnect-mid")
def _(wire: Wire) -> None:
    endless = [created(), *(step for number in range(200) for step in (text(f"{number} "), Pause(0.03)))]
    model = wire.script(Reply(endless))
    for door in wire.doors:
        wire.upstream.gone.clear()
        with wire.http.stream("POST", door.url, json=door.body(model, stream=True)) as response:
            for _line, _ in zip(response.iter_lines(), range(6), strict=False):
                pass
        assert wire.upstream.gone.wait(60), "the upstream is still being read"
        wire.upstream.gone.clear()
        with pytest.raises(httpx.ReadTimeout):
            wire.http.post(door.url, json=door.body(model), timeout=0.3)  # a plain request, given up
        assert wire.upstream.gone.wait(60), "the upstream is still being read"
    wire.upstream.gone.clear()
    with wire.responses.socket() as socket:
        socket.begin(model=model, input="Go.")
    assert wire.upstream.gone.wait(60), "the upstream is still being read"


@theme.row("sse-dup-lifecycle")
def _(retrying: Wire) -> None:
    whole = stream(created("r2"), text("Bonjour!"), completed())
    for door in retrying.doors:
        shown = retrying.script(Reply([created("r1") + text("Bon"), Pause(0.1), Cut()]), Reply([whole]))
        streamed = door.stream(shown)
        assert streamed.said.text == "Bon"
        assert streamed.error["message"]
        assert len(retrying.asked(shown)) == 1
        not_shown = retrying.script(Reply([created("r1"), Pause(0.05), Cut()]), Reply([whole]))
        again = door.stream(not_shown)
        assert again.said.text == "Bonjour!"  # the reading insists on one beginning, one end, one id
        assert again.notes == ["retried"]
        assert len(retrying.asked(not_shown)) == 2


@theme.row("sse-forced-stream")
def _(wire: Wire) -> None:
    usage = {"input_tokens": 1, "output_tokens": 2}
    told = stream(created(), text("Hm."), call("a", "f", '{"x":', "1}", index=1), completed(usage=usage))
    for content_type in ("text/event-stream", "text/event-stream; charset=utf-8", "application/octet-stream"):
        model = wire.script(Reply([told], content_type=content_type))
        for door in wire.doors:
            plain = door.plain(model)
            assert plain.headers["content-type"] == "application/json"
            said = door.said(plain)
            assert (said.text, said.calls, said.finish) == ("Hm.", (("a", "f", '{"x":1}'),), "tool_calls")
            assert plain.json()["usage"]["total_tokens"] == 3
            assert not wire.asked(model)[-1].body.get("stream")


@theme.row("sse-nonstream-to-stream")
def _(wire: Wire) -> None:
    message = b'{"type":"message","id":"m","content":[{"type":"output_text","text":"Hm."}]}'
    called = b'{"type":"function_call","id":"fc_1","call_id":"a","name":"f","arguments":"{\\"x\\":1}"}'
    usage = b'"usage":{"input_tokens":1,"output_tokens":2}'
    body = b'{"id":"r","status":"completed","output":[%b,%b],%b}' % (message, called, usage)
    waiting = [b"\n", Pause(0.05), b"\n", Pause(0.05), body]  # some servers send blank lines while they work
    for steps in ([body], [body[:40], Pause(0.02), body[40:]], waiting):
        model = wire.script(Reply(steps, content_type="application/json"))
        for door in wire.doors:
            said = door.stream(model).said
            assert (said.text, said.calls, said.finish) == ("Hm.", (("a", "f", '{"x":1}'),), "tool_calls")
        assert wire.stream(model, stream_options={"include_usage": True}).folded["usage"]["total_tokens"] == 3
        assert wire.responses.stream(model).response["usage"]["total_tokens"] == 3
    refused = wire.script(Reply([b'{"error":{"message":"No.","code":"nope"}}'], 422, "application/json"))
    failed = b'{"id":"r","status":"failed","error":{"code":"server_error","message":"No."},"output":[]}'
    broken = wire.script(Reply([failed], content_type="application/json"))
    for door in wire.doors:
        assert (door.stream(refused).status, door.stream(refused).error["message"]) == (422, "No.")
        assert (door.stream(broken).status, door.stream(broken).error["message"]) == (502, "No.")


_UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "openai-beta": "responses_websockets=2026-02-06",
}


@theme.row("ws-upgrade")
def _(wire: Wire, tmp_path: Path) -> None:
    model = wire.script(stream(created(), text("Hi"), completed()))
    with wire.responses.socket() as socket:
        assert socket.turn(model=model, input="Go.").said.text == "Hi"
    # Where it is not served, the client is told so at once, in the one way that makes it fall back.
    gateway = Gateway(tmp_path, "[server]\nwebsocket = false\n" + backend(wire.upstream.url))
    without = Wire(gateway, wire.upstream, wire.http).responses
    upgrade = without.http.get(without.url, headers=_UPGRADE)
    posted = without.stream(model)
    gateway.stop()
    assert upgrade.status_code == 426
    assert upgrade.json()["error"]["message"]
    assert posted.said.text == "Hi"
    assert wire.http.get(wire.url, headers=_UPGRADE).status_code == 426  # chat has none


@theme.row("ws-terminal")
def _(wire: Wire) -> None:
    door = wire.responses
    good = wire.script(stream(created(), text("Hi"), completed()))
    failing = (
        [created() + text("Half"), Pause(0.05), Cut()],
        [created() + text("Half"), rs("failed", response={"status": "failed", "error": {"message": "No."}})],
        [created() + text("Half")],
    )
    with door.socket() as socket:
        for steps in failing:
            model = wire.script(Reply(steps))
            told = socket.turn(model=model, input="Go.")  # read strictly: one response.failed, the last
            assert (told.types[-1], told.said.text) == ("failed", "Half")
            assert len(wire.asked(model)) == 1, "what was shown is not asked again"
            assert socket.turn(model=good, input="Go.").said.text == "Hi"
        early = wire.script(Reply([b'{"error":{"message":"No."}}'], 422, "application/json"))
        refused = socket.refused(model=early, input="Go.")
        assert (refused["type"], refused["status"], refused["error"]["message"]) == ("error", 422, "No.")
        for unreadable in ({"model": ""}, {"model": good, "input": 3}, {"model": good, "input": "x", "type": "what"}):
            assert socket.refused(**unreadable)["status"] == 400
        assert socket.turn(model=good, input="Go.").said.text == "Hi"


@theme.row("cors-obsidian")
def _(wire: Wire) -> None:
    origin = {"origin": "app://obsidian.md"}
    asks = {"access-control-request-method": "POST", "access-control-request-private-network": "true"}
    wanted = "authorization,content-type,x-stainless-os"
    paths = (
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/responses/x",
        "/obsidian-xml/v1/chat/completions",
        "/v1/models",
    )
    for path in paths:
        preflight = wire.http.options(
            wire.gateway.url + path, headers={**origin, **asks, "access-control-request-headers": wanted}
        )
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "app://obsidian.md"
        allowed = {word.strip() for word in preflight.headers["access-control-allow-headers"].lower().split(",")}
        assert allowed >= set(wanted.split(","))
        assert "POST" in preflight.headers["access-control-allow-methods"]
    model = wire.script(stream(created(), text("Hi"), completed()))
    answers = [
        headers
        for door in wire.doors
        for headers in (
            door.stream(model, headers=origin).headers,
            door.plain(model, headers=origin).headers,
            door.plain("nobody/knows", headers=origin).headers,
            wire.http.post(door.url, content=b"{", headers=origin).headers,
        )
    ]
    for headers in answers:
        assert headers["access-control-allow-origin"] == "app://obsidian.md"
        exposed = headers["access-control-expose-headers"].lower()
        assert "x-codex-tool-call-count" in exposed
        assert "x-toolwire-notes" in exposed


@theme.row("ping-dropped")
def _(impatient: Wire) -> None:
    assert Pace().keepalive <= 15
    silent = impatient.script(Reply([created(), Pause(0.7), b": waiting\n\n", Pause(0.7), text("Hi"), completed()]))
    pinged = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
    pinging = impatient.script(Reply([created(), text("H"), *[Pause(0.1), pinged] * 6, text("i"), completed()]))
    # A textual call is held back until its block closes: bytes come in all the time, and none go out.
    block = '<tool_call>{"name":"f","arguments":{"t":"0123456789"}}</tool_call>'
    pieces = [step for place in range(0, len(block), 6) for step in (text(block[place : place + 6]), Pause(0.08))]
    holding = impatient.script(Reply([created(), *pieces, completed()]))

    def look(door: Door) -> None:
        before_anything = door.stream(silent)
        assert before_anything.keepalives >= 2
        assert before_anything.said.text == "Hi"
        assert door.stream(pinging).keepalives >= 1
        held = door.stream(holding, ("f",))
        assert held.keepalives >= 2
        assert [name for _, name, _ in held.said.calls] == ["f"]

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(look, impatient.doors)] == [None, None]
    # On a socket there are no comments, and Codex counts events only.
    with impatient.responses.socket() as socket:
        assert socket.turn(model=silent, input="Go.").types.count("in_progress") >= 2


ENDED = {
    "busy": "",  # argument deltas are progress, however long they go on
    "busy behind a call": "",  # so are those that wait for the end of another call
    "silent": "idle",
    "pinging": "progress",  # bytes, so it is not idle; but not for ever
    "pinging after text": "progress",
}


@theme.row("idle-timer")
def _(wire: Wire, tmp_path: Path) -> None:
    ended: list[dict[str, str]] = []
    for scale in (1, 5, 25):  # a slow machine gets larger clocks
        folder = tmp_path / str(scale)
        folder.mkdir()
        clocks = f"[timeouts]\nidle = {0.8 * scale}\nprogress = {1.6 * scale}\n"
        gateway = Gateway(folder, clocks + backend(wire.upstream.url))
        ended = _limits(Wire(gateway, wire.upstream, wire.http), 0.1 * scale)
        gateway.stop()
        if ended == [ENDED] * 2:
            break
    assert ended == [ENDED] * 2


def _limits(wire: Wire, pause: float) -> list[dict[str, str]]:
    """Which limit ends the streams of some models, at both doors."""
    ping = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
    delta = rs("function_call_arguments.delta", item_id="fc_1", output_index=0, delta="1")
    second = rs("output_item.added", output_index=1, item=call_item("b", "f", "", "fc_2"))
    opening, behind, *closing = (
        rs("function_call_arguments.delta", item_id=f"fc_{index + 1}", output_index=index, delta=delta)
        for index, delta in ((1, '{"x":"'), (1, "1"), (1, '"}'), (0, "1}"))
    )
    done = rs("function_call_arguments.done", item_id="fc_1", arguments="")
    replies = {
        "busy": Reply([_half_a_call(), *[Pause(pause), delta] * 20, done, completed()]),
        "busy behind a call": Reply(
            [_half_a_call() + second + opening, *[Pause(pause), behind] * 20, *closing, completed()]
        ),
        "silent": Reply([created() + text("Hi"), Pause(40 * pause)]),
        "pinging": Reply([created(), *[Pause(pause), ping] * 40]),
        "pinging after text": Reply([created() + text("Hi"), *[Pause(pause), ping] * 40]),
    }
    models = {name: wire.script(reply) for name, reply in replies.items()}

    def limit(name: str, place: int) -> str:
        """The limit that ended the stream, if one did."""
        with httpx.Client(timeout=120, trust_env=False) as http:
            error = Wire(wire.gateway, wire.upstream, http).doors[place].stream(models[name]).error
        return re.sub(r".*timeouts\.(\w+).*", r"\1", error["message"]) if error else ""

    with ThreadPoolExecutor(10) as pool:
        streams = [(name, place) for name in models for place in (0, 1)]
        ended = dict(zip(streams, pool.map(limit, *zip(*streams, strict=True)), strict=True))
    return [{name: ended[name, place] for name in models} for place in (0, 1)]


test_museum = theme.test()
