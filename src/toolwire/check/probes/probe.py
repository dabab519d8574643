"""The type of a probe."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from toolwire.check.sessions import ProbeSession

ProbeFunction: TypeAlias = Callable[[ProbeSession], Awaitable[None]]

TURNS = "*"
"""Stands for all rules that a turn by itself can break."""


class Probe(msgspec.Struct, frozen=True):
    """One short conversation, and the rules that it tests."""

    name: str
    rules: tuple[str, ...]
    run: ProbeFunction


def probe(name: str, *rules: str) -> Callable[[ProbeFunction], Probe]:
    """Decorator that makes a probe of a function."""
    return lambda run: Probe(name, rules, run)
