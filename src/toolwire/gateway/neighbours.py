"""The other processes of this machine, as Codex backends see them: asked by the sockets that the store names."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from toolwire.config.settings import Settings
from toolwire.gateway.peers import Handler, PeerFailed, PeerGone, Peers, PeerServer
from toolwire.gateway.process import Process
from toolwire.memory.membership import Membership
from toolwire.memory.threads import KeptThreads
from toolwire.upstream.codex.handover import Unreachable
from toolwire.upstream.codex.upstream import Sharing


class PeerNeighbours:
    """Asks peers, and answers them with this process's own server."""

    def __init__(self, server: PeerServer) -> None:
        self._server = server

    def handle(self, name: str, handler: Handler) -> None:
        self._server.handle(name, handler)

    async def ask(self, socket: str, name: str, payload: bytes, *, first: float, idle: float) -> AsyncGenerator[bytes]:
        """The answer of the process with this socket. Raises `Unreachable`."""
        path = Path(socket)
        peers = Peers(path.parent, self._server.incarnation)
        try:
            async with aclosing(peers.ask(path.stem, name, payload, first=first, idle=idle)) as pieces:
                async for piece in pieces:
                    yield piece
        except (PeerGone, PeerFailed) as error:
            raise Unreachable(str(error)) from None


def sharing_of(settings: Settings, process: Process, membership: Membership, threads: KeptThreads) -> Sharing | None:
    """What it takes to share Codex threads with the other workers; None where there are none of either."""
    if process.colleagues is None or all(backend.kind != "codex" for backend in settings.backends):
        return None
    threads.share(membership)
    neighbours = PeerNeighbours(process.colleagues.server)
    return Sharing(threads, neighbours, lambda: process.condition != "draining", settings.server.drain)
