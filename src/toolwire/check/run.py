"""A check from the first request to the report."""

import time
from collections.abc import Callable, Sequence

import msgspec

from toolwire.check.apis import APIS, Api, Ask
from toolwire.check.endpoint import LONG, MANY, BudgetSpent, Endpoint, GivenUp, Target, Unreachable, listed
from toolwire.check.exchange import Exchange
from toolwire.check.probes import PROBES
from toolwire.check.probes.probe import TURNS, Probe
from toolwire.check.probes.scene import HELLO
from toolwire.check.rules import RULES, rules_for
from toolwire.check.talks import Talk, why_not
from toolwire.check.turns.responses_fields import echoed
from toolwire.check.turns.rule import Rule
from toolwire.check.verdicts import Verdict, Verdicts, causes_first
from toolwire.core.events import Dialect


class Report(msgspec.Struct):
    """What came of a check."""

    target: str
    model: str
    apis: list[Dialect]
    """Those that the endpoint speaks."""
    began: float
    seconds: float = 0.0
    exchanges: list[Exchange] = []
    verdicts: list[Verdict] = []
    absent: dict[str, str] = {}
    """The APIs that it does not speak, or not to us, and what it says instead."""
    spent: bool = False
    """The budget ended before the probes did."""
    ended: dict[str, str] = {}
    """The APIs that were not tried to the end, and why."""

    @property
    def broken(self) -> list[Verdict]:
        """The verdicts with findings: those of MUST rules first, and every consequence behind its first cause."""
        broken = [each for each in self.verdicts if each.broken]
        causes = [each for each in broken if not each.follows]
        causes.sort(key=lambda each: (not self._breaks_a_must(each), each.api, each.rule))
        return [each for cause in causes for each in (cause, *self.consequences(cause))]

    def consequences(self, cause: Verdict) -> list[Verdict]:
        """What was broken along with a rule, and is explained by it before all others."""
        return [each for each in self.verdicts if each.api == cause.api and each.follows[:1] == [cause.rule]]

    def _breaks_a_must(self, cause: Verdict) -> bool:
        return any(RULES[each.rule].level == "MUST" for each in (cause, *self.consequences(cause)))

    @property
    def is_sound(self) -> bool:
        """No MUST rule is broken."""
        return all(RULES[each.rule].level != "MUST" for each in self.broken)


class Progress(msgspec.Struct, frozen=True):
    """How far a check is."""

    api: Dialect
    probe: str
    done: int
    of: int


async def check(
    target: Target, apis: Sequence[str], only: Sequence[str] = (), told: Callable[[Progress], None] = lambda _: None
) -> Report:
    """Try an endpoint. Raises `Unreachable`, and `ValueError` if there is nothing to try."""
    chosen = chosen_rules(only)
    wanted = [APIS[name] for name in apis if any(rule.id in chosen for rule in rules_for(APIS[name].name))]
    if not wanted:
        raise ValueError(f"{', '.join(only)} is no rule for {', '.join(apis)}")
    report = Report(target.base, target.model, [], time.time())
    verdicts = Verdicts()
    async with Endpoint(target, lambda exchange: take_account(verdicts, exchange)) as endpoint:
        try:
            if not target.model:
                report.model = await _first_model(endpoint, wanted)
                endpoint.target = msgspec.structs.replace(target, model=report.model)
            await _probe_all(endpoint, wanted, _probes(chosen), verdicts, report, told)
        except BudgetSpent as spent:
            report.spent = True
            report.ended = report.ended or {api.name: str(spent) for api in wanted}
        report.exchanges = endpoint.exchanges
    if not report.apis:
        raise Unreachable(_why_nothing(report))
    if report.spent:
        report.apis = [api.name for api in wanted if api.name not in report.absent]
    report.seconds = time.time() - report.began
    report.verdicts = complete(report, verdicts, chosen)
    return report


