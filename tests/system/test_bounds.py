"""What the gateway holds has a bound, and a clear answer beyond it."""

import json
import socket
import threading
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest
from websockets.frames import Frame, Opcode

from tests.support.frames import completed, created, stream, text
from tests.support.gateway import Gate, Gateway, backend, chat_body
from tests.support.upstream import Hold, Reply

PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
LIMIT = '[server]\nmax_reply = "300KB"\n'


def asked(dialect: str, model: str, content: str = "Go.", **fields: object) -> dict[str, object]:
    field = "input" if dialect == "responses" else "messages"
    return {"model": model, "max_tokens": 9, field: [{"role": "user", "content": content}], **fields}


@pytest.mark.parametrize("dialect", PATHS)
def test_a_body_that_is_no_utf_8_is_a_400(http: httpx.Client, gateway, dialect):
    body = json.dumps(asked(dialect, "demo", "BAD")).encode().replace(b"BAD", b"\xff")
    response = http.post(gateway.base_url + PATHS[dialect], content=body)
    assert response.status_code == 400
    assert "UTF-8" in response.json()["error"]["message"]


@pytest.mark.parametrize(("dialect", "status"), [("chat", 503), ("responses", 503), ("messages", 529)])
def test_a_gateway_that_is_full_says_so(http, start, upstream, dialect, status):
    upstream.replies["held"] = Reply([stream(created(), text("hi")), Hold()])
    gateway = start('[server]\nmax_body = "200KB"\nmax_in_flight = "300KB"\n' + backend(upstream.url))
    begun = threading.Event()

    def hold() -> None:
        with httpx.stream("POST", gateway.base_url + PATHS["chat"], json=large, timeout=120) as response:
            next(response.iter_bytes())
            begun.set()
            release.wait(60)

    release = threading.Event()
    large = asked("chat", "up/held", "x" * 180_000, stream=True)
    holding = threading.Thread(target=hold)
    holding.start()
    assert begun.wait(60)
    refused = http.post(gateway.base_url + PATHS[dialect], json=asked(dialect, "demo", "x" * 180_000))
    assert (refused.status_code, "retry-after" in refused.headers) == (status, True)
    error = refused.json()["error"]
    assert "server.max_in_flight" in error["message"]
    assert error["type"] == ("overloaded_error" if dialect == "messages" else "server_error")
    assert http.post(gateway.base_url + PATHS[dialect], json=asked(dialect, "demo")).status_code == 200
    release.set()
    holding.join()
    gateway.wait_for_turns(3)
    again = http.post(gateway.base_url + PATHS[dialect], json=asked(dialect, "demo", "x" * 180_000, stream=True))
    assert again.status_code == 200


@pytest.mark.parametrize("dialect", PATHS)
def test_a_collected_reply_has_a_bound(http, start, upstream, dialect):
    upstream.replies["long"] = Reply([stream(created(), *[text("x" * 10_000)] * 50, completed())])
    gateway = start(LIMIT + backend(upstream.url))
    response = http.post(gateway.base_url + PATHS[dialect], json=asked(dialect, "up/long"))
    assert response.status_code == 502
    assert "server.max_reply" in response.json()["error"]["message"]
    assert gateway.wait_for_turns(1)[0]["error"] == "reply_too_large"


def test_streamed_text_has_no_bound(http, start, upstream):
    upstream.replies["long"] = Reply([stream(created(), *[text("x" * 10_000)] * 50, completed())])
    gateway = start(LIMIT + backend(upstream.url))
    with http.stream("POST", gateway.base_url + PATHS["chat"], json=chat_body("up/long", stream=True)) as response:
        body = response.read()
    assert body.count(b"x" * 10_000) == 50
    assert b"reply_too_large" not in body


def sent_at_once(gateway: Gateway, count: int, body: bytes, gate: Gate) -> list[int]:
    """The statuses that so many clients see, who send their whole body before they read. The backend answers those it
    is asked by when all others have been answered."""
    statuses: list[int] = []
    refused = threading.Semaphore(0)

    def send() -> None:
        connection = HTTPConnection("127.0.0.1", int(gateway.url.rpartition(":")[2]), timeout=600)
        try:
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            statuses.append(connection.getresponse().status)
        except OSError:
            statuses.append(0)
        finally:
            connection.close()
            refused.release()

    clients = [threading.Thread(target=send) for _ in range(count)]
    for client in clients:
        client.start()
    for _ in range(count - 8):
        assert refused.acquire(timeout=600)
    gate.open()
    for client in clients:
        client.join()
    return statuses


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measures with Linux's /proc")
def test_fifty_large_bodies_take_less_than_a_gigabyte(start, upstream):
    gate = Gate(after=(stream(created(), text("Hi."), completed()),))
    upstream.replies["fifty"] = Reply(gate)
    gateway = start(backend(upstream.url))
    message = {"role": "user", "content": "x" * 100_000}
    body = json.dumps(chat_body("up/fifty", stream=True, messages=[message] * 310)).encode()
    statuses = sent_at_once(gateway, 50, body, gate)
    assert set(statuses) == {200, 503}
    assert statuses.count(200) <= 8
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    [peak] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
    assert peak < 1_000_000


