"""All rules, and which of them apply to each API."""

from collections.abc import Iterable

from toolwire.check import behaviour
from toolwire.check.turns import chat, frames, messages, responses_rules, turn
from toolwire.check.turns.rule import Rule
from toolwire.core.events import Dialect

RULES: dict[str, Rule] = {
    rule.id: rule for module in (turn, behaviour, frames, chat, responses_rules, messages) for rule in module.RULES
}
"""Every rule by its id."""

_AREA_APIS: dict[str, tuple[Dialect, ...]] = {
    "chat": ("chat",),
    "legacy": ("chat",),
    "responses": ("responses",),
    "state": ("responses",),
    "socket": ("responses",),
    "compact": ("responses",),
    "messages": ("messages",),
}
"""Areas that only some APIs have."""


NOT_OF_MESSAGES = ("choice.allowed", "errors.fields", "usage.sum", "usage.parts")
"""Messages has no `allowed_tools`, no such error fields, and reports no total and no details of usage."""


def _explained(rule: Rule) -> set[str]:
    """The rules that one rule explains directly."""
    areas = {name.removesuffix(".*") for name in rule.explains if name.endswith(".*")}
    return {each.id for each in RULES.values() if each.id in rule.explains or each.area in areas}


def _causes() -> dict[str, set[str]]:
    """For every rule the rules that explain it, directly or through others."""
    causes = {id: {each.id for each in RULES.values() if id in _explained(each)} for id in RULES}
    for middle in RULES:
        for id in RULES:
            if middle in causes[id]:
                causes[id] |= causes[middle]
    return causes


CAUSES: dict[str, set[str]] = _causes()


def roots(broken: Iterable[str]) -> list[str]:
    """The broken rules that no other broken rule explains."""
    here = [*broken]
    return [id for id in here if CAUSES[id].isdisjoint(here)]


def applies(rule: Rule, api: Dialect) -> bool:
    """Whether a rule applies to an API."""
    if rule.id in NOT_OF_MESSAGES:
        return api != "messages"
    return api in _AREA_APIS.get(rule.area, (api,))


def rules_for(api: Dialect) -> list[Rule]:
    """The rules that apply to an API."""
    return [rule for rule in RULES.values() if applies(rule, api)]
