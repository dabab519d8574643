"""What is known about the rules, on each API."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from toolwire.check.rules import CAUSES, RULES, roots
from toolwire.check.turns.rule import Finding
from toolwire.core.events import Dialect


class Verdict(msgspec.Struct):
    """What is known about one rule on one API."""

    rule: str
    api: Dialect
    seen: int = 0
    """How often it could have been broken."""
    broken: list[tuple[Finding, int]] = []
    """The findings, each with the number of its exchange."""
    unseen: list[str] = []
    """Why it could not be seen, where it was tried for."""
    follows: list[str] = []
    """The rules that explain it, where they explain every finding: it is a consequence then."""

    @property
    def outcome(self) -> Literal["broken", "passed", "not observed"]:
        return "broken" if self.broken else "passed" if self.seen else "not observed"


class Verdicts:
    """All verdicts, by API and rule."""

    def __init__(self) -> None:
        self._table: dict[tuple[Dialect, str], Verdict] = {}

    def of(self, rule: str, api: Dialect) -> Verdict:
        return self._table.setdefault((api, rule), Verdict(rule, api))

    def see(self, rule: str, api: Dialect) -> None:
        self.of(rule, api).seen += 1

    def find(self, api: Dialect, finding: Finding, exchange: int) -> None:
        self.of(finding.rule, api).broken.append((finding, exchange))

    def miss(self, rule: str, api: Dialect, why: str) -> None:
        verdict = self.of(rule, api)
        if why not in verdict.unseen:
            verdict.unseen.append(why)

    def all(self) -> list[Verdict]:
        return [*self._table.values()]


class Tally(msgspec.Struct, frozen=True):
    """Verdicts, counted."""

    must_broken: int = 0
    should_broken: int = 0
    passed: int = 0
    not_observed: int = 0
    following: int = 0
    """Of the broken ones, those that others explain."""


def tally(verdicts: Iterable[Verdict]) -> Tally:
    verdicts = [*verdicts]
    told = [(each.outcome, RULES[each.rule].level) for each in verdicts]
    outcomes = [word for word, _ in told]
    return Tally(
        told.count(("broken", "MUST")),
        told.count(("broken", "SHOULD")),
        outcomes.count("passed"),
        outcomes.count("not observed"),
        sum(bool(each.follows) for each in verdicts),
    )


def causes_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts of one API in their order, but for consequences, which come behind their first cause."""
    causes: list[Verdict] = []
    consequences: dict[str, list[Verdict]] = {}
    for each in explained(verdicts):
        (consequences.setdefault(each.follows[0], []) if each.follows else causes).append(each)
    return [each for cause in causes for each in (cause, *consequences.get(cause.rule, ()))]


def explained(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts of one API, each with the rules that explain it: those broken in all the same exchanges."""
    verdicts = [*verdicts]
    broken: dict[int, list[str]] = {}
    for each in verdicts:
        for number in {number for _, number in each.broken}:
            broken.setdefault(number, []).append(each.rule)
    for each in verdicts:
        found = {number: CAUSES[each.rule] & {*broken[number]} for _, number in each.broken}
        if found and all(found.values()):
            causes = [cause for number in found for cause in roots(broken[number]) if cause in found[number]]
            each.follows = [*dict.fromkeys(causes)]
    return verdicts
