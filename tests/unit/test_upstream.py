"""The outside world, in its small parts."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiohttp
import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol
from yarl import URL

from toolwire.core.backend import Post
from toolwire.upstream import drain
from toolwire.upstream.alarm import PERIOD, Alarm, Ticker
from toolwire.upstream.credentials import ClientKey
from toolwire.upstream.http import HttpReply, HttpUpstream, proxy_for
from toolwire.upstream.reply import Broken

T = TypeVar("T")


def test_the_environments_proxy_is_honoured(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert proxy_for(URL("http://api.example/v1")) is None
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    assert proxy_for(URL("http://api.example/v1")) == "http://proxy.example:3128"
    assert proxy_for(URL("http://127.0.0.1:9000/v1")) is None


def waiting(scenario):
    """Run a scenario with an alarm of its own task."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        alarm = Alarm(Ticker(loop))
        await scenario(alarm, loop)
        alarm.close()

    asyncio.run(run())


def test_an_alarm_rings_once_its_time_has_come():
    async def scenario(alarm: Alarm, loop: asyncio.AbstractEventLoop) -> None:
        with alarm.at(loop.time() + 10):
            await asyncio.sleep(PERIOD * 2)
        with pytest.raises(TimeoutError), alarm.at(loop.time() + 0.01):
            await asyncio.sleep(5)
        with alarm.at(loop.time() + 0.01):
            await asyncio.sleep(0)
        await asyncio.sleep(PERIOD * 2)  # nobody waits: it must not ring

    waiting(scenario)


def test_a_cancellation_from_outside_is_not_taken_for_the_alarm():
    async def scenario(alarm: Alarm, loop: asyncio.AbstractEventLoop) -> None:
        async def wait() -> None:
            task = asyncio.current_task()
            assert task is not None
            with Alarm(Ticker(loop)).at(loop.time() + 10):
                await asyncio.sleep(5)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    waiting(scenario)


def test_a_ticker_rests_when_everybody_has_left():
    ticks: list[float] = []

    class Counting:
        def tick(self, now: float) -> None:
            ticks.append(now)

    async def scenario() -> None:
        ticker = Ticker(asyncio.get_running_loop())
        member = Counting()
        ticker.join(member)
        await asyncio.sleep(PERIOD * 3)
        ticker.leave(member)
        seen = len(ticks)
        await asyncio.sleep(PERIOD * 3)
        assert seen == len(ticks) > 0

    asyncio.run(scenario())


async def in_chunks(pieces: list[bytes], read: Callable[[aiohttp.ClientResponse], Awaitable[T]]) -> T:
    """What a reader of a chunked reply gets, when the server sends it in these pieces."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            if piece.endswith(b"!\r\n"):
                await asyncio.sleep(0.02)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as response:
        return await read(response)


async def everything(response: aiohttp.ClientResponse) -> list[bytes]:
    read: list[bytes] = []
    reply = HttpReply(response)
    while data := reply.read_nowait() or await reply.read():
        read.append(data)
    assert reply.is_whole()
    return read


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_this_aiohttp_is_known():
    assert drain.KNOWN


@pytest.mark.parametrize("known", [True, False], ids=["at-once", "as-aiohttp-wants"])
def test_a_reply_in_many_chunks_is_read_whole_and_in_order(monkeypatch, known: bool):
    if not known:
        monkeypatch.setattr(drain, "KNOWN", False)
    texts = [b"%d%b" % (number, b"!" if number % 7 == 0 else b"") for number in range(200)]
    read = asyncio.run(in_chunks([chunk(text) for text in texts], everything))
    assert b"".join(read) == b"".join(texts)
    assert len(read) < len(texts)


def test_a_chunk_that_ends_in_a_read_of_its_own_is_not_the_end():
    pieces = [b"1\r\na", b"!\r\n"[1:], chunk(b"b!"), b"1\r\nc", b"\r\n", chunk(b"d!"), chunk(b"e")]
    assert b"".join(asyncio.run(in_chunks(pieces, everything))) == b"ab!cd!e"


class Unlucky:
    """A session whose every request ends like this."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def post(self, *args: Any, **fields: Any) -> None:
        raise self._error


class Key:
    """Where a connection leads."""

    host, port, ssl, is_ssl = "secret.example", 8443, True, True


def distrusted(message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, f"certificate verify failed: {message} (_ssl.c:1006)")
    error.verify_message = message
    return error


