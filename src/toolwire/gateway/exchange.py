"""One request of one client, from its body to the last byte of the answer; the one place where errors are caught.

An operation is a function on an exchange: it reads the request, begins a run and has it delivered. The exchange says
what goes wrong on the way, ends the run whatever happens, and reports the turn.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec
from starlette.types import Receive, Scope, Send

from toolwire.assembly import ToolRules, output_mode
from toolwire.config.flags import HEADERS, MODE_HEADER, FlagError, with_flags
from toolwire.config.settings import Settings
from toolwire.core.bounds import LARGE, Bounds, check_parts
from toolwire.core.errors import BadRequest, Failure, InternalError, ReplyTooLarge, ToolwireError
from toolwire.core.events import TurnFailed
from toolwire.core.notes import TurnStats
from toolwire.core.policies import Policy
from toolwire.core.request import Request, RequestHead
from toolwire.gateway.answer import Answer
from toolwire.gateway.body import read_body, stepped
from toolwire.gateway.console.recorder import Recorder
from toolwire.gateway.console.rows import results_of
from toolwire.gateway.flight import Claim, Flight
from toolwire.gateway.guard import Guard
from toolwire.gateway.http import ClientGone
from toolwire.gateway.ids import random_hex
from toolwire.gateway.keys import CALLER, Caller, Keys
from toolwire.gateway.log import Log
from toolwire.gateway.metrics import Metrics
from toolwire.gateway.process import Process
from toolwire.gateway.sinks import HttpSink, Pace, upstream_request_id
from toolwire.memory.store import Store
from toolwire.memory.turn_memory import TurnMemory
from toolwire.protocols import PROTOCOLS, Decoding, DialectModule
from toolwire.turns.attempt import Confirm, TurnGuard
from toolwire.turns.prepare import Caller as Asker
from toolwire.turns.prepare import Engine, Options, prepare
from toolwire.turns.run import Run
from toolwire.turns.source import TurnSource
from toolwire.turns.trace import TurnTrace
from toolwire.upstream.scheduling import Alarm, Ticker, give_way

if TYPE_CHECKING:
    from toolwire.gateway.tools.search import Search

FACTS = "toolwire.facts"
"""The key of a scope under which the console adds facts to its own requests."""
OUTPUT_MODE = "toolwire.output_mode"
"""The key of a scope that says which output mode the prefix of the path asks for."""

_FLAGS = {name.encode(): name for name in HEADERS}


class Toolbox(Protocol):
    """Tools that the gateway runs itself."""

    def can_join(self, request: Request) -> bool: ...

    def run(
        self,
        owner: str,
        request: Request,
        begin: Callable[[Request], Run],
        on_call: Callable[[str, str], None],
        confirm: Confirm | None,
        search: "Search | None",
    ) -> TurnSource:
        """A run with these tools. `on_call` is called with the name and the outcome of each call of them, `confirm`
        before each. `search` are searches for tools that are run here too."""
        ...


class Shared(msgspec.Struct, frozen=True):
    """What all exchanges share."""

    settings: Settings
    engine: Engine
    guard: Guard
    keys: Keys
    log: Log
    metrics: Metrics
    bounds: Bounds
    flight: Flight
    pace: Pace
    loop: asyncio.AbstractEventLoop
    """Known here once: asking for it costs a system call each time."""
    ticker: Ticker
    store: Store
    memory: TurnMemory
    process: Process
    tools: Toolbox | None = None
    max_reply: int = 64_000_000
    watch: Recorder | None = None
    """For the console; None where it is switched off."""


class Sink(Protocol):
    """Where an answer goes."""

    headers: list[tuple[bytes, bytes]]
    trace: TurnTrace | None
    status: int
    upstream_id: str
    committed: bool

    @property
    def facts(self) -> dict[str, Any]: ...

    @property
    def interruption(self) -> Failure:
        """Why an exchange ends that is broken off."""
        ...

    async def plain(self, run: TurnSource, answer: Answer, hold: Callable[[int], None]) -> None: ...

    async def stream(self, run: TurnSource, answer: Answer) -> None: ...

    async def fail(self, failure: Failure, run: TurnSource | None) -> None: ...

    async def give_up(self) -> None: ...


class Exchange:
    """The life of one request. It owns its run: when the client goes, so does the run."""

    def __init__(
        self,
        shared: Shared,
        name: str,
        scope: Scope,
        sink: Sink,
        seed: str = "",
        claim: Claim | None = None,
        origin: "Exchange | None" = None,
    ) -> None:
        """Begin an exchange, or continue the turn of `origin`, which has begun its run, with another sink.

        `seed` is what ids are made from, and `claim` holds the bytes, where these are known already.
        """
        self.shared = shared
        self.scope = scope
        self.sink = sink
        self.headers: dict[bytes, bytes] = origin.headers if origin is not None else dict(scope["headers"])
        self.trace: TurnTrace | None
        self.facts: dict[str, Any]
        """What the log will say of the turn."""
        if origin is not None:
            self.seed, self.facts, self.trace = origin.seed, origin.facts, origin.trace
            self._began, self._owner, self._run = origin._began, origin._owner, origin._run
        else:
            ids = random_hex.take(48)
            self.seed, request_id = seed or ids[:24], f"req_{ids[24:]}"
            sink.headers += ((b"x-request-id", request_id.encode()), *shared.guard.cors(self.headers))
            self.facts = {"turn": self.seed, "request_id": request_id, "dialect": name}
            self.trace = shared.watch.begin(self.seed, self.headers, _path(scope)) if shared.watch is not None else None
            self._began, self._owner, self._run = time.perf_counter(), "", None
        self.is_reported = True
        sink.trace = self.trace
        self.claim = claim or Claim(shared.flight, PROTOCOLS[name].client.overload_status)
        self.size = 0
        """Bytes of the body."""
        self.closing: list[Callable[[], Awaitable[None]]] = []
        """What is to be done when the exchange is over."""
        self._answer: Answer | None = None
        self._failure: Failure | None = None
        self._collected = 0  # bytes of the reply
        self._owns_turn = True

    async def serve(self, operation: "Operation", receive: Receive) -> None:
        """Have the request answered, if only with what went wrong."""
        metrics = self.shared.metrics
        metrics.running += 1
        try:
            try:
                await operation(self, receive)
            except ToolwireError as error:
                await self._fail(error.failure)
            except asyncio.CancelledError:
                # By the end of a drain, or to cancel a background run; having said so, it ends as if by itself.
                await self._fail(self.sink.interruption)
            except ClientGone:
                raise
            except RecursionError:  # of what a body holds, wherever that is looked at
                await self._fail(BadRequest("The request is nested too deeply.", code="invalid_json").failure)
            except Exception as error:  # noqa: BLE001 - the process must survive whatever this was
                self.shared.log.crashed(self.seed, error)
                await self._fail(InternalError().failure)
        except ClientGone:
            self.sink.status = 499
        except Exception as error:  # noqa: BLE001 - not even the failure could be sent
            self.shared.log.crashed(self.seed, error)
            with suppress(ClientGone):
                await self.sink.give_up()
        finally:
            try:
                await self._end()
            finally:
                await self.close()

    async def _end(self) -> None:
        """The answer is on its way: end the run, give back what was held, and report the turn."""
        self.shared.metrics.running -= 1
        if not self._owns_turn:
            return
        if self._run is not None:
            await self._run.finish()
        self.claim.release()
        if self.is_reported:
            self._report()
        elif self.trace is not None and self.shared.watch is not None:
            self.shared.watch.forget(self.trace)
        if self.sink.status == 499 and self._answer is not None:
            await self._answer.cancel()

    async def close(self) -> None:
        """Do what is to be done when the exchange is over, now."""
        closing, self.closing = self.closing, []
        for close in closing:
            await close()

    def enter(self) -> Caller:
        """Who asks, if they may."""
        caller: Caller = self.scope.get(CALLER) or self.shared.keys.check(
            self.headers, self.scope.get("query_string", b"")
        )
        self.facts["key"] = caller.name
        self._owner = caller.owner
        if self.is_reported and self.trace is not None and self.shared.watch is not None:
            if FACTS in self.scope:
                self.facts |= self.scope[FACTS]
                self.sink.headers.append((b"x-toolwire-turn", self.seed.encode()))
            self.shared.watch.enter(self.trace, self.facts)
        return caller

    async def read_body(self, receive: Receive) -> bytes:
        body = await read_body(self.headers, receive, self.shared.bounds, self.claim)
        self._note_body(body)
        return body

    def take_body(self, body: bytes) -> None:
        """Account for a body that was not read from this exchange's connection."""
        self.claim.grow(len(body))
        self._note_body(body)

    def _note_body(self, body: bytes) -> None:
        self.size = len(body)
        if self.trace is not None:
            self.trace.asked(body)

    async def pause(self) -> None:
        """Let others have their turn between two parts of the work on a large request."""
        if self.size >= LARGE:
            await give_way()

    def begin(
        self, request: Request, caller: Asker, *policies: Callable[[], Policy], guard: TurnGuard | None = None
    ) -> TurnSource:
        """The run of this request. The given policies come after all others, new ones for each attempt.

        `guard` is asked before each request to a backend and each tool, where another process could take over the turn.
        """
        shared = self.shared
        if self.size >= LARGE:
            check_parts(request, shared.bounds.entries)
        rules = self.rules()
        mode = output_mode(rules, request)
        self.sink.headers.append((b"x-proxy-output-mode", mode.encode()))
        self.facts |= {"model": request.model, "output_mode": mode}
        if self.trace is not None:
            self.trace.results = results_of(request.entries)
        shared.log.asked(self.facts, request)
        turns, claim = count(), self.claim

        def begin(asked: Request) -> Run:
            turn = next(turns)  # of the model; each makes ids of its own
            if self.trace is not None:
                self.trace.round = turn
            seed = f"{self.seed}{turn:02x}" if turn else self.seed
            options = Options(rules, seed, policies, guard=guard, trace=self.trace)
            job = prepare(shared.engine, asked, caller, options)
            return Run(job, shared.loop, Alarm(shared.ticker), claim.grow)

        tools = shared.tools
        if tools is not None and (mode != "openai-json" or not tools.can_join(request)):
            tools = None
        search = self._search(request) if request.hosted_tools and mode == "openai-json" else None
        if tools is None and search is None:
            self._run = begin(request)
            return self._run
        self.facts |= {"gateway_calls": 0, "gateway_calls_failed": 0}
        count_call = self._count_gateway_call
        if tools is not None:
            confirm = guard.begin_action if guard is not None else None
            self._run = tools.run(caller.owner, request, begin, count_call, confirm, search)
        elif search is not None:
            from toolwire.gateway.tools.run import run_with_search  # noqa: PLC0415

            self._run = run_with_search(search, shared.settings, begin, count_call)
        assert self._run is not None
        return self._run

    def _search(self, request: Request) -> "Search | None":
        """The searches for tools that are run here, because the first backend of the model does not know them."""
        if not any(tool.searches for tool in request.hosted_tools):
            return None
        from toolwire.gateway.tools.search import adopt_searches  # noqa: PLC0415 - few requests need it

        route, model = self.shared.engine.router.all_for(request.model)[0]
        return adopt_searches(request, route, self.shared.engine.reasoning.refused(route.backend.name, model))

    def _count_gateway_call(self, tool: str, outcome: str) -> None:
        self.facts["gateway_calls"] += 1
        self.facts["gateway_calls_failed"] += outcome != "ok"
        self.shared.metrics.gateway_call(tool, outcome)

    async def deliver(self, run: TurnSource, answer: Answer, receive: Receive) -> None:
        """Send the run's turn to the client, as long as the client is there."""
        self._answer = answer
        with UntilClientGone(receive, self.shared):
            if answer.request.stream:
                await self.sink.stream(run, answer)
            else:
                await self.sink.plain(run, answer, self._hold)

    def hand_over(self, sink: Sink, *, keeps_locks: bool) -> "Exchange":
        """Return an exchange that continues the turn with another sink, owned by the application.

        It has the run, the bytes and the report from here on, and with `keeps_locks` what is to be closed at the end.
        This one only sends its own answer.
        """
        self.facts["background"] = True
        self._owns_turn = False
        self.sink.trace = None
        other = Exchange(self.shared, "", self.scope, sink, claim=self.claim, origin=self)
        if keeps_locks:
            other.closing, self.closing = self.closing, []
        return other

    def _hold(self, size: int) -> None:
        """So many bytes more of a reply that is collected."""
        self.claim.grow(size)
        self._collected += size
        if self._collected > self.shared.max_reply:
            raise ReplyTooLarge(self.shared.max_reply)

    def rules(self) -> ToolRules:
        """The rules of the settings, changed by the path's prefix and the request's headers."""
        rules = self.shared.settings.tools
        if _FLAGS.keys().isdisjoint(self.headers) and OUTPUT_MODE not in self.scope:
            return rules
        given = {name: self.header(key) for key, name in _FLAGS.items() if key in self.headers}
        if OUTPUT_MODE in self.scope:
            given[MODE_HEADER] = self.scope[OUTPUT_MODE]
        try:
            return with_flags(rules, HEADERS, given)
        except FlagError as error:
            raise BadRequest(str(error), error.name) from None

    @property
    def head(self) -> RequestHead:
        """What the client sent beside the body."""
        return RequestHead(self.headers, self.scope.get("path_params", {}), self.scope.get("query_string", b""))

    def header(self, name: bytes) -> str:
        return self.headers[name].decode("latin-1") if name in self.headers else ""

    async def _fail(self, failure: Failure) -> None:
        self._failure = failure
        if self._owns_turn:
            self.facts["error"] = failure.code or "bad_request"
        await self.sink.fail(failure, self._run if self._owns_turn else None)

    def _report(self) -> None:
        run, sink = self._run, self.sink
        seconds = time.perf_counter() - self._began
        stats = run.assembly.stats if run is not None else TurnStats()
        self.facts |= sink.facts
        if isinstance(stats.ending, TurnFailed):
            self.facts.setdefault("error", stats.ending.failure.code)
        id = sink.upstream_id
        if run is not None:
            self.facts["backend"] = run.backend
            if not sink.committed:
                id = upstream_request_id(run.headers)
        if id:
            self.facts["upstream_request_id"] = id
        self.facts["stream"] = self._answer is not None and self._answer.request.stream
        self.shared.log.turn(self.facts, stats, seconds, self._failure)
        self.shared.metrics.turn(self.facts, stats, seconds)
        if self.trace is not None and self.shared.watch is not None:
            self.shared.watch.end(self.trace, self.facts, stats, seconds, self._owner)


