"""A check from the first request to the report."""

import time
from collections.abc import Callable, Sequence

import msgspec

from toolwire.check.apis import APIS, Api
from toolwire.check.endpoint import LONG, BudgetSpent, Endpoint, Target, Unreachable, listed
from toolwire.check.exchange import Exchange
from toolwire.check.probes import PROBES, TURNS, Probe
from toolwire.check.rules import RULES, rules_for
from toolwire.check.talks import Talk, Verdict, Verdicts, why_not
from toolwire.check.turns.rule import Finding, Rule
from toolwire.core.events import Dialect

MISSING = (404, 405, 501)
"""What an endpoint answers that does not speak an API."""


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
    """The APIs that it does not speak, and what it says instead."""
    spent: bool = False
    """The budget ended before the probes did."""

    @property
    def broken(self) -> list[Verdict]:
        """The verdicts with findings, those of MUST rules first."""
        broken = [each for each in self.verdicts if each.broken]
        return sorted(broken, key=lambda each: (RULES[each.rule].level != "MUST", each.api, each.rule))

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
    """Try an endpoint. Raises `Unreachable`."""
    verdicts = Verdicts()
    report = Report(target.base, target.model, [], time.time())
    chosen = chosen_rules(only)
    probes = [each for each in PROBES if _is_wanted(each, chosen)]
    async with Endpoint(target, lambda exchange: take_account(verdicts, exchange)) as endpoint:
        if not target.model:
            report.model = endpoint.target.model = await _first_model(endpoint)
        try:
            await _probe_all(endpoint, [APIS[name] for name in apis], probes, verdicts, report, told)
        except BudgetSpent:
            report.spent = True
        report.exchanges = endpoint.exchanges
    if not report.apis:
        raise Unreachable("; ".join(f"{name}: {why}" for name, why in report.absent.items()))
    report.seconds = time.time() - report.began
    report.verdicts = complete(verdicts, report.apis, chosen)
    return report


async def _probe_all(
    endpoint: Endpoint,
    apis: Sequence[Api],
    probes: Sequence[Probe],
    verdicts: Verdicts,
    report: Report,
    told: Callable[[Progress], None],
) -> None:
    done, of = 0, len(apis) * len(probes)
    for api in apis:
        why = await _absence(endpoint, api)
        if why:
            report.absent[api.name] = why
            done += len(probes)
            continue
        report.apis.append(api.name)
        for probe in probes:
            told(Progress(api.name, probe.name, done, of))
            endpoint.probe = probe.name
            await probe.run(Talk(endpoint, api, verdicts))
            done += 1


async def _absence(endpoint: Endpoint, api: Api) -> str:
    """Why an API is not there; nothing if it is. An empty request is refused by whoever speaks it."""
    endpoint.probe = "there"
    got = await endpoint.post(api, b"{}")
    return why_not(got) if not got.status or got.status in MISSING else ""


async def _first_model(endpoint: Endpoint) -> str:
    got = await endpoint.get("/models", APIS["chat"])
    if got.trouble and not got.status:
        raise Unreachable(got.trouble)
    models = [name for name in listed(got.fields) if name]
    if not models:
        raise Unreachable("the endpoint lists no models: say which one with --model")
    return "demo" if "demo" in models else models[0]


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


def _is_wanted(probe: Probe, chosen: set[str]) -> bool:
    turns = any(RULES[rule].on != "talk" for rule in chosen)
    return bool(chosen & set(probe.shows)) or (turns and TURNS in probe.shows)


def take_account(verdicts: Verdicts, exchange: Exchange) -> None:
    """Count what a turn could have broken, and what it has."""
    for finding in exchange.findings:
        verdicts.find(exchange.api, finding, exchange.number)
    broken = {finding.rule for finding in exchange.findings}
    for rule in rules_for(exchange.api):
        if rule.id in broken or _could_show(rule, exchange):
            verdicts.see(rule.id, exchange.api)


def _could_show(rule: Rule, exchange: Exchange) -> bool:
    """Whether a turn came in which the rule could have been seen broken."""
    turn = exchange.turn
    if rule.on == "talk":
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


def complete(verdicts: Verdicts, apis: Sequence[Dialect], chosen: set[str]) -> list[Verdict]:
    """A verdict for every chosen rule of every API, in the order of the rules."""
    return [verdicts.of(rule.id, api) for api in apis for rule in rules_for(api) if rule.id in chosen]


def check_captured(exchanges: Sequence[Exchange], origin: str, only: Sequence[str] = ()) -> Report:
    """The same for turns that were captured elsewhere."""
    verdicts = Verdicts()
    for exchange in exchanges:
        take_account(verdicts, exchange)
    apis: list[Dialect] = [api for api in ("chat", "responses", "messages") if any(e.api == api for e in exchanges)]
    chosen = {rule for rule in chosen_rules(only) if RULES[rule].on != "talk"}
    report = Report(origin, "", apis, time.time(), exchanges=[*exchanges])
    report.verdicts = complete(verdicts, apis, chosen)
    return report


def shown_finding(finding: Finding, exchange: Exchange) -> list[bytes]:
    """The bytes that prove a finding: the frames it names, or the beginning of the answer."""
    frames = [each.raw for each in exchange.heard if each.place in finding.frames]
    return frames or [exchange.body[:2000]]
