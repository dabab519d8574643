"""Transport: what breaks, stalls or comes in the wrong form still reaches the client as the truth."""

import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.museum.cases import Theme
from tests.museum.gate import Wire
from tests.museum.lines import answer
from tests.support.frames import call, call_item, completed, created, rs, stream, text
from tests.support.upstream import Cut, Pause, Reply
from toolwire.service.delivery import Pace

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
        streamed, plain = wire.stream(model), wire.plain(model)
        assert streamed.status == 200
        assert streamed.folded["finish"] is None
        assert streamed.error["type"] == "server_error"
        [begun] = streamed.message["tool_calls"]
        assert begun["function"]["arguments"] == '{"x":'
        assert plain.status_code == 502
        assert plain.json()["error"]["message"] == streamed.error["message"]


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
        model = wire.script(stream(created(), text("Half"), told))
        assert wire.plain(model).status_code == 503
        assert wire.stream(wire.script(stream(created(), told))).status == 503  # nothing was committed yet


@theme.row("err-bare-json")
def _(wire: Wire) -> None:
    bare = b'{"error":{"message":"boom"}}\n'
    model = wire.script(bare)
    for error, status in ((wire.stream(model).error, wire.stream(model).status), _plain_error(wire, model)):
        assert (error["message"], status) == ("boom", 502)
    midway = wire.stream(wire.script(Reply([created() + text("Half"), Pause(0.05), bare])))
    assert midway.message["content"] == "Half"
    assert midway.error["message"] == "boom"  # read out of a strictly framed stream


def _plain_error(wire: Wire, model: str) -> tuple[dict[str, str], int]:
    response = wire.plain(model)
    return response.json()["error"], response.status_code


@theme.row("err-disconnect-mid")
def _(wire: Wire) -> None:
    endless = [created(), *(step for number in range(200) for step in (text(f"{number} "), Pause(0.03)))]
    model = wire.script(Reply(endless))
    wire.upstream.gone.clear()
    with wire.http.stream("POST", wire.url, json=wire.body(model, stream=True)) as response:
        for _line, _ in zip(response.iter_lines(), range(6), strict=False):
            pass
    assert wire.upstream.gone.wait(4), "the upstream is still being read"
    wire.upstream.gone.clear()
    with pytest.raises(httpx.ReadTimeout):
        wire.http.post(wire.url, json=wire.body(model), timeout=0.3)  # a plain request, given up
    assert wire.upstream.gone.wait(4), "the upstream is still being read"


@theme.row("sse-dup-lifecycle")
def _(impatient: Wire) -> None:
    whole = stream(created("r2"), text("Bonjour!"), completed())
    shown = impatient.script(Reply([created("r1") + text("Bon"), Pause(0.1), Cut()]), Reply([whole]))
    streamed = impatient.stream(shown)
    assert streamed.message["content"] == "Bon"
    assert streamed.error["message"]
    assert len(impatient.asked(shown)) == 1
    not_shown = impatient.script(Reply([created("r1"), Pause(0.05), Cut()]), Reply([whole]))
    again = impatient.stream(not_shown)
    assert again.message["content"] == "Bonjour!"  # the folding insists on one role, one finish, one id
    assert again.notes == ["retried"]
    assert len(impatient.asked(not_shown)) == 2


@theme.row("sse-forced-stream")
def _(wire: Wire) -> None:
    usage = {"input_tokens": 1, "output_tokens": 2}
    told = stream(created(), text("Hm."), call("a", "f", '{"x":', "1}", place=1), completed(usage=usage))
    for content_type in ("text/event-stream", "text/event-stream; charset=utf-8", "application/octet-stream"):
        model = wire.script(Reply([told], content_type=content_type))
        plain = wire.plain(model)
        assert plain.headers["content-type"] == "application/json"
        [choice] = plain.json()["choices"]
        assert choice["message"]["content"] == "Hm."
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x":1}'}
        assert choice["finish_reason"] == "tool_calls"
        assert plain.json()["usage"]["total_tokens"] == 3
        assert "stream" not in wire.asked(model)[0].body


