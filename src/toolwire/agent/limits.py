"""Reads the rate limits of an account, from headers and from the usage endpoint."""

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec

from toolwire.agent.events import RateLimit, Window
from toolwire.backends.decoder import UNREADABLE

_HEADER = re.compile(r"x-(.+)-(primary|secondary)-(used-percent|window-minutes|reset-at)")


def limits_from_headers(headers: Mapping[str, str]) -> tuple[RateLimit, ...]:
    """The rate limits in the headers of a reply: the family `codex`, and any other of the same form."""
    values = {name.lower(): value for name, value in headers.items()}
    families = dict.fromkeys(match[1] for match in map(_HEADER.fullmatch, values) if match is not None)
    limits = (
        RateLimit(name, _window(values, f"x-{name}-primary"), _window(values, f"x-{name}-secondary"))
        for name in families
    )
    return _drop_empty(limits)


def _window(headers: Mapping[str, str], name: str) -> Window | None:
    numbers: list[float | None] = [None, None, None]
    for index, field in enumerate(("used-percent", "window-minutes", "reset-at")):
        with suppress(ValueError):
            number = float(headers.get(f"{name}-{field}", ""))
            numbers[index] = number if math.isfinite(number) else None
    used, minutes, reset = numbers
    return Window(used, minutes, reset) if used is not None else None


def _drop_empty(limits: Iterable[RateLimit]) -> tuple[RateLimit, ...]:
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
    """The rate limits in an answer of the usage endpoint behind a ChatGPT login; none if it cannot be read."""
    try:
        usage = msgspec.json.decode(body, type=_Usage)
    except UNREADABLE:
        return ()
    families = [("codex", usage.rate_limit)]
    families += [(extra.limit_name or "other", extra.rate_limit) for extra in usage.additional_rate_limits or ()]
    return _drop_empty(
        RateLimit(name, _usage_window(limit.primary_window), _usage_window(limit.secondary_window))
        for name, limit in families
        if limit is not None
    )


def _usage_window(window: _UsageWindow | None) -> Window | None:
    if window is None or window.used_percent is None:
        return None
    seconds = window.limit_window_seconds
    return Window(window.used_percent, seconds / 60 if seconds else None, window.reset_at)
