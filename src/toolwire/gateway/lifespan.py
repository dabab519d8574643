"""Opens the parts of a gateway at its start, and closes them at its end, in the order that its turns require."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

from toolwire.config.settings import Server, Settings, bounds_of, bytes_of, turn_bounds_of
from toolwire.config.stores import AnyStore, make_store
from toolwire.core.cache import TenantCache
from toolwire.gateway.answer import Pace
from toolwire.gateway.console.access import is_own_key, load_token
from toolwire.gateway.console.history import TurnHistory
from toolwire.gateway.console.recorder import TurnRecorder
from toolwire.gateway.issued_keys import IssuedKeys
from toolwire.gateway.keys import Keys
from toolwire.gateway.log import Format, Log
from toolwire.gateway.memory_budget import MemoryBudget
from toolwire.gateway.metrics import Metrics
from toolwire.gateway.origin_check import OriginCheck
from toolwire.gateway.process import Process, read_file_limit
from toolwire.gateway.responses.history import ResponseHistory
from toolwire.gateway.responses.maintenance import Maintenance
from toolwire.gateway.responses.operations import State
from toolwire.gateway.responses.recovery import Recovery
from toolwire.gateway.responses.run_task import BackgroundRuns
from toolwire.gateway.responses.socket_cache import SocketResponses
from toolwire.gateway.responses.stored_response import StoredResponses
from toolwire.gateway.shared import Shared
from toolwire.gateway.usage import UsageRecorder
from toolwire.memory.leases import Leases
from toolwire.memory.membership import Membership
from toolwire.memory.pending_results import PendingResults
from toolwire.memory.store import RunLimits, StoreFailed
from toolwire.memory.turn_memory import TurnMemory
from toolwire.turns.observers import TurnObserver
from toolwire.turns.prepare import Engine
from toolwire.turns.recordings import make_recordings
from toolwire.turns.routes import Router
from toolwire.upstream.codex.host import CodexHost
from toolwire.upstream.http import HttpSession
from toolwire.upstream.scheduling import Ticker

if TYPE_CHECKING:
    from toolwire.gateway.tools.tools import GatewayTools

RETIRED_CHECK_INTERVAL = 0.2
"""Interval, in seconds, at which a retired worker checks whether its last turn has ended."""

FILES_PER_RUN = 4
"""Open files counted for each background run: one for the run, three for clients, their backends and the store."""


def make_run_limits(server: Server) -> RunLimits:
    """The limits on background runs, from the settings and from the limit on open files."""
    limits = RunLimits(server.max_background_runs, server.max_background_runs_per_owner)
    by_files = max(1, read_file_limit() // FILES_PER_RUN)
    if by_files >= limits.in_all:
        return limits
    reason = f"one for every {FILES_PER_RUN} of the {read_file_limit()} files that the gateway may open"
    return RunLimits(by_files, limits.per_owner, reason)


@asynccontextmanager
async def open_application(
    settings: Settings, process: Process, opened: "AnyStore | None", budget: MemoryBudget
) -> AsyncGenerator[State]:
    """Open everything that requests need, with the given store or a new one; close it when the turns are over."""
    loop, server = asyncio.get_running_loop(), settings.server
    store = opened or make_store(settings)
    codex_socket = process.colleagues.codex_socket if process.colleagues is not None else ""
    codex_host = CodexHost(codex_socket) if codex_socket else None
    memory = TurnMemory(store if store.outlives_process else None, codex_host)
    membership = Membership(store, settings.store.lease)
    async with HttpSession(settings.timeouts) as session, _open_tools(settings, memory.results) as tools:
        router = Router(settings, session, codex_host)
        log = Log(settings.debug.level, loop, choose_log_format(settings), process.slot)
        observers: list[TurnObserver] = [log, process.metrics]
        kept_turns = recorder = is_of_console = None
        if settings.console.enabled:
            if settings.console.seconds:
                kept_turns = TurnHistory(store, turn_bounds_of(settings), log, process.metrics.count_unstored_turns)
            recorder = TurnRecorder(settings, load_token(), process, log, kept_turns)
            observers.append(recorder)
            is_of_console = partial(is_own_key, load_token())
        issued = IssuedKeys(store) if settings.access.issued_keys else None
        keys = Keys(settings, is_of_console, issued)
        usage = UsageRecorder(store, keys, process.metrics.count_dropped_usage) if settings.usage.enabled else None
        observers += [usage] if usage is not None else ()
        shared = Shared(
            settings,
            Engine(settings, router, memory.reasoning, make_recordings(settings)),
            OriginCheck(settings),
            keys,
            log,
            bounds_of(settings),
            budget,
            Pace(server.commit_after, server.keepalive),
            Ticker(loop),
            store,
            memory,
            process,
            observers,
            tools,
        )
        store.watch = make_watch(log, process.metrics)
        history = ResponseHistory(
            store, shared.bounds, make_run_limits(server), stores_by_default=settings.store.default
        )
        runs = BackgroundRuns(store, membership, process.metrics, shared.bounds.reply, server.keepalive)
        leases = Leases(store, membership)
        recovery = Recovery(shared, membership, leases, history, runs)
        stored = StoredResponses(shared, runs)
        socket_responses: SocketResponses = TenantCache(bytes_of(server.max_in_flight) // 2)
        state = State(shared, history, runs, stored, socket_responses, membership, leases, recovery)
        maintenance = Maintenance(state)
        await store.open()
        is_first = process.slot in (None, 0)
        async with _keep_clients(issued, usage):
            await maintenance.start()
            router.start()
            async with kept_turns.keep(recorder, lists=is_first) if kept_turns and recorder else nullcontext():
                yield state
                process.condition = "draining"
                while process.retired and process.metrics.running:  # noqa: ASYNC110
                    await asyncio.sleep(RETIRED_CHECK_INTERVAL)
                await runs.close(server.drain)
                await router.stop()
                await memory.flush()
            await maintenance.stop()
        await store.close()
        log.flush()


@asynccontextmanager
async def _keep_clients(issued: IssuedKeys | None, usage: UsageRecorder | None) -> AsyncGenerator[None]:
    """Keep the issued keys up to date, and at the end write the rest of the usage, if there are any."""
    keeping = None
    if issued is not None:
        with suppress(StoreFailed):  # requests are refused until the keys can be read
            await issued.refresh()
        keeping = asyncio.create_task(issued.keep_fresh())
    yield
    if keeping is not None:
        keeping.cancel()
    if usage is not None:
        await usage.close()


def choose_log_format(settings: Settings) -> Format:
    """Text at a terminal, JSON for everything else, unless the settings name a format."""
    if settings.debug.format != "auto":
        return settings.debug.format
    return "text" if sys.stderr.isatty() else "json"


def make_watch(log: Log, metrics: Metrics) -> Callable[[StoreFailed | None], None]:
    """A function that counts the failures of the store, and logs when they begin and when they are over."""
    logged = ""

    def watch(failed: StoreFailed | None) -> None:
        nonlocal logged
        reason = failed.reason if failed is not None else ""
        metrics.store(reason)
        if logged != reason:
            logged = reason
            log.store(reason, str(failed or ""))

    return watch


def _open_tools(
    settings: Settings, results: PendingResults
) -> "AbstractAsyncContextManager[GatewayTools] | AbstractAsyncContextManager[None]":
    """The gateway's own tools; without any, their modules are not loaded."""
    if not settings.gateway_tools.tools and not settings.gateway_tools.mcp:
        return nullcontext()
    from toolwire.gateway.tools.tools import GatewayTools  # noqa: PLC0415

    return GatewayTools(settings, results)
