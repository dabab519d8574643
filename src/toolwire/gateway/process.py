"""This process: a gateway of its own, or one of several workers."""

import asyncio
import sys
from typing import Literal, TypeAlias

import msgspec

from toolwire.gateway.metrics import Metrics
from toolwire.gateway.peers import Peers, PeerServer
from toolwire.gateway.workers.messages import Fleet

try:
    import resource
except ImportError:  # Windows
    resource = None

try:
    import uvloop
except ImportError:  # Windows
    uvloop = None

Condition: TypeAlias = Literal["starting", "ready", "draining"]


class Colleagues(msgspec.Struct):
    """The workers of one machine, as one of them knows them."""

    slot: int
    """The number of this worker."""
    peers: Peers
    server: PeerServer
    codex_socket: str
    """The path of the socket of the process that hosts Codex; empty if there is none."""
    fleet: Fleet
    """Desired and ready workers, as the supervisor last reported them."""


class Process(msgspec.Struct, eq=False):
    """This process. Without `colleagues` it is alone."""

    configuration: str
    """The version of the configuration in force here."""
    metrics: Metrics = msgspec.field(default_factory=Metrics)
    colleagues: Colleagues | None = None
    condition: Condition = "starting"
    retired: bool = False
    """Whether another worker has taken its place, so that its turns may take as long as they need."""

    @property
    def slot(self) -> int | None:
        return self.colleagues.slot if self.colleagues is not None else None

    @property
    def facts(self) -> dict[str, object]:
        """The fields of `/readyz` about this process."""
        facts: dict[str, object] = {"configuration": self.configuration}
        if self.colleagues is not None:
            fleet = self.colleagues.fleet
            facts |= {"worker": self.slot, "workers": {"count": fleet.workers, "ready": fleet.ready}}
        return facts


def read_file_limit() -> int:
    """Files that this process may open; a very large number where the system sets no limit."""
    if resource is None:
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def allow_files(connections: int) -> None:
    """Raise the limit on open files for this many connections, each with one to a backend."""
    wanted = 2 * connections + 512
    if resource is not None and read_file_limit() < wanted:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop of uvloop, where it is installed."""
    return uvloop.new_event_loop() if uvloop is not None else asyncio.new_event_loop()
