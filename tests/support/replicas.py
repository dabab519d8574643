"""Several gateways on one store, behind an address that sends each request to one of them at random."""

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.gateway import Gateway

PIECE = 64 * 1024


class RandomRouter:
    """A reverse proxy for one request per connection; a WebSocket stays where it was opened."""

    def __init__(self, ports: Callable[[], Sequence[int]], seed: int = 0) -> None:
        self._ports = ports
        self._random = random.Random(seed)
        self._serving: set[asyncio.Task[None]] = set()  # asyncio itself holds them weakly
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await asyncio.sleep(0)  # what was closed is let go

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._route(reader, writer)
        finally:
            self._serving.discard(task)
            writer.close()

    async def _route(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        first, _, rest = head.partition(b"\r\n")
        if b"\r\nupgrade:" not in head.lower():
            kept = [line for line in rest.split(b"\r\n") if not line.lower().startswith(b"connection:")]
            rest = b"connection: close\r\n" + b"\r\n".join(kept)
        port = self._random.choice(self._ports())
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", port)
        upstream.write(first + b"\r\n" + rest)
        sending = asyncio.ensure_future(_pipe(reader, upstream))
        try:
            await _pipe(upstream_reader, writer)
        finally:
            sending.cancel()
            upstream.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes until one of the two ends; whoever sends has said all then."""
    with suppress(ConnectionError):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


class Replicas:
    """Gateways with the same configuration, each as a process of its own, and the router before them."""

    def __init__(
        self, folder: Path, config: str, count: int = 2, args: tuple[str, ...] = (), **environment: str
    ) -> None:
        self.gateways: list[Gateway] = []
        for number in range(count):
            own = folder / f"replica{number}"
            own.mkdir()
            self.gateways.append(Gateway(own, config, args, **environment))
        ports = [int(gateway.url.rpartition(":")[2]) for gateway in self.gateways]
        self.router = RandomRouter(lambda: ports)
        self.url = self.router.url

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def turns(self) -> list[dict[str, Any]]:
        """The log lines of turns so far, of all of them."""
        return [line for gateway in self.gateways for line in gateway.turns()]

    def stop(self) -> None:
        self.router.stop()
        for gateway in self.gateways:
            gateway.stop()
