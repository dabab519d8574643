"""The sockets that clients connect to, and the runtime directory with the sockets between workers.

The supervisor holds one listening socket for each worker, all on one port, and the system spreads connections over
them. Connections that wait in a backlog are not lost with a worker: the socket stays open, and the next worker of the
slot accepts them. Only Linux spreads connections; elsewhere all workers share one socket.
"""

import errno
import os
import shutil
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from toolwire.config.settings import Settings, SettingsError
from toolwire.core.display import clean
from toolwire.gateway.http import PIECE
from toolwire.gateway.peers import MAX_SOCKET_PATH, make_incarnation, socket_path
from toolwire.memory.owned_folders import LOCK as OWNER_LOCK
from toolwire.memory.owned_folders import PREFIX, OwnedFolder

BACKLOG = 2048
"""Connections that wait to be accepted."""
LOCK = "stderr.lock"
"""Held by the process that writes to stderr, so that lines of several processes stay whole."""
METRICS = "metrics"
_LISTENING = "0A"
"""The state of a listening socket in /proc/net/tcp."""
SPREADS = sys.platform == "linux" and hasattr(socket, "SO_REUSEPORT")


def listen_for(settings: Settings, workers: int) -> list[socket.socket]:
    """A socket for each worker. Raises `SettingsError`."""
    if not SPREADS:
        shared = listen(settings)
        return [shared] * workers
    if settings.server.port:
        listen(settings).close()  # with SO_REUSEPORT another program of this user could share the port unnoticed
    first = listen(settings, shares_port=True)
    port = first.getsockname()[1]
    return [first, *(listen(settings, port, shares_port=True) for _ in range(workers - 1))]


def listen(settings: Settings, port: int | None = None, *, shares_port: bool = False) -> socket.socket:
    """A socket to serve on, by default on the port of the settings. Raises `SettingsError`."""
    host, port = settings.server.host, settings.server.port if port is None else port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shares_port:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # limits what the system buffers for a slow client
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, PIECE)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        holder = find_listener(port) if error.errno == errno.EADDRINUSE else ""
        reason += f": {holder} has it; --port 0 chooses a free one" if holder else ""
        raise SettingsError(f"server.port: cannot listen on {host}:{port}: {reason}") from None
    return sock


def find_listener(port: int) -> str:
    """The program that listens on a port, and its pid; empty if it cannot be known, as of another user's process."""
    sockets: set[str] = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError, IndexError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and fields[1].endswith(f":{port:04X}"):
                    sockets.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*") if sockets else ():
        with suppress(OSError):
            if any(os.readlink(file) in sockets for file in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                is_toolwire = any(Path(word).name.partition(".")[0] == "toolwire" for word in words[:4])
                name = "another toolwire" if is_toolwire else (process / "comm").read_text().strip()
                return f"{clean(name)} (pid {process.name})"
    return ""


def address_of(sock: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def list_runtime_bases() -> tuple[str, ...]:
    """The possible parents of the runtime directory, in the order to try them."""
    return os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"  # noqa: S108 - because it is short


def make_runtime_folder() -> OwnedFolder:
    """A directory for the sockets and the metrics of all workers, which only their user can enter.

    Raises `SettingsError`.
    """
    for base in list_runtime_bases():
        if not os.path.isabs(base):
            continue
        with suppress(OSError):
            folder = OwnedFolder(PREFIX, base)
            if len(os.fsencode(socket_path(folder.path, make_incarnation()))) <= MAX_SOCKET_PATH:
                return folder
            folder.remove()
    raise SettingsError("--workers: there is no directory for the sockets of workers; set XDG_RUNTIME_DIR or TMPDIR")


def leave_runtime_folder(folder: Path, *, is_last: bool) -> None:
    """Remove the directory if no process has a socket in it; the last process removes it with all its content."""
    with suppress(OSError):
        names = {path.name for path in folder.iterdir()}
        if is_last or names <= {LOCK, OWNER_LOCK, METRICS}:
            shutil.rmtree(folder, ignore_errors=True)
