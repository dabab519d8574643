"""Starts the run of a request under the rules of the settings and the request, with the gateway's own tools."""

from collections.abc import Callable, Mapping
from itertools import count

from toolwire.assembly import ToolRules, choose_output_mode
from toolwire.config.flags import HEADERS, MODE_HEADER, FlagError, with_flags
from toolwire.core.bounds import LARGE_BODY_BYTES, check_parts
from toolwire.core.errors import BadRequest
from toolwire.core.policies import Policy
from toolwire.core.request import Request
from toolwire.gateway.exchange import Exchange
from toolwire.gateway.http import OUTPUT_MODE
from toolwire.gateway.keys import Caller
from toolwire.turns.attempt import TurnGuard
from toolwire.turns.prepare import Options, prepare
from toolwire.turns.run import Run
from toolwire.turns.source import TurnSource
from toolwire.upstream.scheduling import Alarm

_FLAGS = {name.encode(): name for name in HEADERS}


def start_run(
    exchange: Exchange,
    request: Request,
    caller: Caller,
    *policies: Callable[[], Policy],
    guard: TurnGuard | None = None,
) -> TurnSource:
    """Start the run of this request; the exchange ends it. `policies` make the last policies of each attempt.

    `guard` confirms each request to a backend and each tool of a turn that another process may take over.
    Raises `BadRequest`, which names the field.
    """
    shared, turn, reserve = exchange.shared, exchange.turn, exchange.reservation.grow
    if exchange.size >= LARGE_BODY_BYTES:
        check_parts(request, shared.bounds.entries)
    if caller.meter is not None:
        exchange.admit(caller.meter, request)
    rules = find_rules(exchange)
    mode = choose_output_mode(rules, request)
    exchange.sink.headers.append((b"x-proxy-output-mode", mode.encode()))
    turn.report.model, turn.report.output_mode = request.model, mode
    for observer in turn.observers:
        observer.ask(turn.report, request)
    rounds = count()

    def begin(asked: Request) -> Run:
        round = next(rounds)  # the ids of each turn of the model differ
        seed = f"{exchange.seed}{round:02x}" if round else exchange.seed
        options = Options(rules, seed, policies, guard=guard, observers=turn.taps, round=round)
        return Run(prepare(shared.engine, asked, caller, options), shared.ticker.loop, Alarm(shared.ticker), reserve)

    if mode != "openai-json":
        return exchange.own(begin(request))
    tools = shared.tools if shared.tools is not None and shared.tools.can_join(request) else None
    search = None
    if any(tool.searches for tool in request.hosted_tools):
        from toolwire.gateway.tools.search import adopt_searches  # noqa: PLC0415 - few requests need it

        route, model = shared.engine.router.find(request.model, caller.grant)
        search = adopt_searches(request, route, shared.engine.reasoning.list_refused(route.backend.name, model))
    if tools is not None:
        count_call = _make_call_counter(exchange)
        confirm = guard.begin_action if guard is not None else None
        return exchange.own(tools.run(caller.owner, request, begin, count_call, confirm, search))
    if search is not None:
        from toolwire.gateway.tools.run import run_with_search  # noqa: PLC0415

        return exchange.own(run_with_search(search, shared.settings, begin, _make_call_counter(exchange)))
    return exchange.own(begin(request))


def _make_call_counter(exchange: Exchange) -> Callable[[str, str], None]:
    """A function that counts the calls of gateway tools, with their outcomes, in the report of the turn."""
    turn, calls, failed = exchange.turn, count(1), count(1)
    turn.report.gateway_calls = turn.report.gateway_calls_failed = 0

    def count_call(tool: str, outcome: str) -> None:
        turn.report.gateway_calls = next(calls)
        if outcome != "ok":
            turn.report.gateway_calls_failed = next(failed)
        for observer in turn.observers:
            observer.call(tool, outcome)

    return count_call


def find_rules(exchange: Exchange) -> ToolRules:
    """The rules of the settings, overridden by the headers and by the prefix of the path. Raises `BadRequest`."""
    prefix = exchange.scope.get(OUTPUT_MODE, "")
    return override_rules(exchange.shared.settings.tools, exchange.turn.head.headers, prefix)


def override_rules(rules: ToolRules, headers: Mapping[bytes, bytes], prefix: str) -> ToolRules:
    """These rules, overridden by the headers of a request and by the prefix of its path. Raises `BadRequest`."""
    if _FLAGS.keys().isdisjoint(headers) and not prefix:
        return rules
    given = {name: headers[key].decode("latin-1") for key, name in _FLAGS.items() if key in headers}
    if prefix:
        given[MODE_HEADER] = prefix
    try:
        return with_flags(rules, HEADERS, given)
    except FlagError as error:
        raise BadRequest(str(error), error.name) from None
