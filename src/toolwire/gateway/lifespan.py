"""What a gateway has while it runs: made when it starts, and closed in the order in which its turns need it."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from toolwire.config.settings import Server, Settings, bounds_of, bytes_of
from toolwire.config.stores import AnyStore, make_store
from toolwire.core.display import clean
from toolwire.core.tenant_cache import TenantCache
from toolwire.gateway.answer import Pace
from toolwire.gateway.console.access import is_own_key, load_token
from toolwire.gateway.console.recorder import TurnRecorder
from toolwire.gateway.keys import Keys
from toolwire.gateway.log import Format, Log
from toolwire.gateway.memory_budget import MemoryBudget
from toolwire.gateway.origin_check import OriginCheck
from toolwire.gateway.process import Process, file_limit
from toolwire.gateway.responses.history import ResponseHistory
from toolwire.gateway.responses.maintenance import Maintenance
from toolwire.gateway.responses.operations import State
from toolwire.gateway.responses.recovery import Recovery
from toolwire.gateway.responses.run_task import BackgroundRuns
from toolwire.gateway.responses.socket_cache import SocketResponses
from toolwire.gateway.responses.stored_response import StoredResponses
from toolwire.gateway.shared import Shared
from toolwire.memory.leases import Leases
from toolwire.memory.membership import Membership
from toolwire.memory.pending_results import PendingResults
from toolwire.memory.store import RunLimits, StoreFailed
from toolwire.memory.turn_memory import TurnMemory
from toolwire.turns.observers import TurnObserver
from toolwire.turns.prepare import Engine
from toolwire.turns.recordings import recordings_of
from toolwire.turns.routes import Router
from toolwire.upstream.codex.host import CodexHost
from toolwire.upstream.http import make_session
from toolwire.upstream.scheduling import Ticker

if TYPE_CHECKING:
    from toolwire.gateway.tools.tools import GatewayTools

CHECKED_EVERY = 0.2
"""Seconds between two checks whether the last background run of a retired worker has ended."""

FILES_PER_RUN = 4
"""Files that the system must allow for each background run: three of four are left to connections of clients, their
backends and the store."""


def run_limits(server: Server) -> RunLimits:
    """The maximum of background runs: by the settings, and by the files that this process may open."""
    limits = RunLimits(server.max_background_runs, server.max_background_runs_per_owner)
    by_files = max(1, file_limit() // FILES_PER_RUN)
    if by_files >= limits.in_all:
        return limits
    reason = f"one for every {FILES_PER_RUN} of the {file_limit()} files that the gateway may open"
    return RunLimits(by_files, limits.per_owner, reason)


@asynccontextmanager
async def open_application(
    settings: Settings,
    this: Process,
    opened: "AnyStore | None",
    budget: MemoryBudget,
) -> AsyncGenerator[State]:
    """Open everything that requests need, with the given store or a new one; close it when the turns are over."""
    loop = asyncio.get_running_loop()
    store = opened or make_store(settings)
    codex_host = CodexHost(this.codex_socket) if this.codex_socket else None
    memory = TurnMemory(store if store.outlives_process else None, codex_host)
    membership = Membership(store, settings.store.lease)
    async with make_session(settings.timeouts) as session, _gateway_tools(settings, memory.results) as own:
        router = Router(settings, session, codex_host)
        log = Log(settings.debug.level, loop, log_format(settings), this.slot)
        observers: list[TurnObserver] = [log, this.metrics]
        is_of_console = None
        if settings.console.enabled:
            observers.append(TurnRecorder(settings, load_token(), this, log))
            is_of_console = partial(is_own_key, load_token())
        everything = Shared(
            settings,
            Engine(settings, router, memory.reasoning, recordings_of(settings)),
            OriginCheck(settings),
            Keys(settings, is_of_console),
            log,
            this.metrics,
            bounds := bounds_of(settings),
            budget,
            Pace(settings.server.commit_after, settings.server.keepalive),
            loop,
            Ticker(loop),
            store,
            memory,
            this,
            observers,
            own,
            bytes_of(settings.server.max_reply),
        )
        store.watch = watch_of(everything)
        history = ResponseHistory(store, bounds, run_limits(settings.server), stores_by_default=settings.store.default)
        runs = BackgroundRuns(store, membership, this.metrics, everything.max_reply, settings.server.keepalive)
        leases = Leases(store, membership)
        recovery = Recovery(everything, membership, leases, history, runs)
        stored = StoredResponses(everything, runs)
        socket_responses: SocketResponses = TenantCache(bytes_of(settings.server.max_in_flight) // 2)
        state = State(everything, history, runs, stored, socket_responses, membership, leases, recovery)
        maintenance = Maintenance(everything, membership, runs, leases, recovery)
        await store.open()
        await maintenance.start()
        router.start()
        yield state
        this.condition = "draining"
        while this.retired and this.metrics.running:  # noqa: ASYNC110
            await asyncio.sleep(CHECKED_EVERY)
        await runs.close(settings.server.drain)
        await router.stop()
        await memory.flush()
        await maintenance.stop()
        await store.close()
        log.flush()


def log_format(settings: Settings) -> Format:
    """Words for people at a terminal, JSON for everything else, unless the settings say otherwise."""
    if settings.debug.format != "auto":
        return settings.debug.format
    return "text" if sys.stderr.isatty() else "json"


def watch_of(shared: Shared) -> Callable[[StoreFailed | None], None]:
    """What counts the failures of the store, and tells in the log when they begin and when they are over."""
    reported: list[str] = [""]

    def watch(failed: StoreFailed | None) -> None:
        reason = failed.reason if failed is not None else ""
        shared.metrics.store(reason)
        if reported[0] != reason:
            reported[0] = reason
            shared.log.store(reason, str(failed or ""))

    return watch


@asynccontextmanager
async def _gateway_tools(settings: Settings, kept: PendingResults) -> "AsyncGenerator[GatewayTools | None]":
    """The gateway's own tools, if it has any; without any, what they need is not loaded."""
    if not settings.gateway_tools.tools and not settings.gateway_tools.mcp:
        yield None
        return
    from toolwire.gateway.tools.tools import GatewayTools  # noqa: PLC0415

    own = GatewayTools(settings, _say, kept)
    await own.open()
    try:
        yield own
    finally:
        await own.close()


def _say(server: str, message: str) -> None:
    print(clean(f"toolwire: MCP server {server}: {message}"), file=sys.stderr, flush=True)
