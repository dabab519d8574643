"""A scripted model behind a real HTTP server: the far end of the wire, and the only fake in these tests."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web


class Pause(msgspec.Struct, frozen=True):
    """Wait before the next bytes."""

    seconds: float


class Cut(msgspec.Struct, frozen=True):
    """Reset the connection, once the other side has read what was sent."""


class Hold(msgspec.Struct, frozen=True):
    """Send nothing more until the other side goes away."""


class Reply(msgspec.Struct):
    """What the upstream answers for one model. Steps are bytes, pauses and accidents."""

    steps: list[Any]
    status: int = 200
    content_type: str = "text/event-stream"
    headers: dict[str, str] = {}


class Asked(msgspec.Struct):
    path: str
    headers: dict[str, str]
    body: Any
    query: str = ""

    @property
    def model(self) -> str:
        """The model, which some protocols have in the path."""
        named = self.body.get("model") if isinstance(self.body, dict) else None
        return named or self.path.partition("/models/")[2].rpartition(":")[0]


class Upstream:
    """Answers by the model's name in the request. `replies[model]` is one reply, a list to be used in turn, or a
    function that looks at what was asked."""

    def __init__(self, port: int = 0) -> None:
        self.replies: dict[str, Reply | list[Reply] | Callable[[Asked], Reply]] = {}
        self.listing: Reply | None = None
        """What the list of models is, if not the usual one."""
        self.asked: list[Asked] = []
        self.gone = threading.Event()
        """Set when a client of ours went away before its reply was complete."""
        self.sent = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self.port = port
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def of(self, model: str) -> list[Asked]:
        return [asked for asked in self.asked if isinstance(asked.body, dict) and asked.model == model]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _models(self, request: web.Request) -> web.Response:
        self.asked.append(Asked(request.path_qs, {k.lower(): v for k, v in request.headers.items()}, None))
        if self.listing is not None:
            reply = self.listing
            return web.Response(status=reply.status, body=b"".join(reply.steps), headers=reply.headers)
        return web.json_response({"object": "list", "data": [{"id": "gpt-5"}, {"id": "gpt-5-mini"}, {"id": "tts-1"}]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        asked = Asked(
            request.path, {k.lower(): v for k, v in request.headers.items()}, body, request.rel_url.raw_query_string
        )
        self.asked.append(asked)
        found = self.replies[asked.model]
        if callable(found):
            found = found(asked)
        reply = (
            found.pop(0)
            if isinstance(found, list) and len(found) > 1
            else found[0]
            if isinstance(found, list)
            else found
        )
        response = web.StreamResponse(
            status=reply.status, headers={"content-type": reply.content_type, **reply.headers}
        )
        await response.prepare(request)
        try:
            for step in reply.steps:
                await self._do(step, request, response)
            await response.write_eof()
        except (ConnectionError, asyncio.CancelledError):
            self.gone.set()
            raise
        return response

    async def _do(self, step: Any, request: web.Request, response: web.StreamResponse) -> None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
        elif isinstance(step, Hold):
            await asyncio.sleep(3600)
        elif isinstance(step, Cut):
            assert request.transport is not None
            while _is_unread(request.transport):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            request.transport.abort()
            raise ConnectionResetError
        else:
            await response.write(step)
            self.sent += len(step)


def _is_unread(transport: asyncio.Transport) -> bool:
    """Whether the other side, a process on this machine, has not read all that was sent."""
    if transport.get_write_buffer_size():
        return True
    names = [transport.get_extra_info(name) for name in ("peername", "sockname")]
    theirs, ours = (f"0100007F:{port:04X}" for _, port in names)
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1:3] in ([theirs, ours], [ours, theirs]):
            sent, received = fields[4].split(":")
            if int(received if fields[1] == theirs else sent, 16):
                return True
    return False
