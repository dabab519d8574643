"""Runs a check: from the first request to the report."""

import time
from collections.abc import Callable, Sequence

import msgspec

from toolwire.check.apis import APIS, Api, ProbeRequest
from toolwire.check.endpoint import (
    MIN_LIVE_EVENTS,
    MIN_LIVE_SECONDS,
    BudgetSpent,
    Endpoint,
    GivenUp,
    Target,
    Unreachable,
)
from toolwire.check.exchange import Exchange
from toolwire.check.probes import PROBES
from toolwire.check.probes.probe import HELLO, TURNS, Probe
from toolwire.check.rules import RULES, select_rules
from toolwire.check.sessions import ProbeSession, describe_failure
from toolwire.check.turns.responses_fields import find_echo_fields
from toolwire.check.turns.rule import Rule
from toolwire.check.verdicts import Report, Verdict, Verdicts, order_by_cause
from toolwire.core.events import Dialect


async def check(
    target: Target,
    apis: Sequence[str],
    only: Sequence[str] = (),
    on_progress: Callable[[str, int, int], None] = lambda _what, _done, _of: None,
) -> Report:
    """Check an endpoint. Raises `Unreachable`, and `ValueError` if no rule is left to test.

    `on_progress` is called with the next probe, the number of probes done and the total number.
    """
    chosen = choose_rules(only)
    wanted = [APIS[name] for name in apis if any(rule.id in chosen for rule in select_rules(APIS[name].name))]
    if not wanted:
        raise ValueError(f"{', '.join(only)} is no rule for {', '.join(apis)}")
    has_turn_rules = any(RULES[rule].on != "conversation" for rule in chosen)
    probes = [each for each in PROBES if chosen & {*each.rules} or (has_turn_rules and TURNS in each.rules)]
    report = Report(target.base, target.model, [], time.time())
    verdicts = Verdicts()
    async with Endpoint(target, lambda exchange: count_exchange(verdicts, exchange)) as endpoint:
        try:
            if not target.model:
                report.model = await _find_model(endpoint, wanted)
                endpoint.target = msgspec.structs.replace(target, model=report.model)
            await _probe_all(endpoint, wanted, probes, verdicts, report, on_progress)
        except BudgetSpent as spent:
            report.spent = True
            report.ended = report.ended or {api.name: str(spent) for api in wanted}
        report.exchanges = endpoint.exchanges
    if not report.apis:
        raise Unreachable(_explain_no_api(report))
    if report.spent:
        report.apis = [api.name for api in wanted if api.name not in report.absent]
    report.seconds = time.time() - report.began
    report.verdicts = complete_verdicts(report, verdicts, chosen)
    return report


async def _probe_all(
    endpoint: Endpoint,
    apis: Sequence[Api],
    probes: Sequence[Probe],
    verdicts: Verdicts,
    report: Report,
    on_progress: Callable[[str, int, int], None],
) -> None:
    for number, api in enumerate(apis):
        try:
            session = ProbeSession(endpoint, api, verdicts)
            reason = await _explain_absence(session)
            if reason:
                report.absent[api.name] = reason
                continue
            report.apis.append(api.name)
            for position, probe in enumerate(probes, number * len(probes)):
                on_progress(f"{api.name} {probe.name}", position, len(apis) * len(probes))
                endpoint.probe = probe.name
                if probe.is_for(api.name):
                    await probe.run(session)
        except BudgetSpent as spent:
            report.ended.update({each.name: str(spent) for each in apis[number:]})
            raise
        except GivenUp as error:
            reasons = report.ended if api.name in report.apis else report.absent
            reasons[api.name] = str(error)


