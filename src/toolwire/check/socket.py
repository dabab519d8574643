"""The endpoint over a WebSocket: each message asks for one turn of Responses, whose events come back as messages."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

import aiohttp
import msgspec

from toolwire.check.apis import Api, Ask
from toolwire.check.endpoint import LATE, MOST_BYTES, Endpoint, Veil, broken_off
from toolwire.check.exchange import SOCKET, Exchange, Sent
from toolwire.check.turns.frames import Heard
from toolwire.check.turns.loose import as_number, parsed
from toolwire.check.turns.responses_items import CLOSINGS
from toolwire.check.turns.rule import Asked, Finding
from toolwire.check.turns.streams import check_heard
from toolwire.check.turns.turn import Turn

BEHIND_ERROR = 3.0
"""Seconds in which `response.failed` follows an error."""


class NoSocket(Exception):
    """The endpoint has no WebSocket, in one line."""


@asynccontextmanager
async def connected(endpoint: Endpoint, api: Api) -> AsyncGenerator["Line"]:
    """A connection. Raises `NoSocket`."""
    endpoint.spend(api)
    url = endpoint.target.base + api.path
    try:
        async with asyncio.timeout(endpoint.target.timeout):
            socket = await endpoint.session.ws_connect(
                url, headers=api.headers(endpoint.target.key), max_msg_size=MOST_BYTES
            )
    except aiohttp.WSServerHandshakeError as error:
        raise NoSocket(f"there is no WebSocket: status {error.status}") from None
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise NoSocket(f"there is no WebSocket: {type(error).__name__}") from None
    try:
        yield Line(endpoint, api, socket)
    finally:
        await socket.close()


class Line:
    """One connection."""

    def __init__(self, endpoint: Endpoint, api: Api, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._endpoint = endpoint
        self._api = api
        self._socket = socket
        self._sent: list[tuple[int, Sent, Asked]] = []
        """What has not been answered."""

    async def ask(self, ask: Ask) -> Exchange:
        """Ask for a turn, and hold it against the rules."""
        await self.send(ask)
        return await self.hear()

    async def send(self, ask: Ask) -> None:
        """Ask, and leave the answer for later. Raises `GivenUp`."""
        fields = {name: value for name, value in self._endpoint.body(self._api, ask).items() if name != "stream"}
        tools = tuple(tool.name for tool in ask.tools)
        asked = Asked(self._api.name, tools, forced=bool(ask.named), socket=True, fields=fields)
        body = msgspec.json.encode({"type": "response.create", **fields})
        sent = Sent(SOCKET, self._endpoint.target.base + self._api.path, body)
        self._sent.append((self._endpoint.spend(self._api), sent, asked))
        with suppress(aiohttp.ClientError, OSError):  # that the connection is closed is heard next
            await self._socket.send_str(body.decode())

    async def hear(self) -> Exchange:
        """The answer to the message that waits longest."""
        number, sent, asked = self._sent.pop(0)
        began, heard, trouble = time.monotonic(), list[Heard](), ""
        try:
            async with asyncio.timeout(self._endpoint.target.timeout):
                await self._collect(heard, began)
        except TimeoutError:
            self._endpoint.overdue[self._api.name] += 1
            trouble = f"it did not end in {self._endpoint.target.timeout:g} s" if heard else LATE
        except ConnectionError as error:
            trouble = str(error)
        about = Exchange(number, self._endpoint.probe, self._api.name, sent, _status(heard))
        body = b"".join(each.raw for each in heard)
        found, turn = _judged(heard, asked, trouble)
        return self._endpoint.keep(
            msgspec.structs.replace(
                about, body=body, heard=tuple(heard), seconds=time.monotonic() - began, trouble=trouble,
                turn=turn, findings=tuple(found), asked=asked,
            )
        )  # fmt: skip

    async def _collect(self, heard: list[Heard], began: float) -> None:
        """Take in the messages of one turn. An error that nothing follows is the end, too."""
        while not _is_over(heard):
            patience = BEHIND_ERROR if heard and _type(heard[-1]) == "error" else None
            try:
                heard.append(await asyncio.wait_for(self._next(len(heard), began), patience))
            except TimeoutError:
                return

    async def _next(self, place: int, began: float) -> Heard:
        """The next message. Raises `ConnectionError` if none comes any more."""
        message = await self._socket.receive()
        if message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            raise ConnectionError("the server closed the connection")
        raw = message.data.encode() if isinstance(message.data, str) else bytes(message.data)
        veil = Veil(self._endpoint.target.key)
        raw = veil.feed(raw) + veil.end()
        value = parsed(raw) if message.type is aiohttp.WSMsgType.TEXT else None
        return Heard(place, time.monotonic() - began, None, raw.decode(errors="replace"), value, raw + b"\n")


def _type(each: Heard) -> str:
    return str(each.fields.get("type"))


def _is_over(heard: Sequence[Heard]) -> bool:
    """A closing event ends a turn, and an error ends one that did not begin."""
    if not heard:
        return False
    begun = any(_type(each) == "response.created" for each in heard)
    return _type(heard[-1]) in CLOSINGS or (_type(heard[-1]) == "error" and not begun)


def _status(heard: Sequence[Heard]) -> int:
    """What the same answer would have as its status over HTTP; 0 if there is none."""
    if not heard:
        return 0
    return 200 if _type(heard[0]) != "error" else as_number(heard[0].fields.get("status")) or 400


def _judged(heard: Sequence[Heard], asked: Asked, trouble: str) -> tuple[list[Finding], Turn]:
    if _status(heard) != 200:
        return [], Turn()
    found, turn = check_heard(heard, asked)
    return ([broken_off(trouble, heard)], Turn()) if trouble else (found, turn)
