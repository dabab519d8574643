"""All rules, and what each API is held to."""

from toolwire.check import behaviour
from toolwire.check.turns import chat, frames, messages, responses, turn
from toolwire.check.turns.rule import Rule
from toolwire.core.events import Dialect

RULES: dict[str, Rule] = {
    rule.id: rule for module in (turn, behaviour, frames, chat, responses, messages) for rule in module.RULES
}

_OWN: dict[str, tuple[Dialect, ...]] = {
    "chat": ("chat",),
    "legacy": ("chat",),
    "responses": ("responses",),
    "state": ("responses",),
    "messages": ("messages",),
}
"""Areas that only some APIs have."""


NOT_OF_MESSAGES = ("choice.allowed", "errors.fields", "usage.sum")
"""Messages has no such choice, no such fields, and tells no total."""


def applies(rule: Rule, api: Dialect) -> bool:
    """Whether an API is held to a rule."""
    if rule.id in NOT_OF_MESSAGES:
        return api != "messages"
    return api in _OWN.get(rule.area, (api,))


def rules_for(api: Dialect) -> list[Rule]:
    return [rule for rule in RULES.values() if applies(rule, api)]
