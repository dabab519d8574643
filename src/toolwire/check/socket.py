"""Responses over a WebSocket: each message requests one turn, whose events come back as messages."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import aiohttp
import msgspec

from toolwire.check.apis import ProbeRequest, make_facts
from toolwire.check.endpoint import LATE, MAX_BYTES, TOO_LARGE, keep_frames, make_cut_finding
from toolwire.check.exchange import SOCKET, Exchange, SentRequest
from toolwire.check.sessions import ProbeSession
from toolwire.check.turns.frames import ReceivedFrame
from toolwire.check.turns.loose import as_number, parse_json
from toolwire.check.turns.responses_items import CLOSINGS
from toolwire.check.turns.rule import RequestFacts
from toolwire.check.turns.streams import check_frames
from toolwire.core.redact import find_filter

ERROR_WAIT = 3.0
"""Seconds to wait for `response.failed` after an error."""


class NoSocket(Exception):
    """The endpoint offers no WebSocket; the message says how it refused."""


@asynccontextmanager
async def connect(session: ProbeSession) -> AsyncGenerator["SocketConnection"]:
    """Open a connection to the session's API. Raises `NoSocket`."""
    endpoint, api = session.endpoint, session.api
    endpoint.spend(api)
    url = endpoint.target.base + api.path
    try:
        async with asyncio.timeout(endpoint.target.timeout):
            socket = await endpoint.session.ws_connect(
                url, headers=endpoint.make_headers(api), params=endpoint.target.query, max_msg_size=MAX_BYTES
            )
    except aiohttp.WSServerHandshakeError as error:
        raise NoSocket(f"there is no WebSocket: status {error.status}") from None
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise NoSocket(f"there is no WebSocket: {type(error).__name__}") from None
    try:
        yield SocketConnection(session, socket)
    finally:
        await socket.close()


class SocketConnection:
    """One WebSocket connection to the endpoint."""

    def __init__(self, session: ProbeSession, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._session = session
        self._endpoint = session.endpoint
        self._api = session.api
        self._socket = socket
        self._sent: list[tuple[int, SentRequest, RequestFacts]] = []
        """Requests that have not been answered."""

    async def ask(self, request: ProbeRequest, model: str = "") -> Exchange:
        """Send a request, then receive and check its turn."""
        await self.send(request, model)
        return await self.receive()

    async def send(self, request: ProbeRequest, model: str = "") -> None:
        """Send a request without waiting for its answer. Raises `GivenUp`."""
        fields = {name: value for name, value in self._session.make_body(request, model).items() if name != "stream"}
        facts = make_facts(self._api.name, fields, self._endpoint.target.headers.items())
        facts = msgspec.structs.replace(facts, socket=True)
        body = msgspec.json.encode({"type": "response.create", **fields})
        sent = SentRequest(SOCKET, self._endpoint.target.base + self._api.path, body)
        self._sent.append((self._endpoint.spend(self._api), sent, facts))
        with suppress(aiohttp.ClientError, OSError):  # a closed connection is noticed by the next read
            await self._socket.send_str(body.decode())

    async def receive(self) -> Exchange:
        """Receive and check the answer to the oldest unanswered request."""
        number, sent, facts = self._sent.pop(0)
        exchange = Exchange(number, self._endpoint.probe, self._api.name, sent, facts=facts)
        began, received = time.monotonic(), list[ReceivedFrame]()
        try:
            async with asyncio.timeout(self._endpoint.target.timeout):
                await self._collect(received, began)
        except TimeoutError:
            self._endpoint.overdue[self._api.name] += 1
            exchange.failure = f"it did not end in {self._endpoint.target.timeout:g} s" if received else LATE
        except ConnectionError as error:
            exchange.failure = str(error)
        exchange.seconds = time.monotonic() - began
        if received:  # the status that the same answer would have over HTTP
            is_refused = received[0].type == "error"
            exchange.status = (as_number(received[0].fields.get("status")) or 400) if is_refused else 200
        exchange.received = keep_frames(received, exchange.failure)
        exchange.body = b"".join(each.raw for each in exchange.received)
        if exchange.status == 200 and exchange.failure:
            exchange.findings = (make_cut_finding(exchange),)
        elif exchange.status == 200:
            found, exchange.turn = check_frames(received, facts)
            exchange.findings = tuple(found)
        return self._endpoint.add(exchange)

    async def _collect(self, received: list[ReceivedFrame], began: float) -> None:
        """Receive the messages of one turn. Raises `ConnectionError` if it is too large or the connection closes.

        A closing event ends the turn, and so does an error before `response.created`, or one that no message follows.
        """
        size, has_begun, timeout = 0, False, None
        while True:
            try:
                message = await asyncio.wait_for(self._socket.receive(), timeout)
            except TimeoutError:
                return
            if message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                refused = message.type is aiohttp.WSMsgType.ERROR and self._socket.close_code
                is_too_large = refused == aiohttp.WSCloseCode.MESSAGE_TOO_BIG  # than `max_msg_size`
                raise ConnectionError(TOO_LARGE if is_too_large else "the server closed the connection")
            raw = message.data.encode() if isinstance(message.data, str) else bytes(message.data)
            raw = find_filter((self._endpoint.target.key,)).clean(raw)
            text, value = raw.decode(errors="replace"), None
            if message.type is aiohttp.WSMsgType.TEXT:
                value = parse_json(raw)
            frame = ReceivedFrame(len(received), time.monotonic() - began, None, text, value, raw + b"\n")
            received.append(frame)
            size += len(frame.raw)
            if size > MAX_BYTES:
                raise ConnectionError(TOO_LARGE)
            has_begun = has_begun or frame.type == "response.created"
            if frame.type in CLOSINGS or (frame.type == "error" and not has_begun):
                return
            timeout = ERROR_WAIT if frame.type == "error" else None
