"""What this process is: a gateway of its own or one of several workers; starting, ready or draining."""

from typing import Literal, Protocol, TypeAlias

from toolwire.gateway.metrics import Metrics
from toolwire.gateway.peers import Peers, PeerServer

Condition: TypeAlias = Literal["starting", "ready", "draining"]


class Unanswered(Exception):
    """The numbers of all workers cannot be had now."""


class Colleagues(Protocol):
    """The other workers, as one of them knows them."""

    slot: int
    """The number of this worker."""
    peers: Peers
    server: PeerServer

    @property
    def count(self) -> int:
        """How many workers there should be."""
        ...

    @property
    def ready(self) -> int:
        """How many of them are ready."""
        ...

    async def numbers(self) -> bytes:
        """The numbers of all of them, for Prometheus; `Unanswered` if they cannot be had."""
        ...


class Process:
    """This process. Without `colleagues` it is alone."""

    def __init__(self, configuration: str, drain: float, colleagues: Colleagues | None = None) -> None:
        self.configuration = configuration
        """The version of the configuration in force here."""
        self.condition: Condition = "starting"
        self.colleagues = colleagues
        self.drain = drain
        self.retired = False
        """Whether another worker has taken its place, so that its turns may take as long as they need."""
        self.metrics = Metrics()

    @property
    def slot(self) -> int | None:
        return self.colleagues.slot if self.colleagues is not None else None

    @property
    def socket(self) -> str:
        """Where other workers can ask it; nothing if there are none."""
        return self.colleagues.server.path if self.colleagues is not None else ""

    @property
    def facts(self) -> dict[str, object]:
        """What operators are told."""
        facts: dict[str, object] = {"configuration": self.configuration}
        if self.colleagues is not None:
            colleagues = self.colleagues
            facts |= {"worker": colleagues.slot, "workers": {"count": colleagues.count, "ready": colleagues.ready}}
        return facts

    async def numbers(self) -> bytes:
        return self.metrics.text() if self.colleagues is None else await self.colleagues.numbers()