async def _explain_absence(session: ProbeSession) -> str:
    """Why an API cannot be checked; empty if it can. A server without streaming can still be checked."""
    session.endpoint.probe = "there"
    first = answer = await session.ask_once(ProbeRequest((HELLO,)))
    if answer.status == 400 and b"max_completion_tokens" in answer.body:  # the newer models of OpenAI
        session.endpoint.renamed["max_tokens"] = "max_completion_tokens"
        first = answer = await session.ask_once(ProbeRequest((HELLO,)))
    if answer.status in (400, 422):
        answer = await session.ask_once(ProbeRequest((HELLO,), stream=False))
    if answer.status == 200 and "html" in answer.content_type:
        return f"the answer is a web page, {answer.content_type}"
    if answer.status == 403:
        return session.endpoint.explain_refusal(answer)
    return "" if answer.status == 200 else describe_failure(first)


def _explain_no_api(report: Report) -> str:
    """Why no API could be checked; one reason if it is the same for all."""
    reason = {**report.absent, **report.ended}
    first = next(iter(reason.values()))
    if not any(each.status for each in report.exchanges):
        return f"{report.target} cannot be reached: {first}"
    if all(each.status in (401, 403) for each in report.exchanges if each.facts is not None):
        return f"{report.target} refuses access: {first}"
    with_model = f" with the model {report.model!r}" if report.model else ""
    if len(set(reason.values())) == 1:
        return f"{report.target} cannot be checked{with_model}: {first}"
    return "; ".join(f"{api}{with_model}: {each}" for api, each in reason.items())


async def _find_model(endpoint: Endpoint, apis: Sequence[Api]) -> str:
    endpoint.probe = "there"
    answers: list[Exchange] = []
    for api in apis:
        answer = await endpoint.fetch(api, "/models")
        if not answer.status:
            raise Unreachable(f"{endpoint.target.base} cannot be reached: {answer.failure}")
        if answer.failure:
            raise Unreachable(f"{endpoint.target.base} cannot be checked: {answer.failure}")
        models = [name for name in api.list_models(answer.fields) if name]
        if models:
            return "demo" if "demo" in models else models[0]
        answers.append(answer)
    if all(answer.status in (401, 403) for answer in answers):
        raise Unreachable(f"{endpoint.target.base} refuses access: {endpoint.explain_refusal(answers[0])}")
    first = answers[0]
    page = "a web page, " if "html" in first.content_type else ""
    reason = f"the answer is {page}{first.content_type or 'nothing'}"
    if first.status != 200:
        reason = describe_failure(first)
    raise Unreachable(f"the endpoint lists no models: name one with --model ({reason})")


def choose_rules(only: Sequence[str]) -> set[str]:
    """The rules with these ids or of these areas. Raises `ValueError` for an unknown one."""
    if not only:
        return set(RULES)
    chosen: set[str] = set()
    for name in only:
        found = {rule.id for rule in RULES.values() if name in (rule.id, rule.area)}
        if not found:
            raise ValueError(f"there is no rule {name!r}")
        chosen |= found
    return chosen


def count_exchange(verdicts: Verdicts, exchange: Exchange) -> None:
    """Add an exchange to the verdicts: the rules it tested and the rules it broke."""
    for finding in exchange.findings:
        verdicts[exchange.api, finding.rule].broken.append((finding, exchange.number))
    broken = {finding.rule for finding in exchange.findings}
    is_whole = not exchange.failure and exchange.status == 200 and bool(exchange.received or exchange.turn.is_over)
    for rule in select_rules(exchange.api):
        if rule.id in broken or (is_whole and _can_break(rule, exchange)):
            verdicts[exchange.api, rule.id].seen += 1


