"""Connections that never become a request, stop in the middle, or are too many; and what a client sees of their end."""

import asyncio
import contextlib
import itertools
import json
import select
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect

from tests.support.frames import completed, created, stream, text
from tests.support.gateway import Gate, Gateway, backend, chat_body, response_body
from tests.support.upstream import Reply, Upstream
from toolwire.config.settings import Server
from toolwire.gateway.connections import (
    HEALTH_CONNECTIONS,
    LINGER,
    LINGER_RATE,
    LINGER_SILENT,
    Connections,
    HttpConnection,
)
from toolwire.gateway.memory_budget import MemoryBudget

PATIENCE = 90
"""Seconds to wait for what must come."""
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)
LIMITS = {"header_timeout": 600, "body_timeout": 600, "idle_timeout": 600, "websocket_idle": 600, "max_body": "100KB"}

Limited = Callable[..., Gateway]


@pytest.fixture(scope="module")
def limited(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    """A gateway that waits for a client without end but for the limits that are given."""
    started: dict[tuple[tuple[str, float], ...], Gateway] = {}

    def limit(**limits: float) -> Gateway:
        key = tuple(limits.items())
        if key not in started:
            lines = (f"{name} = {json.dumps(value)}\n" for name, value in {**LIMITS, **limits}.items())
            config = f"[server]\n{''.join(lines)}{backend(upstream.url)}"
            started[key] = Gateway(tmp_path_factory.mktemp("limited"), config)
        return started[key]

    yield limit
    for gateway in started.values():
        gateway.stop()


@pytest.fixture(scope="module")
def lasting(limited: Limited) -> Gateway:
    return limited()


@pytest.fixture(scope="module")
def hasty(limited: Limited) -> Gateway:
    return limited(header_timeout=0.3)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with a key that no test has."""
    keys = '[[keys]]\nname = "a"\nkey = "k"\n'
    gateway = Gateway(tmp_path_factory.mktemp("locked"), f'[server]\nidle_timeout = 0.3\nmax_body = "100KB"\n{keys}')
    yield gateway
    gateway.stop()


class Wire:
    """A client that writes bytes as it likes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    @property
    def is_answered(self) -> bool:
        """Whether something can be read."""
        return bool(select.select([self._connection], [], [], 0.01)[0])

    def drip(self, data: bytes) -> None:
        """Send one byte after the other, again and again, until the gateway answers."""
        for byte in itertools.cycle(data):
            if self.is_answered:
                return
            self._connection.sendall(bytes([byte]))

    def wait(self) -> None:
        """Wait until something can be read."""
        assert select.select([self._connection], [], [], PATIENCE)[0]

    def answer(self) -> tuple[int, bytes]:
        """One answer that says how long it is."""
        received = b""
        while b"\r\n\r\n" not in received:
            piece = self._connection.recv(65536)
            assert piece, received
            received += piece
        head, _, body = received.partition(b"\r\n\r\n")
        [length] = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        while len(body) < length:
            body += self._connection.recv(65536)
        return int(head.split()[1]), body

    def peek(self) -> bytes:
        """What has come, which stays."""
        return self._connection.recv(65536, socket.MSG_PEEK)

    def rest(self) -> bytes:
        """All that comes until the gateway closes the connection, which it must do in an orderly way."""
        received = b""
        while piece := self._connection.recv(65536):
            received += piece
        return received


@contextmanager
def opened(gateway: Gateway) -> Iterator[Wire]:
    address = ("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    with socket.create_connection(address, PATIENCE) as connection:
        yield Wire(connection)


@contextmanager
def opened_and_used(gateway: Gateway) -> Iterator[Wire]:
    """A connection with one answer. It is made again if the gateway did not wait for its first request."""
    for _ in range(100):
        with opened(gateway) as wire:
            wire.send(HEALTH + b"\r\n")
            wire.wait()
            if wire.peek().startswith(b"HTTP/1.1 200"):
                wire.answer()
                yield wire
                return
    raise AssertionError("no request was answered")


def error_of(body: bytes) -> str:
    return json.loads(body)["error"]["code"]


# Headers


def test_a_connection_that_sends_nothing_is_closed(hasty):
    with opened(hasty) as wire:
        assert wire.rest() == b""


@pytest.mark.parametrize("open_", [opened, opened_and_used], ids=["first", "second"])
def test_headers_that_drip_in_are_not_waited_for(hasty, open_):
    with open_(hasty) as wire:
        wire.send(HEALTH + b"X-Long: ")
        wire.drip(b"x")
        status, body = wire.answer()
        assert (status, error_of(body)) == (408, "request_timeout")
        assert wire.rest() == b""


def test_line_ends_between_two_requests_do_not_hold_a_connection(hasty):
    with opened_and_used(hasty) as wire:
        wire.send(b"\r\n")
        wire.rest()


def test_headers_behind_a_whole_request_are_not_waited_for_either(hasty):
    for _ in range(100):
        with opened(hasty) as wire:
            wire.send(HEALTH + b"\r\n" + HEALTH)
            wire.wait()
            if wire.peek().startswith(b"HTTP/1.1 200"):  # or it was not sent in time
                assert wire.answer()[0] == 200
                wire.drip(b"x")
                assert wire.answer()[0] == 408
                return
    raise AssertionError("no request was answered")


def test_headers_behind_a_request_do_not_spoil_its_answer(hasty, upstream):
    body = json.dumps(chat_body("up/behind", stream=True)).encode()
    whole = CHAT + b"Content-Length: %d\r\n\r\n" % len(body) + body + HEALTH
    gate = Gate(stream(created(), text("a")), after=(stream(text("b"), completed()),))
    upstream.replies["behind"] = Reply(gate)
    for _ in range(100):
        with opened(hasty) as wire:
            wire.send(whole)
            wire.wait()
            if not wire.peek():  # it was not sent in time
                continue
            with opened(hasty) as later:
                assert later.rest() == b""
            gate.open()
            before, _, after = wire.rest().partition(b"\r\n0\r\n\r\n")
            assert (before.count(b"HTTP/1.1"), b"data: [DONE]" in before) == (1, True)
            assert after == b"" or after.startswith(b"HTTP/1.1 408 ")
            return
    raise AssertionError("no request was answered")


def test_an_idle_connection_is_closed(limited):
    with opened(limited(idle_timeout=0.2)) as wire:
        wire.send(HEALTH + b"\r\n")
        assert wire.answer()[0] == 200
        assert wire.rest() == b""


def test_headers_without_end_are_refused(lasting):
    with opened(lasting) as wire:
        wire.send(HEALTH + b"X-Long: " + b"x" * 300_000)
        status, body = wire.answer()
        assert (status, error_of(body)) == (431, "headers_too_large")


def test_many_short_headers_are_refused_too(lasting):
    with opened(lasting) as wire:
        wire.send(HEALTH + b"a: b\r\n" * 60_000)
        assert wire.answer()[0] == 431


def test_large_headers_that_come_at_once_are_read(lasting):
    with opened(lasting) as wire:
        wire.send(HEALTH + b"X-Long: " + b"x" * 30_000 + b"\r\n\r\n")
        assert wire.answer()[0] == 200


# Bodies


@pytest.mark.parametrize("head", [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n64\r\n{"])
def test_a_body_that_stops_is_not_waited_for(limited, head):
    with opened(limited(body_timeout=0.2)) as wire:
        wire.send(CHAT + head)
        status, body = wire.answer()
        assert (status, error_of(body)) == (408, "request_timeout")
        assert wire.rest() == b""


def test_a_client_of_messages_is_told_in_its_own_words(limited):
    with opened(limited(body_timeout=0.2)) as wire:
        wire.send(CHAT.replace(b"chat/completions", b"messages") + b"Content-Length: 100\r\n\r\n{")
        status, body = wire.answer()
        assert (status, json.loads(body)["type"]) == (408, "error")


def test_a_connection_can_be_used_again_when_an_unwanted_body_has_come(tmp_path, start):
    gateway = start('[[keys]]\nname = "a"\nkey = "k"\n')
    with opened(gateway) as wire:
        wire.send(CHAT + b"Content-Length: 5\r\n\r\n{")
        assert wire.answer()[0] == 401
        wire.send(b"xxxx")
        wire.send(HEALTH + b"\r\n")
        assert wire.answer()[0] == 200


def test_a_connection_is_idle_when_an_unwanted_body_has_come(locked):
    with opened(locked) as wire:
        wire.send(CHAT + b"Content-Length: 5\r\n\r\n{")
        assert wire.answer()[0] == 401
        wire.send(b"xxxx")
        assert wire.rest() == b""


@pytest.mark.parametrize("closing", [b"", b"Connection: close\r\n"], ids=["kept", "closing"])
def test_a_client_that_is_still_sending_sees_why_it_is_refused(lasting, closing):
    with opened(lasting) as wire:
        wire.send(CHAT + closing + b"Content-Length: 20000000\r\n\r\n")
        wire.wait()
        for _ in range(100):
            wire.send(b"x" * 50_000)
        status, body = wire.answer()
        assert (status, error_of(body)) == (413, "request_too_large")


def test_what_is_no_http_is_refused_in_a_way_that_is_seen(lasting):
    with opened(lasting) as wire:
        wire.send(b"HELO\r\n\r\n")
        wire.wait()
        for _ in range(20):
            wire.send(b"x" * 50_000)
        status, body = wire.answer()
        assert (status, error_of(body)) == (400, "invalid_request")


@pytest.mark.parametrize("flood", [b"X-Trailer: " + b"x" * 400_000, b"a: b\r\n" * 70_000], ids=["one", "many"])
def test_trailers_without_end_are_refused(lasting, flood):
    with opened(lasting) as wire:
        wire.send(CHAT + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n")
        wire.send(flood)
        assert wire.answer()[0] == 431


@pytest.mark.parametrize("gateway_", ["locked", "lasting"])
@pytest.mark.parametrize(
    "flood", [b"1;" + b"e" * 1_000_000 + b"\r\n", b"not a size\r\n"], ids=["extension", "no chunk"]
)
def test_a_chunk_that_is_refused_gets_one_answer(request, gateway_, flood):
    """Also where the request has its answer already."""
    with opened(request.getfixturevalue(gateway_)) as wire:
        wire.send(CHAT + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
        if gateway_ == "locked":
            wire.wait()
        wire.send(flood)
        assert wire.rest().count(b"HTTP/1.1 ") == 1


def test_trailers_are_no_headers(locked):
    body = b"1\r\n{\r\n0\r\nAuthorization: Bearer k\r\n\r\n"
    with opened(locked) as wire:
        wire.send(CHAT + b"Transfer-Encoding: chunked\r\n\r\n" + body)
        assert wire.answer()[0] == 401


# Where a request begins and ends

H2C = b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"


@pytest.mark.parametrize(
    "form", [b"Content-Length: %d\r\n\r\n%b", b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"]
)
def test_a_request_that_offers_http_2_is_answered_with_its_body(lasting, form):
    """The HTTP client of Java offers it with every first request."""
    body = json.dumps(chat_body("demo")).encode()
    with opened(lasting) as wire:
        wire.send(CHAT + b"Connection: Upgrade, HTTP2-Settings\r\n" + H2C + form % (len(body), body))
        assert wire.answer()[0] == 200
        wire.send(HEALTH + b"Connection: Upgrade\r\n" + H2C + b"\r\n" + HEALTH + b"Connection: close\r\n\r\n")
        assert wire.rest().count(b"HTTP/1.1 200 ") == 2


@pytest.mark.parametrize("closing", [b"", b"close, "], ids=["kept", "closing"])
def test_the_body_of_a_request_that_offers_http_2_is_no_request(lasting, closing):
    smuggled = HEALTH + b"\r\n"
    with opened(lasting) as wire:
        wire.send(CHAT + b"Connection: %bUpgrade\r\n" % closing + H2C + b"Content-Length: %d\r\n\r\n" % len(smuggled))
        wire.send(smuggled)
        status, body = wire.answer()
        assert (status, error_of(body)) == (400, "invalid_json")
        if not closing:
            wire.send(HEALTH + b"Connection: close\r\n\r\n")
            assert wire.answer()[0] == 200
        assert wire.rest() == b""


@pytest.mark.parametrize("target", [b"localhost:443", b"http://localhost/v1/models", b"/v1/models"])
def test_no_tunnel_is_opened(lasting, target):
    with opened(lasting) as wire:
        wire.send(b"CONNECT " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n" + HEALTH + b"\r\n")
        said = wire.rest()
    assert said.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 405 "))
    assert said.count(b"HTTP/1.1") == 1


def test_an_absolute_target_needs_no_path(lasting):
    with opened(lasting) as wire:
        wire.send(b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wire.answer()[0] == 200


@pytest.mark.parametrize("version", [b"0.9", b"1.0", b"2.0"])
def test_only_a_connection_of_http_1_1_stays_open(lasting, version):
    with opened(lasting) as wire:
        wire.send(HEALTH.replace(b"1.1", version) + b"Connection: keep-alive\r\n\r\n")
        assert wire.answer()[0] == 200
        assert wire.rest() == b""


def test_a_body_that_was_not_asked_for_ends_the_connection(locked):
    """The client may send it or leave it out, so what comes next may be a body or a request."""
    with opened(locked) as wire:
        wire.send(CHAT + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n")
        wire.wait()
        wire.send(HEALTH + b"\r\n")
        said = wire.rest()
    assert said.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nconnection: close\r\n" in said
    assert said.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(("version", "count"), [(b"1.1", 1), (b"1.0", 0)])
def test_only_a_client_of_http_1_1_is_told_to_continue(lasting, version, count):
    body = json.dumps(chat_body("demo")).encode()
    head = CHAT.replace(b"1.1", version) + b"Expect: 100-Continue\r\nConnection: close\r\n"
    with opened(lasting) as wire:
        wire.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        said = wire.rest()
    assert said.count(b"HTTP/1.1 100 Continue\r\n") == count
    assert said.count(b"HTTP/1.1 200 ") == 1


# How many


def test_connections_have_a_limit_and_room_again_when_one_ends(http, start):
    gateway = start("[server]\nmax_connections = 3\nheader_timeout = 60\n")
    with opened(gateway) as first, opened(gateway) as second, opened(gateway) as third:
        for wire in (first, second, third):
            wire.send(HEALTH + b"\r\n")
            assert wire.answer()[0] == 200
        with opened(gateway) as fourth:
            fourth.send(CHAT + b"Content-Length: 2\r\n\r\n{}")
            status, body = fourth.answer()
            assert (status, error_of(body)) == (503, "too_many_connections")
            assert fourth.rest() == b""
        first.send(HEALTH + b"\r\n")
        assert first.answer()[0] == 200
        second.send(HEALTH + b"Connection: close\r\n\r\n")
        assert second.answer()[0] == 200
        second.rest()
        with opened(gateway) as fifth:
            fifth.send(HEALTH + b"\r\n")
            assert fifth.answer()[0] == 200


@pytest.fixture(scope="module")
def full(limited: Limited) -> Iterator[Gateway]:
    """A gateway that has as many connections as it may."""
    gateway = limited(max_connections=3)
    with opened(gateway) as first, opened(gateway) as second, opened(gateway) as third:
        for wire in (first, second, third):
            wire.send(HEALTH + b"\r\n")
            assert wire.answer()[0] == 200
        yield gateway


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_health_is_told_however_many_connections_there_are(full, path):
    with opened(full) as wire:
        wire.send(HEALTH.replace(b"/healthz", path.encode()) + b"\r\n")
        assert wire.answer()[0] == 200
        assert wire.rest() == b"", "there is room for one request only"


def test_silent_connections_do_not_take_the_room_of_health(full):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(opened(full)) for _ in range(HEALTH_CONNECTIONS + 5)]
        with opened(full) as wire:
            wire.send(HEALTH + b"\r\n")
            assert wire.answer()[0] == 200
        assert [each.answer()[0] for each in silent[:5]] == [503] * 5
        assert not silent[-1].is_answered


@pytest.mark.parametrize("path", ["/v1/responses", "/healthz"])
def test_no_socket_is_opened_beyond_the_limit(full, path):
    with opened(full) as wire:
        wire.send(HEALTH.replace(b"/healthz", path.encode()) + UPGRADE + b"\r\n")
        status, body = wire.answer()
        assert (status, error_of(body)) == (503, "too_many_connections")
        assert wire.rest() == b""


# Sockets


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/v1/responses", "/nowhere"])
def test_an_upgrade_by_another_method_is_a_405(lasting, method, path):
    with opened(lasting) as wire:
        wire.send(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + UPGRADE + b"\r\n")
        said = wire.rest()
    assert said.startswith(b"HTTP/1.1 405 ")
    assert b"\r\nallow: GET\r\n" in said
    assert said.count(b"HTTP/1.1") == 1
    assert error_of(said.partition(b"\r\n\r\n")[2]) == "method_not_allowed"


UNREADABLE = {
    "a long header": (b"X-Long: " + b"x" * 9000 + b"\r\n\r\n", 431),
    "many headers": (b"".join(b"X-%d: y\r\n" % number for number in range(130)) + b"\r\n", 431),
    "a body": (b"Content-Length: 3\r\n\r\nabc", 400),
    "chunks": (b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_an_upgrade_that_cannot_be_read_is_answered(lasting, what):
    rest, status = UNREADABLE[what]
    with opened(lasting) as wire:
        wire.send(HEALTH.replace(b"/healthz", b"/v1/responses") + UPGRADE + rest)
        said = wire.rest()
    assert said.startswith(b"HTTP/1.1 %d " % status)
    assert said.count(b"HTTP/1.1") == 1


def test_an_upgrade_of_http_1_0_is_no_handshake(lasting):
    with opened(lasting) as wire:
        wire.send(HEALTH.replace(b"/healthz", b"/v1/responses").replace(b"1.1", b"1.0") + UPGRADE + b"\r\n")
        assert wire.rest().startswith(b"HTTP/1.1 400 ")


def test_an_upgrade_may_say_so_in_one_of_several_headers(lasting):
    with opened(lasting) as wire:
        wire.send(HEALTH.replace(b"/healthz", b"/v1/responses") + UPGRADE + b"Connection: keep-alive\r\n\r\n")
        wire.wait()
        assert wire.peek().startswith(b"HTTP/1.1 101 ")


def test_a_client_that_is_still_sending_a_message_sees_why_it_is_refused(lasting):
    with opened(lasting) as wire:
        wire.send(HEALTH.replace(b"/healthz", b"/v1/responses") + UPGRADE + b"\r\n")
        wire.wait()
        message = Frame(Opcode.TEXT, bytes(5_000_000)).serialize(mask=True)
        for start in range(0, len(message), 50_000):
            wire.send(message[start : start + 50_000])
            if not start:
                wire.wait()
        assert b"\x88" in (said := wire.rest())
        assert (1009).to_bytes(2, "big") in said


@contextmanager
def socket_of(gateway: Gateway) -> Iterator[ClientConnection]:
    url = gateway.url.replace("http", "ws", 1) + "/v1/responses"
    with connect(url, proxy=None, open_timeout=PATIENCE, close_timeout=0.2) as connection:
        yield connection


def test_a_socket_that_asks_for_nothing_is_closed(limited):
    with socket_of(limited(websocket_idle=0.3)) as connection:
        said = json.loads(connection.recv(PATIENCE))
        assert said["error"]["code"] == "websocket_connection_limit_reached"
        assert "server.websocket_idle" in said["error"]["message"]
        with pytest.raises(ConnectionClosed):
            connection.recv(PATIENCE)


def test_a_message_that_stops_in_the_middle_is_not_waited_for(limited):
    with socket_of(limited(body_timeout=0.2)) as connection:
        whole = Frame(Opcode.TEXT, json.dumps({"type": "response.create"}).encode()).serialize(mask=True)
        connection.socket.sendall(whole[:-3])
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(PATIENCE)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


def read_turn(connection: ClientConnection) -> list[str]:
    """The types of the events of a turn, to its end: a client that closes before waits for what it does not read."""
    types: list[str] = []
    while types[-1:] != ["response.completed"]:
        types.append(json.loads(connection.recv(PATIENCE))["type"])
    return types


def begin_message(connection: ClientConnection, size: int, form: str) -> None:
    """Send so many bytes of a message that is not over."""
    if form == "fragments":
        pieces = [Frame(Opcode.TEXT if at == 0 else Opcode.CONT, b"x" * 1000, fin=False) for at in range(size // 1000)]
        connection.socket.sendall(b"".join(piece.serialize(mask=True) for piece in pieces))
    else:
        connection.socket.sendall(Frame(Opcode.TEXT, b"x" * (size + 1000)).serialize(mask=True)[:-1000])


@pytest.mark.parametrize("form", ["one frame", "fragments"])
def test_what_has_come_of_a_message_counts_as_in_flight(http: httpx.Client, start, form: str):
    gateway = start('[server]\nmax_body = "200KB"\nmax_in_flight = "300KB"\n')

    def status() -> int:
        body = response_body("demo", "x" * 180_000, stream=True, store=False)
        return http.post(f"{gateway.base_url}/responses", json=body).status_code

    with socket_of(gateway) as connection:
        begin_message(connection, 180_000, form)
        gateway.wait_until(lambda: status() == 503)
        with socket_of(gateway) as other:
            begin_message(other, 180_000, form)
            with pytest.raises(ConnectionClosed) as closed:
                other.recv(PATIENCE)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        assert "server.max_in_flight" in closed.value.rcvd.reason
        assert status() == 503
    gateway.wait_until(lambda: status() == 200)
    assert status() == 200


def test_a_message_in_fragments_is_read_whole(gateway: Gateway):
    asked = {"type": "response.create", **response_body("demo", "é" * 100)}
    message = json.dumps(asked, ensure_ascii=False).encode()
    places = [message.index("é".encode()) + 1, message.index("é".encode()) + 1, len(message) - 1]
    with socket_of(gateway) as connection:
        pieces = [message[at:end] for at, end in zip([0, *places], [*places, len(message)], strict=True)]
        for at, piece in enumerate(pieces):
            frame = Frame(Opcode.CONT if at else Opcode.TEXT, piece, fin=at == len(pieces) - 1)
            connection.socket.sendall(frame.serialize(mask=True) + Frame(Opcode.PING, b"p").serialize(mask=True))
        assert read_turn(connection)[0] == "response.created"


@pytest.mark.parametrize("size", [0, 200_000, 3_000_000])
@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\x80", b"\xc3"], ids=["no character", "a surrogate", "a cut one"])
def test_a_text_message_that_is_no_utf_8_closes_the_connection_with_1007(gateway: Gateway, size: int, bad: bytes):
    with socket_of(gateway) as connection:
        text = b'{"type":"' + "é".encode() * (size // 2)
        fragments = Frame(Opcode.TEXT, text, fin=False), Frame(Opcode.CONT, bad)
        connection.socket.sendall(b"".join(frame.serialize(mask=True) for frame in fragments))
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(PATIENCE)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1007


def test_a_binary_message_that_is_no_utf_8_is_an_error_and_the_next_one_is_read(gateway: Gateway):
    with socket_of(gateway) as connection:
        connection.socket.sendall(Frame(Opcode.BINARY, b'{"type":"\xff"}').serialize(mask=True))
        assert "UTF-8" in json.loads(connection.recv(PATIENCE))["error"]["message"]
        connection.send(json.dumps({"type": "response.create", **response_body("demo")}))
        assert read_turn(connection)[0] == "response.created"


def test_a_long_turn_is_no_idle_connection(limited, upstream):
    """A request that has been read may take as long as its model does."""
    gate = Gate(stream(created(), text("a")), after=(stream(text("b"), completed()),))
    upstream.replies["long"] = Reply(gate)
    gateway = limited(idle_timeout=0.2)
    body = json.dumps(chat_body("up/long", stream=True)).encode()
    with opened(gateway) as wire:
        wire.send(CHAT + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        wire.wait()
        with opened(gateway) as later:
            later.send(HEALTH + b"\r\n")
            assert later.answer()[0] == 200
            assert later.rest() == b"", "it was idle for as long as a connection may be"
        gate.open()
        assert b"data: [DONE]" in wire.rest()


# Times of the client, by a clock of our own


class Served:
    """A connection to an application that answers at once, or with what it read. Time passes when the test says so."""

    reads = True
    """Whether the client reads what it is sent."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Server) -> None:
        self._loop = loop
        self._limits = limits
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.now = loop.time()
        loop.time = lambda: self.now
        self.received = b""

    async def open(self, app: Any) -> None:
        self._connections = Connections(app, self._limits, MemoryBudget(1 << 20))
        await self._loop.connect_accepted_socket(lambda: HttpConnection(self._connections), self._theirs)

    async def send(self, data: bytes, after: float = 0.0) -> None:
        """Send after so many seconds, and let the connection read it and look at the clock."""
        self.now += after
        await self._loop.sock_sendall(self._ours, data)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        self._connections.check(self.now)
        for _ in range(20):
            await asyncio.sleep(0)
        with suppress(BlockingIOError):
            self.received += self._ours.recv(65536) if self.reads else b""

    async def wait(self, seconds: float) -> None:
        self.now += seconds
        await self.settle()

    def fill(self, data: bytes) -> int:
        """Send the same data until no more of it can be sent; returns how often it was sent whole."""
        count = 0
        with suppress(BlockingIOError):
            while self._ours.send(data) == len(data):
                count += 1
        return count

    @property
    def is_open(self) -> bool:
        return bool(self._connections.open)

    def close(self) -> None:
        self._ours.close()


def serve(main: Callable[[Served], Coroutine[None, None, None]], limits: Server) -> None:
    loop = asyncio.new_event_loop()
    served = Served(loop, limits)
    try:
        loop.run_until_complete(main(served))
    finally:
        served.close()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def test_a_slow_body_whose_bytes_keep_coming_is_read():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    async def main(served: Served) -> None:
        await served.open(app)
        await served.send(CHAT + b"Content-Length: 9\r\n\r\n")
        for byte in b"unhurried":
            assert served.received == b""
            await served.send(bytes([byte]), after=0.9)
        assert served.received.startswith(b"HTTP/1.1 200")
        assert served.received.endswith(b"unhurried")

    serve(main, Server(body_timeout=1))


class Ip6Transport(asyncio.Transport):
    """The end of a connection over IPv6, whose addresses have four parts."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("::1", 8787, 0, 0), "peername": ("::1", 50_000, 0, 0)})

    def is_closing(self) -> bool:
        return False


def test_an_address_of_ip_6_is_a_host_and_a_port():
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)
        await receive()

    async def main() -> None:
        connection = HttpConnection(Connections(app, Server(), MemoryBudget(0)))
        connection.connection_made(Ip6Transport())
        connection.data_received(HEALTH + b"\r\n")
        await asyncio.sleep(0)
        connection.connection_lost(None)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert [(scope["server"], scope["client"]) for scope in scopes] == [(("::1", 8787), ("::1", 50_000))]


@pytest.mark.parametrize("header", [(b"x-a: b\r\nx-c", b"d"), (b"x-a", b"b\r\nx-c: d"), (b"x-a", b"\x00")])
def test_no_header_of_an_answer_becomes_two(header):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [header]})

    async def main(served: Served) -> None:
        await served.open(app)
        await served.send(HEALTH + b"\r\n")
        assert served.received.startswith(b"HTTP/1.1 500")
        assert b"x-c" not in served.received

    serve(main, Server())


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    """Answer without a look at the body."""
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def test_a_body_that_nobody_wants_does_not_hold_a_connection():
    async def main(served: Served) -> None:
        await served.open(refuse)
        await served.send(CHAT + b"Content-Length: 1000\r\n\r\n{")
        assert served.received.startswith(b"HTTP/1.1 401")
        await served.send(b"x", after=LINGER_SILENT - 0.1)
        await served.wait(LINGER_SILENT - 0.1)
        assert served.is_open
        await served.wait(0.2)
        assert not served.is_open

    serve(main, Server())


def test_an_unwanted_body_that_keeps_coming_does_not_hold_a_connection_for_long():
    async def main(served: Served) -> None:
        await served.open(refuse)
        await served.send(CHAT + b"Content-Length: 1000\r\n\r\n{")
        for _ in range(int(LINGER)):
            assert served.is_open
            await served.send(b"x", after=1)
        await served.wait(0.1)
        assert not served.is_open

    serve(main, Server())


@pytest.mark.parametrize("closing", [b"", b"Connection: close\r\n"], ids=["kept", "closing"])
def test_an_unwanted_body_is_read_for_longer_while_much_of_it_comes(closing):
    """A client that has sent it all sees the answer, also of a gateway that reads slowly."""
    second = b"x" * LINGER_RATE

    async def main(served: Served) -> None:
        await served.open(refuse)
        await served.send(CHAT + closing + b"Content-Length: 1000000000\r\n\r\n{")
        for _ in range(int(LINGER) + 4):
            assert served.is_open
            await served.send(second, after=1)
        await served.wait(1)
        assert not served.is_open, "four times as much as in a second is the largest body"

    serve(main, Server(max_body=4 * LINGER_RATE))


def test_the_next_request_may_come_when_an_unwanted_body_has_come():
    async def main(served: Served) -> None:
        await served.open(refuse)
        await served.send(CHAT + b"Content-Length: 5\r\n\r\n{")
        await served.send(b"xxxx", after=1)
        await served.send(HEALTH + b"\r\n", after=1)
        assert served.received.count(b"HTTP/1.1 401") == 2

    serve(main, Server())


@pytest.mark.parametrize("closing", [b"", b"Connection: close\r\n"], ids=["kept", "closing"])
def test_an_answer_that_nobody_takes_does_not_hold_a_connection(closing):
    """It is less than a transport keeps before it asks the application to wait."""
    size = 40_000

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % size)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * size})

    async def main(served: Served) -> None:
        served.reads = False
        await served.open(app)
        await served.send(HEALTH + closing + b"\r\n")
        await served.wait(6)  # and it is idle
        await served.wait(1)
        await served.wait(50)
        assert served.is_open
        await served.wait(20)
        assert not served.is_open

    serve(main, Server(idle_timeout=5, write_timeout=60))


def test_a_handshake_that_is_not_finished_does_not_hold_a_connection():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await receive()

    async def main(served: Served) -> None:
        await served.open(app)
        await served.send(HEALTH + UPGRADE + b"\r\n")
        await served.wait(9)
        assert (served.is_open, served.received) == (True, b"")
        await served.wait(2)
        assert served.received.startswith(b"HTTP/1.1 408 ")
        assert not served.is_open

    serve(main, Server(header_timeout=10))


def test_a_message_whose_bytes_keep_coming_is_read():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        message = await receive()
        await send({"type": "websocket.send", "text": f"read {bytes(message.get('bytes') or b'').decode()}"})
        await receive()

    async def main(served: Served) -> None:
        await served.open(app)
        await served.send(HEALTH + UPGRADE + b"\r\n")
        assert b" 101 " in served.received
        for byte in Frame(Opcode.TEXT, b"unhurried").serialize(mask=True):
            assert b"read" not in served.received
            await served.send(bytes([byte]), after=0.9)
        assert served.received.endswith(b"read unhurried")

    serve(main, Server(body_timeout=1))


def test_a_message_behind_the_handshake_waits_for_the_application():
    """It is read no further than that, however much follows."""

    over = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await over.wait()

    async def main(served: Served) -> None:
        await served.open(app)
        message = Frame(Opcode.TEXT, b"x" * 1000).serialize(mask=True)
        await served.send(HEALTH + UPGRADE + b"\r\n" + message)
        served.fill(message)
        await served.settle()
        assert served.fill(message) == 0
        over.set()
        await served.settle()

    serve(main, Server())


def test_a_client_that_does_not_read_gets_the_answer_to_the_latest_ping():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "x" * 300_000})
        await receive()

    async def main(served: Served) -> None:
        served.reads = False
        await served.open(app)
        await served.send(HEALTH + UPGRADE + b"\r\n")
        await served.send(b"".join(Frame(Opcode.PING, data).serialize(mask=True) for data in (b"first", b"latest")))
        served.reads = True
        for _ in range(1000):
            await served.settle()
        assert served.received.endswith(b"latest")

    serve(main, Server())


# What is hardly a request


def test_a_body_that_is_only_declared_takes_no_room_from_others(http: httpx.Client, start):
    gateway = start('[server]\nmax_body = "1MB"\nmax_in_flight = "1MB"\n')
    with opened(gateway) as wire:
        wire.send(CHAT + b"Content-Length: 1000000\r\n\r\n{")
        assert http.post(f"{gateway.base_url}/chat/completions", json=chat_body("demo")).status_code == 200


@pytest.mark.parametrize(("count", "are_answered"), [(20, True), (500, False)])
def test_only_some_requests_may_wait_for_the_answers_before_them(gateway: Gateway, count: int, are_answered: bool):
    with opened(gateway) as wire:
        wire.send((HEALTH + b"\r\n") * (count - 1) + HEALTH + b"Connection: close\r\n\r\n")
        assert (wire.rest().count(b"HTTP/1.1 200") == count) is are_answered


def test_messages_of_a_socket_are_not_compressed(gateway: Gateway):
    with socket_of(gateway) as connection:
        assert connection.protocol.extensions == []


def test_a_client_that_reads_no_pongs_gets_the_latest(gateway: Gateway):
    """Beyond what a connection takes they are not kept."""
    count = 100_000
    with socket_of(gateway) as connection:
        head = bytes([0x80 | Opcode.PING, 0x80 | 125]) + bytes(4)  # a mask that changes nothing
        pings = b"".join(b"%b%0125d" % (head, number) for number in range(count))
        with socket.socket(fileno=connection.socket.detach()) as wire:
            wire.settimeout(PATIENCE)
            for start in range(0, len(pings), 1 << 20):
                wire.sendall(pings[start : start + (1 << 20)])
            received = b""
            while b"%0125d" % (count - 1) not in received:
                piece = wire.recv(1 << 20)
                assert piece
                received += piece
    assert received.count(b"\x8a\x7d") < count
