"""The sockets that clients connect to: one for each worker, all on one port, held by the supervisor.

The system spreads connections over the sockets. What waits at one is not lost with the worker that took it: the socket
stays open, and the next worker of its slot goes on with it. Only Linux spreads; elsewhere all workers share one socket.
"""

import os
import socket
import sys

from toolwire.config.settings import Settings, SettingsError
from toolwire.gateway.http import PIECE

BACKLOG = 2048
SPREADS = sys.platform == "linux" and hasattr(socket, "SO_REUSEPORT")


def listen(settings: Settings) -> socket.socket:
    """The one socket to serve on, or one clear line why not."""
    return _bound(settings, settings.server.port, shares_port=False)


def listen_for(settings: Settings, workers: int) -> list[socket.socket]:
    """A socket for each of so many workers, or one clear line why not."""
    if not SPREADS:
        shared = listen(settings)
        return [shared] * workers
    if settings.server.port:
        listen(settings).close()  # another program of this user could listen beside us unnoticed
    first = _bound(settings, settings.server.port, shares_port=True)
    port = first.getsockname()[1]
    return [first, *(_bound(settings, port, shares_port=True) for _ in range(workers - 1))]


def _bound(settings: Settings, port: int, *, shares_port: bool) -> socket.socket:
    host = settings.server.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shares_port:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # the system's buffer is no place for what a slow client does not take
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, PIECE)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SettingsError(f"server.port: cannot listen on {host}:{port}: {reason}") from None
    return sock


def address_of(sock: socket.socket) -> str:
    """Where a socket can be reached."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
