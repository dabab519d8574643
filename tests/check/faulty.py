"""Servers with one fault each: they pass everything on to a sound one, but for what they do wrong.

faulty = Faulty(gateway.url)
url = faulty.add(Fault(ask=drop("tool_choice")))       # changes what is asked
url = faulty.add(Fault(answer=as_type("text/plain")))  # changes what is answered
url = faulty.add(Fault(ask=lambda received: html(502)))   # answers by itself

A message over a WebSocket is a request with the method `WS`, and its answer has a line for each message; the upgrade
before it has the method `UPGRADE`.
"""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from tests.support.upstream import Cut, Hold, Pause, Reply

Json = dict[str, Any]
PATHS = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages"}
GEMINI = re.compile(r"/v1beta/models/(.+):(generateContent|streamGenerateContent)")


class ReceivedRequest(msgspec.Struct):
    """A request on its way. What is changed in `body` goes on."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    body: Json
    """Empty if it is no object."""
    query: str = ""

    @property
    def api(self) -> str:
        """Empty if no turn is asked for, or over a WebSocket."""
        found = "gemini" if GEMINI.fullmatch(self.path) else PATHS.get(self.path, "")
        return found if self.method == "POST" else ""

    @property
    def streamed(self) -> bool:
        """A stream of server-sent events was asked for."""
        return self.body.get("stream") is True and (self.api != "gemini" or "alt=sse" in self.query)

    def read_path(self) -> None:
        """Put the model and the method of a Gemini request into its body, as other APIs have them."""
        if (found := GEMINI.fullmatch(self.path)) and self.body:
            self.body = {"model": found[1], "stream": found[2] == "streamGenerateContent", **self.body}

    def write_path(self) -> bytes:
        """The body, without what belongs into the path of a Gemini request."""
        if self.api == "gemini" and self.body:
            model, stream = self.body.pop("model"), self.body.pop("stream", False)
            self.path = f"/v1beta/models/{model}:{'streamG' if stream else 'g'}enerateContent"
            self.query = self.query if stream else self.query.replace("alt=sse", "")
        return msgspec.json.encode(self.body) if self.body else self.raw

    def contains(self, text: str) -> bool:
        return text in json.dumps(self.body, ensure_ascii=False)


RequestChange = Callable[[ReceivedRequest], Reply | None]
ReplyChange = Callable[[ReceivedRequest, Reply], Reply]


class Fault(msgspec.Struct, frozen=True):
    """What a server does wrong: with a request, which it may answer by itself, or with an answer."""

    ask: RequestChange = lambda received: None
    answer: ReplyChange | None = None
    to: Callable[[ReceivedRequest], bool] = lambda received: True
    """The requests whose answers are wrong. All others are passed on while they come."""


class Faulty:
    """Any number of faulty servers on one port, in front of a sound one."""

    def __init__(self, sound: str) -> None:
        self._sound = sound
        self._faults: list[Fault] = []
        self._received: list[list[ReceivedRequest]] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._port = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    def add(self, fault: Fault) -> str:
        """The address of a server with this fault."""
        self._faults.append(fault)
        self._received.append([])
        return f"http://127.0.0.1:{self._port}/{len(self._faults) - 1}"

    def requests(self, url: str) -> list[ReceivedRequest]:
        """What the server at this address was asked, as it came."""
        return self._received[int(url.rpartition("/")[2])]

    def close(self) -> None:
        """Take no more connections. Only a fault may do this, while it is served."""
        self._server.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _start(self) -> None:
        self._session = aiohttp.ClientSession(auto_decompress=False)
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{fault:[0-9]+}{path:/.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        assert self._runner.server is not None
        self._server = await self._loop.create_server(self._runner.server, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        self._server.close()
        await self._runner.cleanup()
        await self._session.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        number = int(request.match_info["fault"])
        fault, path = self._faults[number], request.match_info["path"]
        headers = {name.lower(): value for name, value in request.headers.items()}
        if headers.get("upgrade") == "websocket":
            return await self._serve_socket(number, path, headers, request)
        raw = await request.read()
        self._received[number].append(ReceivedRequest(request.method, path, headers, raw, _object(raw)))
        received = ReceivedRequest(request.method, path, headers, raw, _object(raw), request.query_string)
        received.read_path()
        reply = fault.ask(received)
        if reply is not None:
            return await _send(reply, request)
        kept = {name: headers[name] for name in headers if name not in ("host", "content-length", "accept-encoding")}
        asked, body = msgspec.structs.replace(received, body={**received.body}), received.write_path()
        async with self._session.request(
            received.method,
            f"{self._sound}{received.path}?{received.query}".rstrip("?"),
            data=body or None,
            headers=kept,
        ) as response:
            kind = response.headers.get("content-type", "")
            if fault.answer is None or not fault.to(asked):
                return await _pass_on(response, Reply([], response.status, kind), request)
            reply = Reply([await response.read()], response.status, kind)
        return await _send(fault.answer(asked, reply), request)

    async def _serve_socket(
        self, number: int, path: str, headers: dict[str, str], request: web.Request
    ) -> web.StreamResponse:
        fault = self._faults[number]
        refused = fault.ask(ReceivedRequest("UPGRADE", path, headers, b"", {}))
        if refused is not None:
            return await _send(refused, request)
        near = web.WebSocketResponse()
        await near.prepare(request)
        kept = {name: headers[name] for name in headers if name in ("authorization", "content-type")}
        async with self._session.ws_connect(self._sound + path, headers=kept) as far:
            async for message in near:
                received = ReceivedRequest("WS", path, headers, message.data.encode(), _object(message.data.encode()))
                self._received[number].append(received)
                reply = fault.ask(received)
                if reply is None:
                    await far.send_bytes(msgspec.json.encode(received.body), compress=None)
                    reply = Reply([b"".join([each async for each in _messages(far)])])
                    reply = fault.answer(received, reply) if fault.answer and fault.to(received) else reply
                if any(isinstance(step, Cut) for step in reply.steps):
                    break
                for line in b"".join(step for step in reply.steps if isinstance(step, bytes)).splitlines():
                    await near.send_str(line.decode())
        await near.close()
        return near


async def _messages(far: aiohttp.ClientWebSocketResponse) -> AsyncIterator[bytes]:
    """The messages of one turn, each a line."""
    begun = False
    async for message in far:
        yield message.data.encode() + b"\n"
        kind = json.loads(message.data)["type"]
        begun = begun or kind == "response.created"
        if kind in ("response.completed", "response.incomplete", "response.failed") or (kind == "error" and not begun):
            return


def _object(raw: bytes) -> Json:
    try:
        value = json.loads(raw)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


async def _pass_on(came: aiohttp.ClientResponse, reply: Reply, request: web.Request) -> web.StreamResponse:
    response = await _begin(reply, request)
    async for data in came.content.iter_any():
        await response.write(data)
    await response.write_eof()
    return response


async def _send(reply: Reply, request: web.Request) -> web.StreamResponse:
    if reply.steps and isinstance(reply.steps[0], Hold):
        await asyncio.sleep(60)
    if reply.steps and isinstance(reply.steps[0], Cut):
        _abort(request)
    response = await _begin(reply, request)
    for step in reply.steps:
        await _do(step, request, response)
    await response.write_eof()
    return response


async def _begin(reply: Reply, request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(status=reply.status, headers={"content-type": reply.content_type, **reply.headers})
    await response.prepare(request)
    return response


async def _do(step: Any, request: web.Request, response: web.StreamResponse) -> None:
    match step:
        case Pause(seconds):
            await asyncio.sleep(seconds)
        case Hold():
            await asyncio.sleep(60)
        case Cut():
            _abort(request)
        case threading.Event():
            step.set()
        case _:
            await response.write(step)


def _abort(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()
    raise ConnectionResetError


# What a fault is made of

Holds = Callable[[ReceivedRequest], bool]


def where(holds: Holds, ask: RequestChange) -> RequestChange:
    """The fault shows only in some requests."""
    return lambda received: ask(received) if holds(received) else None


def contains(text: str) -> Holds:
    return lambda received: bool(received.api) and received.contains(text)


def drop(*fields: str) -> RequestChange:
    """Fields of a request get lost."""

    def ask(received: ReceivedRequest) -> None:
        for field in fields:
            received.body.pop(field, None)

    return ask


def put(**fields: Any) -> RequestChange:
    """Fields of a request are set, whatever was asked."""
    return lambda received: received.body.update(fields)


def misread(text: str, read: str) -> RequestChange:
    """A text in a request is taken for another."""

    def ask(received: ReceivedRequest) -> None:
        received.body = _replaced(received.body, text, read)

    return ask


def _replaced(value: Any, text: str, by: str) -> Any:
    match value:
        case dict():
            return {key: _replaced(each, text, by) for key, each in value.items()}
        case list():
            return [_replaced(each, text, by) for each in value]
        case str():
            return value.replace(text, by)
        case _:
            return value


def reply_json(status: int, body: Any) -> Reply:
    return Reply([msgspec.json.encode(body)], status, "application/json")


def refuse(status: int, received: ReceivedRequest) -> Reply:
    """An error in the right form."""
    error = {"message": "No.", "type": "invalid_request_error", "param": None, "code": None}
    if received.api == "messages":
        return reply_json(status, {"type": "error", "error": {"type": "invalid_request_error", "message": "No."}})
    if received.api == "gemini":
        return reply_json(status, {"error": {"code": status, "message": "No.", "status": "INVALID_ARGUMENT"}})
    return reply_json(status, {"error": error})


def refusing(status: int) -> RequestChange:
    return lambda received: refuse(status, received)


def html(status: int = 200) -> Reply:
    return Reply([b"<!doctype html><title>Welcome</title>"], status, "text/html; charset=utf-8")


def with_status(status: int) -> ReplyChange:
    return lambda received, reply: msgspec.structs.replace(reply, status=status)


def as_type(content_type: str) -> ReplyChange:
    return lambda received, reply: msgspec.structs.replace(reply, content_type=content_type)


def frames(reply: Reply) -> list[bytes]:
    """The frames of a stream that came whole."""
    whole = b"".join(reply.steps)
    end = b"\r\n\r\n" if b"\r\n" in whole else b"\n\n"
    return [frame + end for frame in whole.split(end) if frame]


def rewritten(old: bytes, new: bytes) -> ReplyChange:
    """Bytes of an answer are replaced."""
    return lambda received, reply: msgspec.structs.replace(reply, steps=[b"".join(reply.steps).replace(old, new)])