async def _probe_all(
    endpoint: Endpoint,
    apis: Sequence[Api],
    probes: Sequence[Probe],
    verdicts: Verdicts,
    report: Report,
    told: Callable[[Progress], None],
) -> None:
    for number, api in enumerate(apis):
        try:
            why = await _absence(endpoint, api)
            if why:
                report.absent[api.name] = why
                continue
            report.apis.append(api.name)
            talk = Talk(endpoint, api, verdicts)
            for place, probe in enumerate(probes, number * len(probes)):
                told(Progress(api.name, probe.name, place, len(apis) * len(probes)))
                endpoint.probe = probe.name
                await probe.run(talk)
        except BudgetSpent as spent:
            report.ended.update({each.name: str(spent) for each in apis[number:]})
            raise
        except GivenUp as error:
            told_of = report.ended if api.name in report.apis else report.absent
            told_of[api.name] = str(error)


async def _absence(endpoint: Endpoint, api: Api) -> str:
    """Why an API cannot be tried; nothing if it can. Whoever does not stream may still answer."""
    endpoint.probe = "there"
    ask = Ask((HELLO,))
    first = got = await endpoint.ask(api, ask)
    if got.status == 400 and b"max_completion_tokens" in got.body:  # the newer models of OpenAI
        endpoint.renamed["max_tokens"] = "max_completion_tokens"
        first = got = await endpoint.ask(api, ask)
    if got.status in (400, 422):
        got = await endpoint.ask(api, msgspec.structs.replace(ask, stream=False))
    if got.status == 200 and "html" in got.content_type:
        return f"the answer is a web page: {got.content_type}"
    return "" if got.status == 200 else why_not(first)


def _why_nothing(report: Report) -> str:
    """Why no API could be tried, said once if it is the same for all."""
    why = {**report.absent, **report.ended}
    with_model = f" with the model {report.model!r}" if report.model else ""
    if len(set(why.values())) == 1:
        return f"{report.target} cannot be asked{with_model}: {next(iter(why.values()))}"
    return "; ".join(f"{api}{with_model}: {each}" for api, each in why.items())


async def _first_model(endpoint: Endpoint, apis: Sequence[Api]) -> str:
    endpoint.probe = "there"
    why = ""
    for api in apis:
        got = await endpoint.get("/models", api)
        if got.trouble:
            raise Unreachable(f"{endpoint.target.base} cannot be asked: {got.trouble}")
        models = [name for name in listed(got.fields) if name]
        if models:
            return "demo" if "demo" in models else models[0]
        why = why or (why_not(got) if got.status != 200 else f"the answer is {got.content_type or 'nothing'}")
    raise Unreachable(f"the endpoint lists no models: say which one with --model ({why})")


def chosen_rules(only: Sequence[str]) -> set[str]:
    """The rules by these names, or of these areas. Raises `ValueError`."""
    if not only:
        return set(RULES)
    chosen: set[str] = set()
    for name in only:
        found = {rule.id for rule in RULES.values() if name in (rule.id, rule.area)}
        if not found:
            raise ValueError(f"there is no rule {name!r}")
        chosen |= found
    return chosen


def _probes(chosen: set[str]) -> list[Probe]:
    """The probes in which one of these rules can be seen."""
    turns = any(RULES[rule].on != "talk" for rule in chosen)
    return [each for each in PROBES if chosen & set(each.shows) or (turns and TURNS in each.shows)]


def take_account(verdicts: Verdicts, exchange: Exchange) -> None:
    """Count what a turn could have broken, and what it has."""
    for finding in exchange.findings:
        verdicts.find(exchange.api, finding, exchange.number)
    broken = {finding.rule for finding in exchange.findings}
    for rule in rules_for(exchange.api):
        if rule.id in broken or _could_show(rule, exchange):
            verdicts.see(rule.id, exchange.api)


_SHOWN_BY: dict[str, Callable[[Exchange], bool]] = {
    "calls.leak": lambda exchange: bool(exchange.asked and exchange.asked.tools),
    "usage.parts": lambda exchange: bool(exchange.turn.usage and exchange.turn.usage.has_parts),
    "responses.incomplete-details": lambda exchange: exchange.turn.finish in ("length", "filter"),
    "responses.echo-tools": lambda exchange: _asks_for("echo-tools", exchange),
    "responses.echo-sampling": lambda exchange: _asks_for("echo-sampling", exchange),
    "responses.echo": lambda exchange: _asks_for("echo", exchange),
    "responses.usage-details": lambda exchange: exchange.turn.usage is not None,
    "usage.sum": lambda exchange: bool(exchange.turn.usage and exchange.turn.usage.total is not None),
    "stream.live": lambda exchange: len(exchange.heard) > MANY,
    "stream.whole": lambda exchange: exchange.seconds > 0,
    "sse.content-type": lambda exchange: bool(exchange.content_type),
}
"""What else an answer must have, for the rules that do not look at every one."""


