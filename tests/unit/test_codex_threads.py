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


def test_a_stop_that_nobody_heard_does_not_cut_the_next_turn():
    """It comes while lines are on their way to another worker, when nobody waits for more of them."""

    async def main() -> None:
        thread = Thread(cast("Any", AppServer()), cast("Any", None), Profile(), lambda thread: None)
        thread.inbox.put(b"one")
        assert await thread.arrived() == b"one\n"
        thread.inbox.stop()
        thread.resume()
        reading = asyncio.create_task(thread.arrived())
        await asyncio.sleep(0)
        thread.inbox.put(b"two")
        assert await reading == b"two\n"
        thread.stop_timer()

    asyncio.run(main())
