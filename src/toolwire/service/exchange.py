"""One request of one client, from its body to the last byte of the answer: the endpoints of all dialects.

A plain ASGI callable: it writes to `send` itself. This is the one place where errors are caught.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

import msgspec
from starlette.types import Receive, Scope, Send

from toolwire.assembly import ToolRules
from toolwire.core.bounds import LARGE, Bounds, Steps, check_parts
from toolwire.core.collect import Turn
from toolwire.core.errors import BadRequest, Failure, InternalError, ReplyTooLarge, ToolwireError
from toolwire.core.events import TurnFailed
from toolwire.core.notes import Tally
from toolwire.core.policies import Policy
from toolwire.core.request import Request
from toolwire.runs.flags import HEADERS, MODE_HEADER, FlagError, with_flags
from toolwire.runs.plan import Planning
from toolwire.runs.routes import Router
from toolwire.runs.run import AnyRun, Plan, Run
from toolwire.runs.settings import Settings
from toolwire.runs.thoughts import Thoughts
from toolwire.service.body import read_body, stepped
from toolwire.service.delivery import Delivery, Encoder, Pace, upstream_request_id
from toolwire.service.flight import OVERLOADED, Claim, Flight
from toolwire.service.guard import Guard
from toolwire.service.http import ClientGone
from toolwire.service.ids import random_hex
from toolwire.service.keys import Caller, Keys
from toolwire.service.log import Log
from toolwire.service.metrics import Metrics
from toolwire.transport.alarm import Alarm, Ticker
from toolwire.transport.fairness import give_way
from toolwire.transport.store import Store

_FLAGS = tuple((name.encode(), name) for name in HEADERS)


class DialectModule(Protocol):
    """What every dialect module exports."""

    @property
    def StreamEncoder(self) -> Callable[[Request, str, int, Tally], Encoder]: ...  # noqa: N802

    def encode_turn(self, turn: Turn, request: Request, id: str, created: int) -> bytes: ...

    def encode_error(self, failure: Failure) -> bytes: ...

    def new_id(self, seed: str) -> str: ...


class StatelessDialect(DialectModule, Protocol):
    """A dialect in which a body is the whole request."""

    def decoding(self, body: bytes, bounds: Bounds) -> Steps[Request]: ...


class OwnToolbox(Protocol):
    """Tools that the gateway runs itself."""

    def may_join(self, request: Request) -> bool: ...

    def run(
        self, owner: str, request: Request, begin: Callable[[Request], Run], ran: Callable[[str, str], None]
    ) -> AnyRun:
        """A run with these tools. `ran` hears the name and the outcome of each call of them."""
        ...


class Shared(msgspec.Struct, frozen=True):
    """What all exchanges share."""

    settings: Settings
    router: Router
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
    thoughts: Thoughts
    own: OwnToolbox | None = None
    max_reply: int = 64_000_000


class Endpoint:
    """A dialect's main endpoint as an ASGI application."""

    def __init__(self, shared: Callable[[], Shared], name: str, dialect: StatelessDialect) -> None:
        self._shared = shared
        self._name = name
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = StatelessExchange(self._shared(), self._name, self._dialect, scope, send)
        await exchange.run(receive)


class Bound:
    """A dialect bound to one request: what a delivery writes with."""

    def __init__(self, dialect: DialectModule, seed: str) -> None:
        self._dialect = dialect
        self.id = dialect.new_id(seed)
        self.created = int(time.time())
        self.request: Request | None = None
        self.run: AnyRun | None = None
        self._encoder: Encoder | None = None

    def stream(self) -> Encoder:
        if self._encoder is None:
            assert self.request is not None
            assert self.run is not None
            tally = self.run.assembly.tally
            self._encoder = self._dialect.StreamEncoder(self.request, self.id, self.created, tally)
        return self._encoder

    def turn(self, turn: Turn) -> bytes:
        assert self.request is not None
        return self._dialect.encode_turn(turn, self.request, self.id, self.created)

    def error(self, failure: Failure) -> bytes:
        return self._dialect.encode_error(failure)

    def check(self) -> None:
        pass

    async def settle(self, pieces: Sequence[bytes]) -> Sequence[bytes]:
        return pieces