def test_a_body_that_is_too_large_is_refused_and_not_reset(start):
    statuses = sent_at_once(start(), 8, b"x" * 150_000_000, Gate())
    assert statuses == [413] * 8


def chat_chunk(delta: object) -> bytes:
    chunk = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q":"'}}
FIND = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}]
ENDLESS = {
    "arguments": [{"tool_calls": [CALL]}, {"tool_calls": [{"index": 0, "function": {"arguments": "y" * 10_000}}]}],
    "a block": [{"content": "<use_tool>\n<name>find</name>\n<q>"}, {"content": "y" * 10_000}],
    "reasoning": [{"reasoning_content": "Hm. "}, {"reasoning_content": "y" * 10_000}],
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_is_held_of_a_stream_has_a_bound(http, start, upstream, what):
    first, more = map(chat_chunk, ENDLESS[what])
    upstream.replies["long"] = Reply([chat_chunk({"content": "Hi."}) + first, *[more] * 60, Hold()])
    gateway = start(LIMIT + backend(upstream.url).replace('"responses"', '"chat"'))
    with http.stream(
        "POST", gateway.base_url + PATHS["chat"], json=chat_body("up/long", stream=True, tools=FIND)
    ) as response:
        body = response.read()
    assert b"reply_too_large" in body
    assert upstream.gone.wait(60)


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ([b'{"id":"', *[b"x" * 50_000] * 10], "reply_too_large"),
        ([b": %b\n\n" % (b"x" * 1000) * 400], "reply_too_large"),
        ([b": x\n\n" * 55_000], "reply_without_content"),
    ],
    ids=["body", "long comments", "comments"],
)
def test_a_reply_that_says_nothing_has_a_bound(http, start, upstream, steps, code):
    kind = "application/json" if steps[0].startswith(b"{") else "text/event-stream"
    upstream.replies["long"] = Reply([*steps, Hold()], content_type=kind)
    gateway = start(LIMIT + backend(upstream.url))
    response = http.post(gateway.base_url + PATHS["chat"], json=chat_body("up/long"))
    assert (response.status_code, response.json()["error"]["code"]) == (502, code)


def many_calls(count: int, *, in_one_frame: bool) -> bytes:
    calls = [{**CALL, "index": i, "id": f"c{i}", "function": {"name": "find", "arguments": "{}"}} for i in range(count)]
    deltas = [{"tool_calls": calls}] if in_one_frame else [{"tool_calls": [call]} for call in calls]
    return b"".join(map(chat_chunk, deltas)) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("in_one_frame", [True, False], ids=["one frame", "a frame each"])
def test_a_turn_has_a_bound_of_calls(http, start, upstream, in_one_frame, streamed):
    upstream.replies["many"] = Reply([many_calls(12_500, in_one_frame=in_one_frame)])
    gateway = start(backend(upstream.url).replace('"responses"', '"chat"'))
    asked = chat_body("up/many", stream=streamed, tools=FIND)
    said = http.post(gateway.base_url + PATHS["chat"], json=asked).text
    assert "reply_too_large" in said
    assert "10000 calls" in said


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
def test_many_calls_in_one_frame_all_arrive(http, start, upstream, dialect, streamed):
    upstream.replies["many"] = Reply([many_calls(3000, in_one_frame=True)])
    gateway = start(backend(upstream.url).replace('"responses"', '"chat"'))
    tool = FIND[0]["function"]
    tools = {
        "chat": FIND,
        "responses": [{"type": "function", **tool}],
        "messages": [{"name": "find", "input_schema": {"type": "object"}}],
    }
    said = http.post(
        gateway.base_url + PATHS[dialect], json=asked(dialect, "up/many", stream=streamed, tools=tools[dialect])
    ).text
    places = [said.find(f'"c{number}"') for number in range(3000)]
    assert -1 not in places
    assert places == sorted(places)


UPGRADE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_a_client_that_never_reads_is_given_up(start, upstream, transport):
    upstream.replies["flood"] = Reply([stream(created()), *[stream(text("x" * 10_000)) * 10] * 1000])
    gateway = start("[server]\nwrite_timeout = 1.0\n" + backend(upstream.url))
    upstream.gone.clear()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(gateway.url.rpartition(":")[2])))
        if transport == "http":
            body = json.dumps(chat_body("up/flood", stream=True)).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(body)
            client.sendall(head + body)
        else:
            client.sendall(UPGRADE)
            assert b" 101 " in client.recv(1000)
            asked = {"type": "response.create", "model": "up/flood", "input": "Go.", "store": False}
            client.sendall(Frame(Opcode.TEXT, json.dumps(asked).encode()).serialize(mask=True))
        assert upstream.gone.wait(60)
        assert gateway.wait_for_turns(1)[0]["status"] == 499