_OF_SSE = ("responses.event-name", "responses.done-marker", "responses.sse-id")
"""Rules of Responses that a WebSocket cannot break."""


def _asks_for(rule: str, exchange: Exchange) -> bool:
    return exchange.asked is not None and bool(echoed(rule, exchange.asked.fields))


def _could_show(rule: Rule, exchange: Exchange) -> bool:
    """Whether a turn came in which the rule could have been seen broken."""
    turn = exchange.turn
    if rule.on == "talk" or exchange.trouble or not _SHOWN_BY.get(rule.id, bool)(exchange):
        return False
    if exchange.is_socket and (rule.area == "sse" or rule.id in _OF_SSE):
        return False
    came = exchange.status == 200 and (bool(exchange.heard) or turn.is_over)
    if not came or (rule.on == "stream" and not exchange.streamed) or (rule.on == "plain" and exchange.streamed):
        return False
    match rule.needs:
        case "call":
            return bool(turn.calls)
        case "text":
            return bool(turn.text)
        case "error":
            return turn.finish == "failed"
        case "time":
            return exchange.seconds > LONG
        case _:
            return True


def complete(report: Report, verdicts: Verdicts, chosen: set[str]) -> list[Verdict]:
    """A verdict for every chosen rule of every API, in the order of the rules but for consequences, which come behind
    their causes. What was not seen has a reason."""
    out: list[Verdict] = []
    for api in report.apis:
        rules = [rule for rule in rules_for(api) if rule.id in chosen]
        for rule in rules:
            verdict = verdicts.of(rule.id, api)
            if not (verdict.seen or verdict.broken or verdict.unseen):
                verdict.unseen = [_why_unseen(rule, api, report)]
        out += causes_first(verdicts.of(rule.id, api) for rule in rules)
    return out


def _why_unseen(rule: Rule, api: Dialect, report: Report) -> str:
    came = [each for each in report.exchanges if each.api == api and each.asked is not None and each.status == 200]
    kinds = {"stream" if each.streamed else "plain" for each in came}
    if api in report.ended:
        return report.ended[api]
    if rule.id in ("stream.live", "stream.whole", "sse.content-type") and not any(each.seconds for each in came):
        return "a capture does not show it"
    if rule.on in ("stream", "plain") and rule.on not in kinds:
        return _UNSEEN[rule.on]
    return _UNSEEN[rule.needs or rule.on]


_UNSEEN = {
    "call": "no turn had a call",
    "text": "no turn had text, with tools declared",
    "error": "no turn failed in its middle",
    "time": f"no stream took longer than {LONG:g} s",
    "stream": "no stream came whole",
    "plain": "no plain answer came whole",
    "turn": "no turn came that shows it",
    "talk": "it was not tried",
}
"""Why a rule was not seen, by what it needs."""


def check_captured(exchanges: Sequence[Exchange], origin: str, only: Sequence[str] = ()) -> Report:
    """The same for turns that were captured elsewhere. Raises `ValueError` if they cannot show these rules."""
    chosen = {rule for rule in chosen_rules(only) if RULES[rule].on != "talk"}
    verdicts = Verdicts()
    for exchange in exchanges:
        take_account(verdicts, exchange)
    apis: list[Dialect] = [api for api in ("chat", "responses", "messages") if any(e.api == api for e in exchanges)]
    report = Report(origin, "", apis, time.time(), exchanges=[*exchanges])
    report.verdicts = complete(report, verdicts, chosen)
    if not report.verdicts:
        raise ValueError(f"{', '.join(only)} cannot be seen in what was captured")
    return report
