"""What all requests of an application share."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from toolwire.config.settings import Settings
from toolwire.core.bounds import Bounds
from toolwire.core.request import Request
from toolwire.gateway.answer import Pace
from toolwire.gateway.keys import Keys
from toolwire.gateway.log import Log
from toolwire.gateway.memory_budget import MemoryBudget
from toolwire.gateway.metrics import Metrics
from toolwire.gateway.origin_check import OriginCheck
from toolwire.gateway.process import Process
from toolwire.memory.store import Store
from toolwire.memory.turn_memory import TurnMemory
from toolwire.turns.attempt import Confirm
from toolwire.turns.observers import TurnObserver
from toolwire.turns.prepare import Engine
from toolwire.turns.run import Run
from toolwire.turns.source import TurnSource
from toolwire.upstream.scheduling import Ticker

if TYPE_CHECKING:
    from toolwire.gateway.tools.search import Search


class Toolbox(Protocol):
    """Tools that the gateway runs itself."""

    def can_join(self, request: Request) -> bool: ...

    def run(
        self,
        owner: str,
        request: Request,
        begin: Callable[[Request], Run],
        on_call: Callable[[str, str], None],
        confirm: Confirm | None,
        search: "Search | None",
    ) -> TurnSource:
        """A run with these tools. `on_call` is called with the name and the outcome of each call of them, `confirm`
        before each. `search` are searches for tools that are run here too."""
        ...


class Shared(msgspec.Struct, frozen=True):
    """Everything that is made once, when the application is opened."""

    settings: Settings
    engine: Engine
    origin_check: OriginCheck
    keys: Keys
    log: Log
    metrics: Metrics
    bounds: Bounds
    memory_budget: MemoryBudget
    pace: Pace
    loop: asyncio.AbstractEventLoop
    """Known here once: asking for it costs a system call each time."""
    ticker: Ticker
    store: Store
    memory: TurnMemory
    process: Process
    observers: Sequence[TurnObserver]
    tools: Toolbox | None = None
    max_reply: int = 64_000_000
