"""Endpoints: an operation on an exchange as an ASGI application."""

from starlette.types import Receive, Scope, Send

from toolwire.core.request import RequestHead
from toolwire.gateway.answer import Answer
from toolwire.gateway.body import run_in_steps
from toolwire.gateway.exchange import Exchange, Operation
from toolwire.gateway.http import OUTPUT_MODE, random_hex
from toolwire.gateway.memory_budget import Reservation
from toolwire.gateway.shared import Shared
from toolwire.gateway.sinks import HttpSink
from toolwire.gateway.start_run import start_run
from toolwire.protocols import PROTOCOLS, DecodeSteps, DialectModule
from toolwire.turns.observers import ObservedTurn, TurnReport

REPLAY_OF = "toolwire.replay_of"
"""Scope key for the turn that a request of the console replays."""


def open_turn(shared: Shared, name: str, scope: Scope, seed: str = "", *, is_reported: bool = True) -> ObservedTurn:
    """Begin the turn of a request in the dialect `name`. Its ids are made from the seed, by default a random one."""
    ids = random_hex.take(48)
    report = TurnReport(seed or ids[:24], f"req_{ids[24:]}", name)
    head = RequestHead(dict(scope["headers"]), scope.get("path_params", {}), scope.get("query_string", b""))
    if not is_reported:
        return ObservedTurn(shared.observers, report, head, is_reported=False)
    if REPLAY_OF in scope:
        report.replay_of = scope[REPLAY_OF]
    path = scope.get("path", "")
    return ObservedTurn.begin(
        shared.observers, report, head, f"/{scope[OUTPUT_MODE]}{path}" if OUTPUT_MODE in scope else path
    )


class Endpoint:
    """An operation as an ASGI application. With `is_turn` false its requests are served but not reported."""

    def __init__(self, shared: Shared, name: str, operation: Operation, *, is_turn: bool = True) -> None:
        self._shared = shared
        self._name = name
        self._dialect = PROTOCOLS[name].client
        self._operation = operation
        self._is_turn = is_turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        shared = self._shared
        turn = open_turn(shared, self._name, scope, is_reported=self._is_turn)
        sink = HttpSink(send, turn, shared.pace, shared.ticker.loop, self._dialect.module.encode_error)
        sink.headers.append((b"x-request-id", turn.report.request_id.encode()))
        sink.headers += shared.origin_check.make_cors_headers(turn.head.headers)
        if turn.report.replay_of:
            sink.headers.append((b"x-toolwire-turn", turn.report.turn.encode()))
        reservation = Reservation(shared.memory_budget, self._dialect.overload_status)
        await Exchange(shared, turn, scope, sink, reservation).serve(self._operation, receive)


def make_turn_operation(dialect: DialectModule, decode_steps: DecodeSteps) -> Operation:
    """The operation of a stateless dialect, in which a body is the whole request."""

    async def serve_turn(exchange: Exchange, receive: Receive) -> None:
        shared, caller = exchange.shared, exchange.enter()
        body = await exchange.read_body(receive)
        request = await run_in_steps(decode_steps(body, shared.bounds, exchange.turn.head), len(body))
        await shared.memory.load(caller.owner, request.entries)
        if not request.carries_signatures:
            request = shared.engine.reasoning.restore_reasoning(caller.owner, request)
        await exchange.pause()
        run = start_run(exchange, request, caller)
        await exchange.pause()
        await exchange.deliver(run, Answer(dialect, request, exchange.seed, shared.memory), receive)

    return serve_turn
