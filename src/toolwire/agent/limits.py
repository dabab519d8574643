"""Bounds of a task, and what is known of the account's rate limits."""

import math
import re
from collections.abc import Iterable, Mapping

import msgspec

from toolwire.agent.events import RateLimit, Tokens, Window


class Prices(msgspec.Struct, frozen=True):
    """What a million tokens cost. Cached input is part of the input, and has its own price."""

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None

    def of(self, tokens: Tokens) -> float:
        cached = self.input if self.cached is None else self.cached
        fresh = max(0, tokens.input - tokens.cached)
        return (fresh * self.input + tokens.cached * cached + tokens.output * self.output) / 1_000_000


class Limits(msgspec.Struct, frozen=True):
    """When a task ends, whether or not it is done. 0 is no limit."""

    rounds: int = 100
    """Turns of the model."""
    tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    """In the currency of the prices."""
    prices: Prices = Prices()

    def reached(self, rounds: int, tokens: Tokens, seconds: float) -> str:
        """The name of the limit that is reached, if one is."""
        if self.rounds and rounds >= self.rounds:
            return "rounds"
        if self.tokens and tokens.total >= self.tokens:
            return "tokens"
        if self.seconds and seconds >= self.seconds:
            return "seconds"
        if self.cost and self.prices.of(tokens) >= self.cost:
            return "cost"
        return ""


_HEADER = re.compile(r"x-(.+)-(primary|secondary)-(used-percent|window-minutes|reset-at)")


def limits_in(headers: Mapping[str, str]) -> tuple[RateLimit, ...]:
    """The rate limits that a reply's headers tell: the family `codex`, and any other of the same form."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, value in headers.items():
        told = _HEADER.fullmatch(name.lower())
        if told is None:
            continue
        number = _number(value)
        if number is not None:
            found.setdefault(told[1], {}).setdefault(told[2], {})[told[3]] = number
    return _known(
        RateLimit(name, _window(windows.get("primary")), _window(windows.get("secondary")))
        for name, windows in found.items()
    )


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _window(told: dict[str, float] | None) -> Window | None:
    if told is None or "used-percent" not in told:
        return None
    return Window(told["used-percent"], told.get("window-minutes"), told.get("reset-at"))


def _known(limits: Iterable[RateLimit]) -> tuple[RateLimit, ...]:
    """Those of which anything is known."""
    return tuple(limit for limit in limits if limit.primary is not None or limit.secondary is not None)


class _UsageWindow(msgspec.Struct):
    used_percent: float | None = None
    limit_window_seconds: float | None = None
    reset_at: float | None = None


class _UsageLimit(msgspec.Struct):
    primary_window: _UsageWindow | None = None
    secondary_window: _UsageWindow | None = None


class _Extra(msgspec.Struct):
    limit_name: str | None = None
    rate_limit: _UsageLimit | None = None


class _Usage(msgspec.Struct):
    rate_limit: _UsageLimit | None = None
    additional_rate_limits: list[_Extra] | None = None


def limits_from_usage(body: bytes) -> tuple[RateLimit, ...]:
    """The rate limits in an answer of the usage endpoint behind a ChatGPT login; none if it is not understood."""
    try:
        usage = msgspec.json.decode(body, type=_Usage)
    except msgspec.DecodeError:
        return ()
    families = [("codex", usage.rate_limit)]
    families += [(extra.limit_name or "other", extra.rate_limit) for extra in usage.additional_rate_limits or ()]
    return _known(
        RateLimit(name, _usage_window(limit.primary_window), _usage_window(limit.secondary_window))
        for name, limit in families
        if limit is not None
    )


def _usage_window(window: _UsageWindow | None) -> Window | None:
    if window is None or window.used_percent is None:
        return None
    seconds = window.limit_window_seconds
    return Window(window.used_percent, seconds / 60 if seconds else None, window.reset_at)
