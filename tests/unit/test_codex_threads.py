"""A thread of an app-server, as those see it who read its lines one after the other."""

import asyncio
import gc
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from toolwire.backends.codex import Profile
from toolwire.core.backend import PendingTurn
from toolwire.core.errors import BackendFault
from toolwire.upstream.codex.host import CodexHost, HostedThread, Lines, Stopped
from toolwire.upstream.codex.inbox import MAX_INBOX_BYTES
from toolwire.upstream.codex.thread import Thread


class AppServer:
    """As much of an app-server as a thread needs that is only read."""

    started = 0

    def open_channel(self, thread: Thread) -> str:
        return "1"


def test_lines_that_come_when_a_reader_gives_up_are_for_the_next():
    """Its worker parks the thread while the next lines arrive."""

    async def main() -> None:
        thread = Thread(cast("Any", AppServer()), cast("Any", None), Profile(), lambda thread: None)
        reading = asyncio.create_task(thread.inbox.read())
        await asyncio.sleep(0)
        thread.inbox.put(b"two")
        reading.cancel()
        await asyncio.wait((reading,))
        assert reading.cancelled()
        thread.inbox.put_back(b"one\n")
        assert await thread.inbox.read() == b"one\ntwo\n"
        thread.stop_timer()

    asyncio.run(main())


def test_a_thread_that_floods_its_worker_while_it_is_parked_is_abandoned_in_silence(tmp_path: Path):
    """Only asyncio would report an exception of the task that parks it."""
    path, reports = str(tmp_path / "host"), list[dict[str, Any]]()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        for message in (Lines(b"x" * (MAX_INBOX_BYTES + 1)), Stopped()):
            data = msgspec.msgpack.encode(message)
            writer.write(len(data).to_bytes(4, "big") + data)
        await reader.read()  # until the worker closes the connection
        writer.close()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
        async with await asyncio.start_unix_server(flood, path):
            host = CodexHost(path)
            thread = HostedThread(*await asyncio.open_unix_connection(path), {}, host)
            thread.release(PendingTurn("t", ()))
            with pytest.raises(BackendFault, match="reads too slowly"):
                await thread.inbox.read()
            await host.wait_until_parked()
            gc.collect()

    asyncio.run(main())
    assert reports == []