class Exchange:
    """The life of one request. It owns its run: when the client goes, so does the run."""

    def __init__(self, shared: Shared, name: str, dialect: DialectModule, scope: Scope, send: Send) -> None:
        self._shared = shared
        self._dialect = dialect
        self._scope = scope
        self._asked: dict[bytes, bytes] = dict(scope["headers"])
        ids = random_hex.take(48)
        self._seed, request_id = ids[:24], f"req_{ids[24:]}"
        self._began = time.perf_counter()
        self._bound = self._bind(self._seed)
        self._delivery = self._deliver_by(send)
        self._delivery.headers += ((b"x-request-id", request_id.encode()), *shared.guard.cors(self._asked))
        self._facts: dict[str, Any] = {"turn": self._seed, "request_id": request_id, "dialect": name}
        self._claim = Claim(shared.flight, OVERLOADED.get(name, 503))
        self._size = 0  # bytes of the body
        self._collected = 0  # bytes of the reply

    def _bind(self, seed: str) -> Bound:
        return Bound(self._dialect, seed)

    def _deliver_by(self, send: Send) -> Delivery:
        return Delivery(self._bound, send, self._shared.pace, self._shared.loop)

    async def run(self, receive: Receive) -> None:
        try:
            await self._serve(receive)
        except ClientGone:
            self._delivery.status = 499
        except Exception as error:  # noqa: BLE001 - not even the failure could be told
            self._shared.log.crashed(self._seed, error)
            with suppress(ClientGone):
                await self._delivery.give_up()
        finally:
            if self._bound.run is not None:
                await self._bound.run.finish()
            self._claim.release()
            self._report()

    async def _serve(self, receive: Receive) -> None:
        """Answer the request, if only with what went wrong."""
        try:
            await self._exchange(receive)
        except ToolwireError as error:
            await self._fail(error.failure)
        except asyncio.CancelledError:
            # Only the end of a drain cancels an exchange; having said so, it ends as if by itself.
            await self._fail(Failure(503, "shutting_down", "The gateway is shutting down."))
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - the process must survive whatever this was
            self._shared.log.crashed(self._seed, error)
            await self._fail(InternalError().failure)

    async def _exchange(self, receive: Receive) -> None:
        """Read the request and deliver its run."""
        raise NotImplementedError

    async def _read_body(self, receive: Receive) -> bytes:
        body = await read_body(self._asked, receive, self._shared.bounds, self._claim)
        self._size = len(body)
        return body

    async def _pause(self) -> None:
        """Let others have their turn between two parts of the work on a large request."""
        if self._size >= LARGE:
            await give_way()

    def _enter(self) -> Caller:
        caller = self._shared.keys.check(self._asked)
        self._facts["key"] = caller.name
        return caller

    def _begin(self, request: Request, caller: Caller, *policies: Callable[[], Policy]) -> AnyRun:
        """The run of this request. The given policies come after all others, new ones for each attempt."""
        planning = self._planning(request, caller, policies)
        own = self._shared.own
        if own is None or planning.mode != "openai-json" or not own.may_join(request):
            run: AnyRun = self._run(planning.plan())
        else:
            rounds = count()

            def begin(about: Request) -> Run:
                return self._run(planning.about(about, next(rounds)).plan())

            self._facts |= {"own_calls": 0, "own_calls_failed": 0}
            run = own.run(caller.owner, request, begin, self._count_own)
        self._bound.run = run
        return run

    def _count_own(self, tool: str, outcome: str) -> None:
        self._facts["own_calls"] += 1
        self._facts["own_calls_failed"] += outcome != "ok"
        self._shared.metrics.own_call(tool, outcome)

    def _run(self, plan: Plan) -> Run:
        task = asyncio.current_task(self._shared.loop)
        assert task is not None
        return Run(plan, self._shared.loop, Alarm(self._shared.ticker, task), self._claim.grow)

    async def _deliver(self, run: AnyRun, receive: Receive) -> None:
        task = asyncio.current_task(self._shared.loop)
        assert task is not None
        assert self._bound.request is not None
        with UntilClientGone(receive, task, self._shared):
            if self._bound.request.stream:
                await self._delivery.stream(run)
            else:
                await self._delivery.plain(run, self._hold)

    def _hold(self, size: int) -> None:
        """So many bytes more of a reply that is collected."""
        self._claim.grow(size)
        self._collected += size
        if self._collected > self._shared.max_reply:
            raise ReplyTooLarge(self._shared.max_reply)

    def _plan(self, request: Request, caller: Caller, policies: Sequence[Callable[[], Policy]] = ()) -> Plan:
        return self._planning(request, caller, policies).plan()

    def _planning(self, request: Request, caller: Caller, policies: Sequence[Callable[[], Policy]]) -> Planning:
        rules = self._rules(self._shared.settings.tools)
        self._bound.request = request
        shared = self._shared
        if self._size >= LARGE:
            check_parts(request, shared.bounds.entries)
        planning = Planning(
            shared.settings, shared.router, shared.thoughts, request, rules, self._seed, caller, policies, self._facts
        )
        mode = planning.mode
        self._delivery.headers.append((b"x-proxy-output-mode", mode.encode()))
        self._facts |= {"model": request.model, "output_mode": mode}
        self._shared.log.asked(self._facts, request)
        return planning

    def _rules(self, rules: ToolRules) -> ToolRules:
        """The rules of the settings, changed by the path's prefix and the request's headers."""
        given = {name: self._header(key) for key, name in _FLAGS if key in self._asked}
        if "toolwire.output_mode" in self._scope:
            given[MODE_HEADER] = self._scope["toolwire.output_mode"]
        try:
            return with_flags(rules, HEADERS, given)
        except FlagError as error:
            raise BadRequest(str(error), error.name) from None

    def _header(self, name: bytes) -> str:
        return self._asked[name].decode("latin-1") if name in self._asked else ""

    async def _fail(self, failure: Failure) -> None:
        """Say what went wrong: with a status while that is possible, else inside the stream."""
        self._facts["error"] = failure.code or "bad_request"
        if not self._delivery.committed:
            await self._delivery.refuse(failure, self._bound.run)
        elif self._delivery.ended:
            pass
        elif self._bound.request is not None and self._bound.request.stream and self._bound.run is not None:
            await self._delivery.break_off(failure)

    def _report(self) -> None:
        run = self._bound.run
        seconds = time.perf_counter() - self._began
        tally = run.assembly.tally if run is not None else Tally()
        self._facts["status"] = self._delivery.status
        if isinstance(tally.ending, TurnFailed):
            self._facts.setdefault("error", tally.ending.failure.code)
        if run is not None and (id := upstream_request_id(run.headers)):
            self._facts["upstream_request_id"] = id
        self._facts["stream"] = bool(self._bound.request and self._bound.request.stream)
        self._shared.log.turn(self._facts, tally, seconds)
        self._shared.metrics.turn(self._facts, tally, seconds)


class StatelessExchange(Exchange):
    """An exchange whose body is the whole request."""

    def __init__(self, shared: Shared, name: str, dialect: StatelessDialect, scope: Scope, send: Send) -> None:
        self._decoding = dialect.decoding
        super().__init__(shared, name, dialect, scope, send)

    async def _exchange(self, receive: Receive) -> None:
        caller = self._enter()
        body = await self._read_body(receive)
        request = await stepped(self._decoding(body, self._shared.bounds), len(body))
        if b"anthropic-beta" in self._asked:
            request = msgspec.structs.replace(request, betas=self._header(b"anthropic-beta"))
        if not request.carries_seals:
            request = self._shared.thoughts.restored(caller.owner, request)
        await self._pause()
        run = self._begin(request, caller)
        await self._pause()
        await self._deliver(run, receive)


class UntilClientGone:
    """Runs a block and breaks it off when the client goes away. A quick block is over before the watch begins."""

    def __init__(self, receive: Receive, owner: "asyncio.Task[Any]", shared: Shared) -> None:
        self._receive = receive
        self._owner = owner
        self._shared = shared
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