def refused(number: int) -> OSError:
    return OSError(number, "Connect call failed ('10.0.0.1', 8443)")


KEY: Any = Key()
NO_NAME = socket.gaierror(-2, "Name or service not known")
MISMATCH = "Hostname mismatch, certificate is not valid for 'secret.example'."
UNREACHABLE, CERTIFICATE = "The backend cannot be reached", "The backend's certificate was refused"


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (aiohttp.ClientConnectorError(KEY, refused(errno.ECONNREFUSED)), 502, f"{UNREACHABLE}: connection refused."),
        (aiohttp.ClientConnectorError(KEY, refused(errno.EHOSTUNREACH)), 502, f"{UNREACHABLE}: no route to host."),
        (aiohttp.ClientConnectorError(KEY, OSError("Multiple exceptions: …")), 502, f"{UNREACHABLE}."),
        (aiohttp.ClientConnectorDNSError(KEY, NO_NAME), 502, f"{UNREACHABLE}: unknown host."),
        (aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError(1, "WRONG_VERSION_NUMBER")), 502, f"{UNREACHABLE}: TLS failed."),
        (aiohttp.ClientProxyConnectionError(KEY, refused(errno.ECONNREFUSED)), 502, f"{UNREACHABLE}: proxy: connection refused."),
        (aiohttp.ClientProxyConnectionError(KEY, NO_NAME), 502, f"{UNREACHABLE}."),
        (aiohttp.ConnectionTimeoutError("Connection timeout to host https://secret.example"), 504, f"{UNREACHABLE} in time."),
        (aiohttp.ClientConnectorCertificateError(KEY, distrusted("self-signed certificate")), 502, f"{CERTIFICATE}: self-signed certificate."),
        (aiohttp.ClientConnectorCertificateError(KEY, distrusted(MISMATCH)), 502, f"{CERTIFICATE}: Hostname mismatch."),
        (distrusted("certificate has expired"), 502, f"{CERTIFICATE}: certificate has expired."),
        (aiohttp.ServerDisconnectedError(), 502, "The connection to the backend broke."),
    ],
)  # fmt: skip
def test_what_went_wrong_is_told_without_an_address(error: Exception, status: int, says: str):
    session: Any = Unlucky(error)
    upstream = HttpUpstream(session, "https://secret.example:8443/v1", ClientKey(), {})
    with pytest.raises(Broken) as broken:
        asyncio.run(upstream.open(Post("/responses", b"{}"), ""))
    assert (broken.value.failure.status, broken.value.failure.message) == (status, says)


class Wire(BaseProtocol):
    """A connection that can be paused."""

    paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self, resume_parser: bool = True) -> None:
        self.paused = False


@pytest.mark.parametrize("size", [100, 5000, 200_000])
def test_not_more_is_taken_at_once_than_may_wait(size):
    """However the bytes came, all of them are read once, in order, and the connection goes on being read."""

    async def read() -> list[bytes]:
        loop = asyncio.get_running_loop()
        wire = Wire(loop)
        content = StreamReader(wire, drain.MOST, loop=loop)
        content.begin_http_chunk_receiving()
        for number in range(600_000 // size):
            content.feed_data(bytes([number % 256]) * size)
            content.end_http_chunk_receiving()
        assert wire.paused
        out = [await drain.arrived(content)]
        assert wire.paused, "there is plenty"
        while content._buffer:
            out.append(drain.drained(content))
        assert not wire.paused
        return out

    taken = asyncio.run(read())
    assert b"".join(taken) == b"".join(bytes([number % 256]) * size for number in range(600_000 // size))
    assert max(map(len, taken)) <= drain.MOST


@pytest.mark.parametrize("batching", [True, False])
def test_the_installed_aiohttp_gives_a_burst_of_chunks_at_once(monkeypatch: pytest.MonkeyPatch, batching: bool):
    """aiohttp's own reading, chunk by chunk, is used only without batching."""
    used: list[str] = []

    async def read(response: aiohttp.ClientResponse) -> bytes:
        await response.content.wait_eof()
        monkeypatch.setattr(StreamReader, "read_nowait", lambda *_: used.append("read_nowait") or b"")
        return HttpReply(response, batching).read_nowait()

    texts = [b"data: %d\n\n" % number for number in range(40)]
    data = asyncio.run(in_chunks([chunk(text) for text in texts], read))
    assert (data, used) == ((b"".join(texts), []) if batching else (b"", ["read_nowait"]))
