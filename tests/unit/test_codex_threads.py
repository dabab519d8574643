"""A thread of an app-server, as those see it who read its lines one after the other."""

import asyncio
from typing import Any, cast

from toolwire.backends.codex import Profile
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
