"""The verdicts on the rules for each API, and the report that they make up."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from toolwire.check.exchange import Exchange
from toolwire.check.rules import CAUSES, RULES, find_roots
from toolwire.check.turns.rule import Finding
from toolwire.core.events import Dialect


class Verdict(msgspec.Struct):
    """The verdict on one rule for one API."""

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


class Verdicts(dict[tuple[Dialect, str], Verdict]):
    """All verdicts by API and rule; missing ones are created."""

    def __missing__(self, key: tuple[Dialect, str]) -> Verdict:
        api, rule = key
        self[key] = verdict = Verdict(rule, api)
        return verdict


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


def order_by_cause(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts of one API in order, with consequences after their first cause; fills in `follows`."""
    verdicts = [*verdicts]
    broken: dict[int, list[str]] = {}
    for each in verdicts:
        for number in {number for _, number in each.broken}:
            broken.setdefault(number, []).append(each.rule)
    for each in verdicts:  # a consequence if it is explained in each of its exchanges
        found = {number: CAUSES[each.rule] & {*broken[number]} for _, number in each.broken}
        if found and all(found.values()):
            causes = [cause for number in found for cause in find_roots(broken[number]) if cause in found[number]]
            each.follows = [*dict.fromkeys(causes)]
    unexplained = [each for each in verdicts if each.broken and not each.follows]
    for each in unexplained:  # or if a rule that is broken in other exchanges implies it
        each.follows = [cause.rule for cause in unexplained if each.rule in RULES[cause.rule].implies]
    return [each for cause in verdicts if not cause.follows for each in (cause, *find_consequences(cause, verdicts))]


def find_consequences(cause: Verdict, verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The broken rules whose first cause is this one."""
    return [each for each in verdicts if each.api == cause.api and each.follows[:1] == [cause.rule]]


class Report(msgspec.Struct):
    """The outcome of a check."""

    target: str
    model: str
    apis: list[Dialect]
    """The APIs that the endpoint has."""
    began: float
    seconds: float = 0.0
    exchanges: list[Exchange] = []
    verdicts: list[Verdict] = []
    absent: dict[str, str] = {}
    """The APIs that could not be checked, each with the reason."""
    spent: bool = False
    """Whether the budget of requests ran out before the probes did."""
    ended: dict[str, str] = {}
    """The APIs whose probes did not all run, each with the reason."""

    @property
    def headline(self) -> str:
        """The verdict on the whole endpoint in one sentence."""
        counts = count_verdicts(self.verdicts)
        levels = (("MUST", counts.must_broken), ("SHOULD", counts.should_broken))
        broken = " and ".join(f"{number} {level}" for level, number in levels if number)
        if broken:
            broken += " rule is broken" if counts.must_broken + counts.should_broken == 1 else " rules are broken"
        if not counts.passed and not broken:
            return "Nothing was observed."
        if counts.must_broken:
            return f"FAILED: {broken}."
        word = "INCOMPLETE" if self.spent or self.ended else "PASSED"
        return f"{word}: no MUST rule is broken, but {broken}." if broken else f"{word}: no rule is broken."

    @property
    def broken(self) -> list[Verdict]:
        """The verdicts with findings: MUST rules first, then causes of many others; consequences follow their cause."""
        causes = [each for each in self.verdicts if each.broken and not each.follows]
        groups = [[cause, *find_consequences(cause, self.verdicts)] for cause in causes]
        sizes = Counter[str]()
        for group in groups:
            sizes[group[0].rule] = max(sizes[group[0].rule], len(group))
        groups.sort(key=lambda group: (not _breaks_a_must(group), -sizes[group[0].rule], _POSITIONS[group[0].rule]))
        return [each for group in groups for each in group]

    @property
    def areas(self) -> dict[str, list[RuleCounts]]:
        """The numbers of verdicts by area, in the order of the rules, for each API."""
        areas: dict[str, list[Verdict]] = {rule.area: [] for rule in RULES.values()}
        for each in self.verdicts:
            areas[RULES[each.rule].area].append(each)
        return {
            area: [count_verdicts(each for each in verdicts if each.api == api) for api in self.apis]
            for area, verdicts in areas.items()
            if verdicts
        }

    @property
    def is_sound(self) -> bool:
        """Whether no MUST rule is broken."""
        return not _breaks_a_must(self.verdicts)


_POSITIONS = {rule: position for position, rule in enumerate(RULES)}


def _breaks_a_must(verdicts: Iterable[Verdict]) -> bool:
    return any(each.broken and RULES[each.rule].level == "MUST" for each in verdicts)
