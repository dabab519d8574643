"""The report as JSON. Fields may be added, but none is renamed or removed.

    version       of Toolwire
    target        the address, or the name of the file that was checked
    model         empty if it is not known
    apis          those that were checked: `chat`, `responses`, `messages`
    absent        the APIs that could not be checked, each with the reason
    ended         the APIs whose probes did not all run, each with the reason
    began         the start time as ISO 8601 in UTC
    seconds       the duration; 0 for a captured file
    budget_spent  whether the budget of requests ran out before the probes did
    sound         whether no MUST rule is broken, as in the exit code
    counts        `must_broken`, `should_broken`, `passed`, `not_observed`; `following`: the number of
                  broken rules that others explain
    verdicts      one for each rule on each API:
      rule          `id`, `level` (`MUST`, `SHOULD`), `area`, `requirement`, `source`, `harm`
      api
      outcome       `broken`, `passed` or `not observed`
      seen          the number of times that the rule was tested
      reasons       why it was not observed; empty for the other outcomes
      follows       the rules that explain all of its findings, if any: then it is a consequence, and comes after the
                    first of them
      findings
        detail        what is wrong
        exchange      the key of its exchange
        frames        the frames that show it: `position` in the stream from 0, `at` in seconds since the request (0 if
                      unknown), `event` (the name, or null) and `raw` (all its bytes)
        answer        the beginning of the answer if no frame shows it
    exchanges     all requests, by number:
      probe, api, status (0: no answer), content_type, seconds, failure (why the answer is incomplete)
      request       `method`, `url`, `body`; all empty if it is unknown. Keys are never kept

Bytes are written as text; invalid UTF-8 as `\\xff`.
"""

from datetime import UTC, datetime

import msgspec

from toolwire import __version__
from toolwire.check.exchange import Exchange
from toolwire.check.report.evidence import decode, escape_surrogates, find_proof, mask_url
from toolwire.check.rules import RULES
from toolwire.check.turns.loose import Json
from toolwire.check.verdicts import Report, Verdict, count_verdicts


def as_json(report: Report) -> bytes:
    """The report as one JSON object; the fields are described above."""
    exchanges = {each.number: each for each in report.exchanges}
    document = {
        "version": __version__,
        "target": mask_url(report.target),
        "model": escape_surrogates(report.model),
        "apis": report.apis,
        "absent": {api: escape_surrogates(reason) for api, reason in report.absent.items()},
        "ended": {api: escape_surrogates(reason) for api, reason in report.ended.items()},
        "began": datetime.fromtimestamp(report.began, UTC).isoformat(timespec="milliseconds"),
        "seconds": round(report.seconds, 3),
        "budget_spent": report.spent,
        "sound": report.is_sound,
        "counts": count_verdicts(report.verdicts),
        "verdicts": [_convert_verdict(each, exchanges) for each in report.verdicts],
        "exchanges": {
            str(number): {
                "probe": each.probe,
                "api": each.api,
                "status": each.status,
                "content_type": escape_surrogates(each.content_type),
                "seconds": round(each.seconds, 3),
                "failure": escape_surrogates(each.failure),
                "request": {
                    "method": each.sent.method,
                    "url": mask_url(each.sent.url),
                    "body": decode(each.sent.body),
                },
            }
            for number, each in exchanges.items()
        },
    }
    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"


def _convert_verdict(verdict: Verdict, exchanges: dict[int, Exchange]) -> Json:
    rule = RULES[verdict.rule]
    outcome = verdict.outcome
    findings: list[Json] = []
    for finding, number in verdict.broken:
        frames = [
            {"position": each.position, "at": round(each.at, 6), "event": each.event, "raw": decode(each.raw)}
            for each in exchanges[number].find_frames(finding)
        ]
        answer = "" if frames else find_proof(finding, exchanges[number])[0]
        detail = escape_surrogates(finding.detail)
        findings.append({"detail": detail, "exchange": str(number), "frames": frames, "answer": answer})
    return {
        "rule": {name: getattr(rule, name) for name in ("id", "level", "area", "requirement", "source", "harm")},
        "api": verdict.api,
        "outcome": outcome,
        "seen": verdict.seen,
        "follows": verdict.follows,
        "reasons": [escape_surrogates(reason) for reason in verdict.reasons] if outcome == "not observed" else [],
        "findings": findings,
    }