@theme.row("sse-nonstream-to-stream")
def _(wire: Wire) -> None:
    message = b'{"type":"message","id":"m","content":[{"type":"output_text","text":"Hm."}]}'
    called = b'{"type":"function_call","id":"fc_1","call_id":"a","name":"f","arguments":"{\\"x\\":1}"}'
    usage = b'"usage":{"input_tokens":1,"output_tokens":2}'
    body = b'{"id":"r","status":"completed","output":[%b,%b],%b}' % (message, called, usage)
    waiting = [b"\n", Pause(0.05), b"\n", Pause(0.05), body]  # some servers send blank lines while they work
    for steps in ([body], [body[:40], Pause(0.02), body[40:]], waiting):
        model = wire.script(Reply(steps, content_type="application/json"))
        folded = wire.stream(model, stream_options={"include_usage": True}).folded
        assert folded["message"]["content"] == "Hm."
        assert folded["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x":1}'}
        assert (folded["finish"], folded["usage"]["total_tokens"]) == ("tool_calls", 3)
    refused = wire.script(Reply([b'{"error":{"message":"No.","code":"nope"}}'], 422, "application/json"))
    assert (wire.stream(refused).status, wire.stream(refused).error["message"]) == (422, "No.")
    failed = b'{"id":"r","status":"failed","error":{"code":"server_error","message":"No."},"output":[]}'
    streamed = wire.stream(wire.script(Reply([failed], content_type="application/json")))
    assert (streamed.status, streamed.error["message"]) == (502, "No.")


@theme.row("cors-obsidian")
def _(wire: Wire) -> None:
    origin = {"origin": "app://obsidian.md"}
    asks = {"access-control-request-method": "POST", "access-control-request-private-network": "true"}
    wanted = "authorization,content-type,x-stainless-os"
    for path in ("/v1/chat/completions", "/obsidian-xml/v1/chat/completions", "/v1/models"):
        preflight = wire.http.options(
            wire.gateway.url + path, headers={**origin, **asks, "access-control-request-headers": wanted}
        )
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] in ("*", "app://obsidian.md")
        allowed = {word.strip() for word in preflight.headers["access-control-allow-headers"].lower().split(",")}
        assert allowed >= set(wanted.split(","))
        assert "POST" in preflight.headers["access-control-allow-methods"]
    model = wire.script(stream(created(), text("Hi"), completed()))
    answers = (
        wire.stream(model, headers=origin).headers,
        wire.plain(model, headers=origin).headers,
        wire.plain("nobody/knows", headers=origin).headers,
        wire.http.post(wire.url, content=b"{", headers=origin).headers,
    )
    for headers in answers:
        assert headers["access-control-allow-origin"] in ("*", "app://obsidian.md")
        exposed = headers["access-control-expose-headers"].lower()
        assert "x-codex-tool-call-count" in exposed
        assert "x-toolwire-notes" in exposed


@theme.row("ping-dropped")
def _(impatient: Wire) -> None:
    assert Pace().keepalive <= 15
    silent = impatient.script(Reply([created(), Pause(0.7), text("Hi"), completed()]))
    before_anything = impatient.stream(silent)
    assert before_anything.keepalives >= 2
    assert before_anything.message["content"] == "Hi"
    pinged = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
    pinging = impatient.script(Reply([created(), text("H"), *[Pause(0.1), pinged] * 6, text("i"), completed()]))
    assert impatient.stream(pinging).keepalives >= 1
    # A textual call is held back until the end of the turn: bytes come in all the time, and none go out.
    block = '<tool_call>{"name":"f","arguments":{"t":"0123456789"}}</tool_call>'
    pieces = [step for place in range(0, len(block), 6) for step in (text(block[place : place + 6]), Pause(0.08))]
    held = impatient.stream(impatient.script(Reply([created(), *pieces, completed()])), ("f",))
    assert held.keepalives >= 2
    assert held.message["tool_calls"][0]["function"]["name"] == "f"


@theme.row("idle-timer")
def _(impatient: Wire) -> None:
    """`idle` is 0.8 s here, `progress` 1.6 s."""
    ping = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
    delta = rs("function_call_arguments.delta", item_id="fc_1", output_index=0, delta="1")
    busy = [_half_a_call(), *[Pause(0.2), delta] * 10, rs("function_call_arguments.done", item_id="fc_1", arguments="")]
    replies = {
        "busy": Reply([*busy, completed()]),
        "silent": Reply([created() + text("Hi"), Pause(4)]),
        "pinging": Reply([created(), *[Pause(0.2), ping] * 20]),
        "pinging after text": Reply([created() + text("Hi"), *[Pause(0.2), ping] * 20]),
    }
    models = {name: impatient.script(reply) for name, reply in replies.items()}

    def limit(name: str) -> str:
        """The limit that ended the stream, if one did."""
        with httpx.Client(timeout=30, trust_env=False) as http:
            error = Wire(impatient.gateway, impatient.upstream, http).stream(models[name]).error
        return re.sub(r".*timeouts\.(\w+).*", r"\1", error["message"]) if error else ""

    with ThreadPoolExecutor(4) as pool:
        assert dict(zip(models, pool.map(limit, models), strict=True)) == {
            "busy": "",  # argument deltas are progress, however long they go on
            "silent": "idle",
            "pinging": "progress",  # bytes, so it is not idle; but not for ever
            "pinging after text": "progress",
        }


test_museum = theme.test()
