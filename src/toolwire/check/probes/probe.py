"""What a probe is."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from toolwire.check.talks import Talk

Conversation: TypeAlias = Callable[[Talk], Awaitable[None]]

TURNS = "*"
"""Stands for all rules that a turn by itself can break."""


class Probe(msgspec.Struct, frozen=True):
    """One short conversation, and the rules it can show."""

    name: str
    shows: tuple[str, ...]
    run: Conversation


def probe(name: str, *shows: str) -> Callable[[Conversation], Probe]:
    """Make a probe of a conversation."""
    return lambda run: Probe(name, shows, run)