def _path(scope: Scope) -> str:
    """The path that was asked, with the prefix that sets the output mode."""
    path = scope.get("path", "")
    return f"/{scope[OUTPUT_MODE]}{path}" if OUTPUT_MODE in scope else path


Operation: TypeAlias = Callable[[Exchange, Receive], Awaitable[None]]
"""What an endpoint does with an exchange."""


class Endpoint:
    """An operation as an ASGI application."""

    def __init__(self, shared: Callable[[], Shared], name: str, operation: Operation) -> None:
        self._shared = shared
        self._name = name
        self._encode_error = PROTOCOLS[name].client.module.encode_error
        self._operation = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        shared = self._shared()
        sink = HttpSink(send, shared.pace, shared.loop, self._encode_error)
        await Exchange(shared, self._name, scope, sink).serve(self._operation, receive)


def turn_of(dialect: DialectModule, decoding: Decoding) -> Operation:
    """The operation of a dialect in which a body is the whole request."""

    async def turn(exchange: Exchange, receive: Receive) -> None:
        caller = exchange.enter()
        body = await exchange.read_body(receive)
        request = await stepped(decoding(body, exchange.shared.bounds, exchange.head), len(body))
        await exchange.shared.memory.load(caller.owner, request.entries)
        if not request.carries_signatures:
            request = exchange.shared.engine.reasoning.restore_reasoning(caller.owner, request)
        await exchange.pause()
        run = exchange.begin(request, caller)
        await exchange.pause()
        await exchange.deliver(run, Answer(dialect, request, exchange.seed, exchange.shared.memory), receive)

    return turn


class UntilClientGone:
    """Runs a block and breaks it off when the client goes away. A quick block is over before the watch begins."""

    def __init__(self, receive: Receive, shared: Shared) -> None:
        self._receive = receive
        self._shared = shared
        task = asyncio.current_task(shared.loop)
        assert task is not None
        self._owner = task
        self._gone = False
        self._watch: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._shared.ticker.join(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._shared.ticker.leave(self)
        if self._watch is not None:
            self._watch.cancel()
        if self._gone and kind is asyncio.CancelledError and self._owner.uncancel() == 0:
            raise ClientGone

    def tick(self, now: float) -> None:
        """The first tick that finds the block still running begins the watch."""
        self._shared.ticker.leave(self)
        self._watch = self._shared.loop.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._owner.cancel()
