"""Starts processes for tests: Python programs by fork from a process that has imported them already.

    python -m tests.support.process_server SOCKET

A test process opens one connection, and so does each `warm.py`. A request is one packet: a JSON `Order`, with the descriptors of stdin, stdout,
stderr and a control socket. On the control socket the server answers with the pid, and with the exit code when the
process has ended. When a connection closes, the server kills what was started on it. When the last one closes, it kills
all other descendants and ends. So a test run that is killed leaves no process behind.
"""

import ctypes
import fcntl
import gc
import importlib
import io
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import msgspec

MAX_PACKET = 1 << 20
PRELOADED = ("mcp.server.mcpserver", "mcp.server.stdio", "mcp.client.stdio", "sqlite3", "uvicorn", "uvloop", "asyncpg")
PR_SET_CHILD_SUBREAPER = 36


class Order(msgspec.Struct):
    """A process to start."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    session: bool = False
    terminal: bool = False
    """Whether stdin becomes the controlling terminal."""
    warm: bool = True
    """Whether argv is a Python program that is run after a fork, without a new interpreter."""


def preload() -> None:
    """Import what the programs import."""
    import toolwire

    for name in PRELOADED:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(toolwire.__path__, "toolwire."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


class Server:
    """Accepts orders until the last connection closes. `serve` returns an order in a forked process, else None."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, waker = socket.socketpair()
        waker.setblocking(False)
        self._waker = waker
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._controls: dict[int, tuple[socket.socket, socket.socket]] = {}
        """The connection and the control socket of each process."""
        self._connections: set[socket.socket] = set()

    def serve(self) -> Order | None:
        is_used = False
        while self._connections or not is_used:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    self._connections.add(connection)
                    self._selector.register(connection, selectors.EVENT_READ)
                    is_used = True
                elif key.fileobj is self._wake:
                    self._wake.recv(4096)
                    self._reap()
                elif isinstance(key.fileobj, socket.socket) and (order := self._answer(key.fileobj)):
                    return order
        return None

    def _answer(self, connection: socket.socket) -> Order | None:
        try:
            data, given, _, _ = socket.recv_fds(connection, MAX_PACKET, 4)
        except OSError:
            data, given = b"", []
        if not data:
            self._close(connection)
            return None
        order = msgspec.json.decode(data, type=Order)
        control = socket.socket(fileno=given.pop())
        pid = os.fork()
        if not pid:
            self._leave()
            _take_over(order, given)
            return order
        for descriptor in given:
            os.close(descriptor)
        self._controls[pid] = connection, control
        with suppress(OSError):
            control.send(b"%d\n" % pid)
        return None

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] in self._controls:
                    _, control = self._controls.pop(ended[0])
                    with suppress(OSError):
                        control.send(b"%d\n" % os.waitstatus_to_exitcode(ended[1]))
                    control.close()

    def _close(self, connection: socket.socket) -> None:
        """Kill what was started on a connection."""
        self._selector.unregister(connection)
        self._connections.remove(connection)
        connection.close()
        kill_all([pid for pid, (owner, _) in self._controls.items() if owner is connection])
        if not self._connections:
            kill_all(children(os.getpid()))  # also orphans

    def _leave(self) -> None:
        """Forget the server in a new process."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        for each in (self._listener, self._wake, self._waker, *self._connections):
            each.close()
        for _, control in self._controls.values():
            control.close()


def kill_all(pids: list[int]) -> None:
    """Kill processes and their descendants. Each is stopped first, so that it starts no others meanwhile."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            kill_all(children(pid))
            os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def _take_over(order: Order, descriptors: list[int]) -> None:
    """Prepare a forked process for its program: signals, session, streams, directory and environment."""
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order.session:
        os.setsid()
    else:
        os.setpgid(0, 0)
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
    for descriptor in descriptors:
        if descriptor > 2:
            os.close(descriptor)
    if order.terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(order.cwd)
    os.environ.clear()
    os.environ.update(order.env)
    time.tzset()


def run(order: Order) -> None:
    """Run the program of an order as the interpreter would."""
    if not order.warm:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvpe(order.argv[0], order.argv, order.env)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.stdin = _stream(0, "rb")
    sys.stdout = _stream(1, "wb", line_buffering=os.isatty(1))
    sys.stderr = _stream(2, "wb", "backslashreplace", line_buffering=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.orig_argv = order.argv
    _, how, *rest = order.argv
    first = {"-m": order.cwd, "-c": ""}.get(how, str(Path(how).parent))
    given = [each for each in order.env.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:1] = [first, *given]
    if any(Path(folder, "sitecustomize.py").exists() for folder in given):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    if how == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.argv = [how, *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [how, *rest]
        runpy.run_path(how, run_name="__main__")


def _stream(descriptor: int, mode: str, errors: str = "strict", *, line_buffering: bool = False) -> io.TextIOWrapper:
    return io.TextIOWrapper(open(descriptor, mode, closefd=False), "utf-8", errors, line_buffering=line_buffering)


def main() -> None:
    """Run the server; in a forked process, run the program of its order."""
    if os.fork():
        os._exit(0)  # so that it is a child of no test
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    preload()
    gc.collect()
    gc.freeze()
    path = sys.argv[1]
    order = Server(path).serve()
    if order is None:
        Path(path).unlink(missing_ok=True)
        return
    run(order)


if __name__ == "__main__":
    main()
