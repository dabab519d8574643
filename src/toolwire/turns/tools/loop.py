"""The tool loop: ask a model, run the tools that it calls, and ask again with their results.

    while not loop.stop_reason:
        loop.begin_turn()
        calls = loop.calls()
        …  # ask the model; feed each event to `calls`, and start each complete call
        results = await calls.results()
        …  # add the turn and the results to the history; without calls the work is done

The gateway and the agent share the limits, the running of calls and the detection of repeated failures. Each keeps its
own history, and decides what happens between two turns.
"""

import time

import msgspec

from toolwire.core.events import Usage
from toolwire.turns.tools.calls import CallHooks, TurnCalls
from toolwire.turns.tools.registry import Registry
from toolwire.turns.tools.repeats import Repeats

REPEATED_CALLS = "repeated_calls"
"""The stop reason when the same call keeps failing."""


class Prices(msgspec.Struct, frozen=True):
    """Prices per million tokens. Cached input is part of the input, and has its own price."""

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None

    def of(self, tokens: Usage) -> float:
        """The cost of these tokens."""
        cached = self.input if self.cached is None else self.cached
        fresh = max(0, tokens.input - tokens.cached)
        return (fresh * self.input + tokens.cached * cached + tokens.output * self.output) / 1_000_000


class Limits(msgspec.Struct, frozen=True):
    """Limits at which a loop ends even if the work is not done; 0: no limit. Raises `ValueError` if one is negative."""

    max_turns: int = 100
    """Turns of the model."""
    tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    """In the currency of the prices."""
    prices: Prices = Prices()

    def __post_init__(self) -> None:
        for name in ("max_turns", "tokens", "seconds", "cost"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is less than 0")

    def reached(self, turns: int, tokens: Usage, seconds: float) -> str:
        """The name of the first limit that is reached, or an empty string."""
        used = {"max_turns": turns, "tokens": tokens.total, "seconds": seconds, "cost": self.prices.of(tokens)}
        limits = {"max_turns": self.max_turns, "tokens": self.tokens, "seconds": self.seconds, "cost": self.cost}
        return next((name for name, limit in limits.items() if limit and used[name] >= limit), "")


class ToolLoop:
    """The state that the turns of one request or task share: tools, limits, and repeated failures."""

    def __init__(self, registry: Registry, hooks: CallHooks, limits: Limits) -> None:
        self.registry = registry
        self.repeats = Repeats(registry)
        self.turns = 0
        """Turns that have begun."""
        self.usage: Usage | None = None
        """Tokens of all turns; None until a backend reports any."""
        self._hooks = hooks
        self._limits = limits
        self._began = time.monotonic()

    def begin_turn(self) -> int:
        """Count a turn, and return its number."""
        self.turns += 1
        return self.turns

    def calls(self) -> TurnCalls:
        """A runner for the calls of a turn. A turn that is retried gets another one."""
        self.repeats.next_turn()
        return TurnCalls(self.registry, self._hooks, self.repeats.judge)

    def spend(self, usage: Usage) -> None:
        """Add the tokens of a turn."""
        self.usage = usage if self.usage is None else self.usage.plus(usage)

    @property
    def stop_reason(self) -> str:
        """Why the model is not asked again: repeated calls, or the name of a limit; else an empty string."""
        if self.repeats.given_up is not None:
            return REPEATED_CALLS
        return self._limits.reached(self.turns, self.usage or Usage(), time.monotonic() - self._began)
