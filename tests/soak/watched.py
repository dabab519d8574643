"""The gateway with a look inside: `python watched.py serve …` is `toolwire serve …`, bounded and measured.

`SOAK_STEPS` names a file that gets a line for every time the event loop was held: the CPU seconds that this process
spent, in whichever thread, between two moments at which the loop could have served somebody. CPU time and not time, so
that a busy machine does not count; of the whole process, because a thread that keeps the interpreter's lock holds the
loop as well. `SOAK_WAITING` names one that gets a line with the most bytes that waited in this process to be written to
one client, as often as that grows. `SIGUSR1` lets the clock jump forward by `SOAK_JUMP` seconds, `SIGUSR2` back by as much.
"""

import asyncio
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

MEMORY = 6 << 30
"""Bytes of address space: an attack that works must not take the machine along."""
PAUSE = 0.002
LEAST = 0.02
"""CPU seconds of a step that is worth a line."""


async def watch(path: str) -> None:
    with open(path, "a", buffering=1) as out:  # noqa: ASYNC230 - a few lines
        last = time.process_time()
        while True:
            await asyncio.sleep(PAUSE)
            now = time.process_time()
            if now - last > LEAST:
                out.write(f"{now - last:.4f}\n")
            last = time.process_time()


async def watch_writes(path: str, connections: set[Any]) -> None:
    most = 0
    with open(path, "a", buffering=1) as out:  # noqa: ASYNC230 - a few lines
        while True:
            await asyncio.sleep(PAUSE)
            now = max((each.transport.get_write_buffer_size() for each in connections), default=0)
            if now > most:
                most = now
                out.write(f"{most}\n")


def jumping(seconds: float) -> Callable[[], float]:
    """A clock that signals move."""
    real, offset = time.time, [0.0]

    def jump(by: float) -> None:
        offset[0] += by

    signal.signal(signal.SIGUSR1, lambda *_: jump(seconds))
    signal.signal(signal.SIGUSR2, lambda *_: jump(-seconds))
    return lambda: real() + offset[0]


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    limit = int(os.environ.get("SOAK_FILE_SIZE", "0"))
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    time.time = jumping(float(os.environ.get("SOAK_JUMP", "0")))

    from toolwire.cli import main as toolwire  # behind the clock, which others take as they are imported
    from toolwire.gateway.serve import GatewayServer

    path = os.environ.get("SOAK_STEPS", "")
    start = GatewayServer.start
    tasks: list[Any] = []

    async def watched(server: GatewayServer) -> None:
        await start(server)
        if path:
            tasks.append(asyncio.get_running_loop().create_task(watch(path)))
        if waiting := os.environ.get("SOAK_WAITING", ""):
            tasks.append(asyncio.create_task(watch_writes(waiting, server.connections.open)))

    GatewayServer.start = watched  # type: ignore[method-assign]
    sys.argv[0] = "toolwire"
    toolwire()


if __name__ == "__main__":
    main()
