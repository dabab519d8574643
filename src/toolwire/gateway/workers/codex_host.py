"""The process that hosts Codex for all workers: one of each generation of settings, forked by the supervisor.

It ends when the supervisor orders it, which is after the last worker that may use it. Signals do not end it: systemd
sends SIGTERM to all processes at once, and workers still need it for the turns that they finish.
"""

import asyncio
import signal
import socket
from contextlib import suppress
from pathlib import Path

import msgspec

from toolwire.backends import codex
from toolwire.config.settings import Settings
from toolwire.gateway.nonblocking_stderr import write_stderr_in_thread
from toolwire.gateway.process import allow_files
from toolwire.gateway.workers.channel import Channel
from toolwire.gateway.workers.messages import End, FromSupervisor, Ready
from toolwire.gateway.workers.sockets import LOCK, leave_runtime_folder
from toolwire.turns.codex import codex_upstream
from toolwire.upstream.codex.host import CodexHostServer

ORPHAN_INTERVAL = 5.0
"""Seconds between two checks of a host without a supervisor. It ends when no worker is connected at one of them."""


class CodexHostPlan(msgspec.Struct, frozen=True):
    """What a host is started with."""

    settings: Settings
    folder: Path
    """The runtime directory."""
    socket: str
    """The path of its socket."""


def run_codex_host(plan: CodexHostPlan, sock: socket.socket) -> int:
    """Host Codex until the supervisor orders the end; returns the exit code."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    allow_files(plan.settings.server.max_connections)
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - where it can be had
    except ImportError:
        from asyncio import new_event_loop  # noqa: PLC0415
    with write_stderr_in_thread(plan.folder / LOCK), asyncio.Runner(loop_factory=new_event_loop) as runner:
        if runner.run(_host(plan, sock)):
            leave_runtime_folder(plan.folder, is_last=False)
    return 0


async def _host(plan: CodexHostPlan, sock: socket.socket) -> bool:
    """Host Codex; returns whether the supervisor is gone."""
    settings, end, orphaned = plan.settings, asyncio.Event(), asyncio.Event()
    upstreams = {
        backend.name: codex_upstream(backend, codex.profile_from(backend.profile), settings)
        for backend in settings.backends
        if backend.kind == "codex"
    }
    server = CodexHostServer(plan.socket, upstreams)

    def obey(message: FromSupervisor | None) -> None:
        if isinstance(message, End):
            end.set()
        elif message is None:
            orphaned.set()

    channel = Channel(sock, lambda: None)
    channel.open(obey)
    await server.start()
    await channel.send(Ready())
    while not end.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(ORPHAN_INTERVAL):
                await end.wait()
        if orphaned.is_set() and not server.connections:
            break
    await server.stop()
    await channel.close()
    return orphaned.is_set()
