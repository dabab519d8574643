"""This process: a gateway of its own or one of several workers; starting, ready or draining."""

import asyncio
import sys
from typing import Literal, TypeAlias

from toolwire.gateway.metrics import Metrics
from toolwire.gateway.peers import Peers, PeerServer
from toolwire.gateway.workers.messages import Fleet

try:
    import resource
except ImportError:  # Windows
    resource = None

Condition: TypeAlias = Literal["starting", "ready", "draining"]


class Colleagues:
    """The workers of one machine, as one of them knows them."""

    def __init__(self, slot: int, peers: Peers, server: PeerServer, codex_socket: str, fleet: Fleet) -> None:
        self.slot = slot
        """The number of this worker."""
        self.peers = peers
        self.server = server
        self.codex_socket = codex_socket
        """The path of the socket of the process that hosts Codex; empty if there is none."""
        self.fleet = fleet
        """Desired and ready workers, as the supervisor last reported them."""


class Process:
    """This process. Without `colleagues` it is alone."""

    def __init__(
        self,
        configuration: str,
        drain: float,
        metrics: Metrics | None = None,
        colleagues: Colleagues | None = None,
    ) -> None:
        self.configuration = configuration
        """The version of the configuration in force here."""
        self.condition: Condition = "starting"
        self.colleagues = colleagues
        self.drain = drain
        self.retired = False
        """Whether another worker has taken its place, so that its turns may take as long as they need."""
        self.metrics = metrics or Metrics()

    @property
    def slot(self) -> int | None:
        return self.colleagues.slot if self.colleagues is not None else None

    @property
    def codex_socket(self) -> str:
        """The path of the socket of the process that hosts Codex; empty if this one does."""
        return self.colleagues.codex_socket if self.colleagues is not None else ""

    @property
    def facts(self) -> dict[str, object]:
        """What `/readyz` shows of it."""
        facts: dict[str, object] = {"configuration": self.configuration}
        if self.colleagues is not None:
            fleet = self.colleagues.fleet
            facts |= {"worker": self.slot, "workers": {"count": fleet.workers, "ready": fleet.ready}}
        return facts

    async def read_metrics(self) -> bytes:
        """The metrics of all workers, in the text format of Prometheus."""
        return await asyncio.to_thread(self.metrics.text)


def file_limit() -> int:
    """Files that this process may open; a very large number where the system sets no limit."""
    if resource is None:
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def allow_files(connections: int) -> None:
    """Ask the system for as many open files as all connections need, each with one to a backend."""
    wanted = 2 * connections + 512
    if resource is not None and file_limit() < wanted:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
