"""The report as JSON. Fields may be added, but none is renamed or removed.

    version       of Toolwire
    target        the address, or the name of the file that was checked
    model         empty if it is not known
    apis          those that were checked: `chat`, `responses`, `messages`
    absent        the APIs that the endpoint does not speak, each with its answer instead
    ended         the APIs that were not tried to the end, each with the reason
    began         when, as an ISO 8601 time in UTC
    seconds       how long it took; 0 for a captured file
    budget_spent  whether the requests ran out before the probes did
    sound         whether no MUST rule is broken; the exit code says the same
    counts        `must_broken`, `should_broken`, `passed`, `not_observed`; `following` are those of the broken ones
                  that others explain
    verdicts      one for each rule on each API:
      rule          `id`, `level` (`MUST`, `SHOULD`), `area`, `requirement`, `source`, `harm`
      api
      outcome       `broken`, `passed` or `not observed`
      seen          how often the rule was tested
      reasons       why it was not observed; none for the other outcomes
      follows       the rules that explain it, where they explain all of its findings: it is a consequence then, and
                    comes after the first of them
      findings
        detail        what is wrong
        exchange      the key of its exchange
        frames        those that show it: `position` in the stream from 0, `at` in seconds since the request (0 if that
                      is not known), `event` (the name, or null) and `raw` (all its bytes)
        answer        the beginning of the answer, where no frame shows it
    exchanges     all requests, by number:
      probe, api, status (0: no answer), content_type, seconds, failure (why the answer is incomplete)
      request       `method`, `url`, `body`; all empty if it is not known. Keys are never kept

Bytes are given as text. Those that are not UTF-8 are written `\\xff`.
"""

from datetime import UTC, datetime

import msgspec

from toolwire import __version__
from toolwire.check.exchange import Exchange
from toolwire.check.report.evidence import address, exact, proof, valid
from toolwire.check.rules import RULES
from toolwire.check.run import Report
from toolwire.check.turns.rule import Finding
from toolwire.check.verdicts import RuleCounts, Verdict, count_verdicts


class _Rule(msgspec.Struct):
    id: str
    level: str
    area: str
    requirement: str
    source: str
    harm: str


class _Frame(msgspec.Struct):
    position: int
    at: float
    event: str | None
    raw: str


class _Finding(msgspec.Struct):
    detail: str
    exchange: str
    frames: list[_Frame]
    answer: str


class _Verdict(msgspec.Struct):
    rule: _Rule
    api: str
    outcome: str
    seen: int
    follows: list[str]
    reasons: list[str]
    findings: list[_Finding]


class _Request(msgspec.Struct):
    method: str
    url: str
    body: str


class _Exchange(msgspec.Struct):
    probe: str
    api: str
    status: int
    content_type: str
    seconds: float
    failure: str
    request: _Request


class _Report(msgspec.Struct):
    version: str
    target: str
    model: str
    apis: list[str]
    absent: dict[str, str]
    ended: dict[str, str]
    began: str
    seconds: float
    budget_spent: bool
    sound: bool
    counts: RuleCounts
    verdicts: list[_Verdict]
    exchanges: dict[str, _Exchange]


def as_json(report: Report) -> bytes:
    """The report as one JSON object; the fields are described above."""
    exchanges = {each.number: each for each in report.exchanges}
    document = _Report(
        version=__version__,
        target=address(report.target),
        model=valid(report.model),
        apis=[*report.apis],
        absent={api: valid(reason) for api, reason in report.absent.items()},
        ended={api: valid(reason) for api, reason in report.ended.items()},
        began=datetime.fromtimestamp(report.began, UTC).isoformat(timespec="milliseconds"),
        seconds=round(report.seconds, 3),
        budget_spent=report.spent,
        sound=report.is_sound,
        counts=count_verdicts(report.verdicts),
        verdicts=[_verdict(each, exchanges) for each in report.verdicts],
        exchanges={str(number): _exchange(each) for number, each in exchanges.items()},
    )
    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"


def _verdict(verdict: Verdict, exchanges: dict[int, Exchange]) -> _Verdict:
    rule = RULES[verdict.rule]
    outcome = verdict.outcome
    return _Verdict(
        rule=_Rule(rule.id, rule.level, rule.area, rule.requirement, rule.source, rule.harm),
        api=verdict.api,
        outcome=outcome,
        seen=verdict.seen,
        follows=verdict.follows,
        reasons=[valid(reason) for reason in verdict.reasons] if outcome == "not observed" else [],
        findings=[_finding(finding, exchanges[number]) for finding, number in verdict.broken],
    )


def _finding(finding: Finding, exchange: Exchange) -> _Finding:
    received = exchange.shown_by(finding)
    frames = [_Frame(each.position, round(each.at, 6), each.event, exact(each.raw)) for each in received]
    return _Finding(valid(finding.detail), str(exchange.number), frames, "" if frames else proof(finding, exchange)[0])


def _exchange(exchange: Exchange) -> _Exchange:
    sent = exchange.sent
    return _Exchange(
        probe=exchange.probe,
        api=exchange.api,
        status=exchange.status,
        content_type=valid(exchange.content_type),
        seconds=round(exchange.seconds, 3),
        failure=valid(exchange.failure),
        request=_Request(sent.method, address(sent.url), exact(sent.body)),
    )
