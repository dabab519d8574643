"""The objects that all requests of an application share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from toolwire.config.settings import Settings
from toolwire.core.bounds import Bounds
from toolwire.gateway.answer import Pace
from toolwire.gateway.keys import Keys
from toolwire.gateway.log import Log
from toolwire.gateway.memory_budget import MemoryBudget
from toolwire.gateway.origin_check import OriginCheck
from toolwire.gateway.process import Process
from toolwire.memory.sql.store import Store
from toolwire.memory.turn_memory import TurnMemory
from toolwire.turns.observers import TurnObserver
from toolwire.turns.prepare import Engine
from toolwire.upstream.scheduling import Ticker

if TYPE_CHECKING:
    from toolwire.gateway.tools.tools import GatewayTools


class Shared(msgspec.Struct, frozen=True):
    """Everything that is made once, when the application is opened."""

    settings: Settings
    engine: Engine
    origin_check: OriginCheck
    keys: Keys
    log: Log
    bounds: Bounds
    memory_budget: MemoryBudget
    pace: Pace
    """The default pace of a stream."""
    ticker: Ticker
    store: Store
    memory: TurnMemory
    process: Process
    observers: Sequence[TurnObserver]
    tools: "GatewayTools | None" = None
    """The tools that the gateway runs itself."""
