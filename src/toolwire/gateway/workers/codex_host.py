"""The process that hosts Codex for all workers: one for each generation of settings, forked by the supervisor.

The supervisor ends it after the last worker that may use it. Signals do not end it: systemd sends SIGTERM to all
processes at once, and workers still need it for the turns that they finish.
"""

import asyncio
import signal
import socket
from contextlib import suppress
from pathlib import Path

from toolwire.config.settings import Settings
from toolwire.gateway.nonblocking_stderr import write_stderr_in_thread
from toolwire.gateway.process import allow_files, new_event_loop
from toolwire.gateway.workers.channel import Channel
from toolwire.gateway.workers.messages import End, FromSupervisor, Ready
from toolwire.gateway.workers.sockets import LOCK, leave_runtime_folder
from toolwire.protocols import backend_kinds
from toolwire.turns.codex import make_codex_upstream
from toolwire.upstream.codex.host import CodexHostServer

ORPHAN_INTERVAL = 5.0
"""Interval, in seconds, at which an orphaned host checks whether it still has connections; without any it ends."""


def run_codex_host(settings: Settings, folder: Path, path: str, sock: socket.socket) -> int:
    """Host Codex on the socket `path` until the supervisor orders the end; returns the exit code."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    allow_files(settings.server.max_connections)
    with write_stderr_in_thread(folder / LOCK), asyncio.Runner(loop_factory=new_event_loop) as runner:
        if runner.run(_host(settings, path, sock)):
            leave_runtime_folder(folder, is_last=False)
    return 0


async def _host(settings: Settings, path: str, sock: socket.socket) -> bool:
    """Host Codex; returns whether the supervisor is gone."""
    end, orphaned = asyncio.Event(), asyncio.Event()
    upstreams = {
        backend.name: make_codex_upstream(backend, settings)
        for backend in settings.backends
        if backend_kinds()[backend.kind].is_hosted
    }
    server = CodexHostServer(path, upstreams)

    def obey(message: FromSupervisor | None) -> None:
        if isinstance(message, End):
            end.set()
        elif message is None:
            orphaned.set()

    channel = await Channel.open(sock, lambda: None)
    talking = asyncio.create_task(channel.run(obey))
    await server.start()
    await channel.send(Ready())
    while not end.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(ORPHAN_INTERVAL):
                await end.wait()
        if orphaned.is_set() and not server.connections:
            break
    await server.stop()
    talking.cancel()
    return orphaned.is_set()