_CONDITIONS: dict[str, Callable[[Exchange], object]] = {
    "call": lambda exchange: exchange.turn.calls,
    "text": lambda exchange: exchange.turn.text,
    "error": lambda exchange: exchange.turn.finish == "failed",
    "time": lambda exchange: any(each.at > MIN_LIVE_SECONDS for each in exchange.received[-1:]),
    "calls.leak": lambda exchange: exchange.facts and exchange.facts.tools,
    "usage.parts": lambda exchange: exchange.turn.usage and exchange.turn.usage.has_parts,
    "usage.sum": lambda exchange: exchange.turn.usage and exchange.turn.usage.total is not None,
    "responses.incomplete-details": lambda exchange: exchange.turn.finish in ("length", "filter"),
    "responses.echo-tools": lambda exchange: _requests_echo("echo-tools", exchange),
    "responses.echo-sampling": lambda exchange: _requests_echo("echo-sampling", exchange),
    "responses.echo": lambda exchange: _requests_echo("echo", exchange),
    "responses.usage-details": lambda exchange: exchange.turn.usage,
    "stream.live": lambda exchange: len(exchange.received) > MIN_LIVE_EVENTS,
    "stream.whole": lambda exchange: exchange.seconds,
    "sse.content-type": lambda exchange: exchange.content_type,
    "gemini.signature": lambda exchange: b'"thoughtSignature"' in exchange.body,
}
"""Conditions under which an answer tests a rule, by what the rule needs or by its id."""

_SSE_RULES = ("responses.event-name", "responses.done-marker", "responses.sse-id")
"""Rules of Responses that do not apply to a WebSocket."""


def _requests_echo(rule: str, exchange: Exchange) -> bool:
    return exchange.facts is not None and bool(find_echo_fields(rule, exchange.facts.fields))


def _can_break(rule: Rule, exchange: Exchange) -> bool:
    """Whether this complete exchange tests the rule."""
    if rule.on in ("conversation", "plain" if exchange.streamed else "stream"):
        return False
    if exchange.is_socket and (rule.area == "sse" or rule.id in _SSE_RULES):
        return False
    return all(_CONDITIONS[key](exchange) for key in (rule.needs, rule.id) if key in _CONDITIONS)


def complete_verdicts(report: Report, verdicts: Verdicts, chosen: set[str]) -> list[Verdict]:
    """A verdict for every chosen rule of every API, in the order of the rules, consequences after their causes.

    A rule that was not observed gets a reason.
    """
    out: list[Verdict] = []
    for api in report.apis:
        rules = [rule for rule in select_rules(api) if rule.id in chosen]
        for rule in rules:
            verdict = verdicts[api, rule.id]
            if not (verdict.seen or verdict.broken or verdict.reasons):
                verdict.reasons = [_explain_not_observed(rule, api, report)]
        out += order_by_cause(verdicts[api, rule.id] for rule in rules)
    return out


def _explain_not_observed(rule: Rule, api: Dialect, report: Report) -> str:
    came = [each for each in report.exchanges if each.api == api and each.facts is not None and each.status == 200]
    kinds = {"stream" if each.streamed else "plain" for each in came}
    if api in report.ended:
        return report.ended[api]
    if rule.id in ("stream.live", "stream.whole", "sse.content-type") and not any(each.seconds for each in came):
        return "a capture cannot show it"
    if rule.on in ("stream", "plain") and rule.on not in kinds:
        return _REASONS[rule.on]
    return _REASONS[rule.needs or rule.on]


_REASONS = {
    "call": "no turn had a call",
    "text": "no turn had text, with tools declared",
    "error": "no turn failed halfway",
    "time": f"no stream took longer than {MIN_LIVE_SECONDS:g} s",
    "stream": "no stream was complete",
    "plain": "no plain answer was complete",
    "turn": "no turn tests it",
    "conversation": "it was not tried",
}
"""Why a rule was not observed, by what it needs."""


def check_captured(exchanges: Sequence[Exchange], origin: str, only: Sequence[str] = ()) -> Report:
    """Check captured turns. Raises `ValueError` if they cannot test the chosen rules."""
    chosen = {rule for rule in choose_rules(only) if RULES[rule].on != "conversation"}
    verdicts = Verdicts()
    for exchange in exchanges:
        count_exchange(verdicts, exchange)
    apis = [api.name for api in APIS.values() if any(each.api == api.name for each in exchanges)]
    report = Report(origin, "", apis, time.time(), exchanges=[*exchanges])
    report.verdicts = complete_verdicts(report, verdicts, chosen)
    if not report.verdicts:
        raise ValueError(f"captured turns cannot test {', '.join(only)}")
    return report
