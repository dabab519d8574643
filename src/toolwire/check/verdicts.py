"""The verdicts about the rules, for each API."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from toolwire.check.rules import CAUSES, RULES, roots
from toolwire.check.turns.rule import Finding
from toolwire.core.events import Dialect


class Verdict(msgspec.Struct):
    """The verdict about one rule on one API."""

    rule: str
    api: Dialect
    seen: int = 0
    """How often it was tested."""
    broken: list[tuple[Finding, int]] = []
    """The findings, each with the number of its exchange."""
    reasons: list[str] = []
    """Why it could not be tested."""
    follows: list[str] = []
    """The rules that explain all of its findings; if there are any, it is a consequence."""

    @property
    def outcome(self) -> Literal["broken", "passed", "not observed"]:
        """Broken if there are findings, passed if it was tested without any."""
        return "broken" if self.broken else "passed" if self.seen else "not observed"


class Verdicts:
    """All verdicts, by API and rule."""

    def __init__(self) -> None:
        self._table: dict[tuple[Dialect, str], Verdict] = {}

    def of(self, rule: str, api: Dialect) -> Verdict:
        """The verdict about a rule on an API."""
        return self._table.setdefault((api, rule), Verdict(rule, api))

    def count_test(self, rule: str, api: Dialect) -> None:
        """Count a test of a rule."""
        self.of(rule, api).seen += 1

    def add_finding(self, api: Dialect, finding: Finding, exchange: int) -> None:
        """Add a finding, with the number of its exchange."""
        self.of(finding.rule, api).broken.append((finding, exchange))

    def add_reason(self, rule: str, api: Dialect, reason: str) -> None:
        """Add a reason why a rule could not be tested."""
        verdict = self.of(rule, api)
        if reason not in verdict.reasons:
            verdict.reasons.append(reason)

    def all(self) -> list[Verdict]:
        """All verdicts, in the order in which they were first needed."""
        return [*self._table.values()]


class RuleCounts(msgspec.Struct, frozen=True):
    """Numbers of verdicts by outcome."""

    must_broken: int = 0
    should_broken: int = 0
    passed: int = 0
    not_observed: int = 0
    following: int = 0
    """The broken rules that other broken rules explain."""


def count_verdicts(verdicts: Iterable[Verdict]) -> RuleCounts:
    """Count verdicts by outcome."""
    verdicts = [*verdicts]
    levels = [(each.outcome, RULES[each.rule].level) for each in verdicts]
    outcomes = [word for word, _ in levels]
    return RuleCounts(
        levels.count(("broken", "MUST")),
        levels.count(("broken", "SHOULD")),
        outcomes.count("passed"),
        outcomes.count("not observed"),
        sum(bool(each.follows) for each in verdicts),
    )


def causes_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts of one API in order, with consequences moved after their first cause."""
    causes: list[Verdict] = []
    consequences: dict[str, list[Verdict]] = {}
    for each in explained(verdicts):
        (consequences.setdefault(each.follows[0], []) if each.follows else causes).append(each)
    return [each for cause in causes for each in (cause, *consequences.get(cause.rule, ()))]


def explained(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Fill in `follows`: the rules that explain a verdict and are broken in the same exchanges."""
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
