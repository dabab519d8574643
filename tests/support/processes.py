"""Processes for tests: `Popen` and `run` of `subprocess`, by way of one server for all tests of a run.

A Python program is forked from a process that has imported Toolwire, which takes 20 ms instead of a second of imports.
`fresh=True` starts a new interpreter, for tests of the start itself. The server kills its processes when the tests end.
On other systems than Linux this is `subprocess` itself.
"""

import atexit
import fcntl
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tests.support.process_server import Order

ROOT = Path(__file__).parents[2]
LINUX = sys.platform == "linux"
TAKE_TERMINAL = ("/bin/sh", "-c", 'true <"$0"; exec "$@"')
"""The first terminal that a new session opens becomes its controlling terminal, which Ctrl-C needs."""


class Popen(subprocess.Popen[Any]):
    """A process that the server has started. It is no child of this one, so its end is read from a socket."""

    def __init__(
        self, args: Any, *, fresh: bool = False, terminal: bool = False, start_new_session: bool = False, **how: Any
    ) -> None:
        """`terminal` makes stdin the controlling terminal."""
        self._fresh = fresh
        self._terminal = terminal
        self._session = start_new_session or terminal
        self._control: socket.socket | None = None
        if terminal and not LINUX:
            args = (*TAKE_TERMINAL, os.ttyname(how["stdin"]), *args)
        super().__init__(args, start_new_session=self._session, **how)

    if LINUX:

        def _execute_child(self, args: Any, *given: Any) -> None:
            executable, preexec, _, passed, cwd, env, *_ = given
            assert executable is None, "not carried over to the server"
            assert preexec is None, "not carried over to the server"
            assert not passed, "not carried over to the server"
            pipes = given[9:15]
            argv = [os.fsdecode(each) for each in ([args] if isinstance(args, str | os.PathLike) else args)]
            env = {os.fsdecode(k): os.fsdecode(v) for k, v in (os.environ if env is None else env).items()}
            warm = not self._fresh and _is_plain(argv, env)
            order = Order(argv, str(cwd or Path.cwd()), env, self._session, self._terminal, warm)
            ours, theirs = socket.socketpair()
            streams = [at if at != -1 else own for own, at in enumerate((pipes[0], pipes[3], pipes[5]))]
            socket.send_fds(_server(), [msgspec.json.encode(order)], [*streams, theirs.fileno()])
            theirs.close()
            self._close_pipe_fds(*pipes)
            self._child_created = True
            self._control = ours
            self.pid = int(self._next_line())

        def _next_line(self) -> bytes:
            """Read a line from the server; return b"-9", as after SIGKILL, if the server is gone."""
            assert self._control is not None
            line = b""
            while not line.endswith(b"\n") and (more := self._control.recv(1)):
                line += more
            return line or b"-9"

        def _internal_poll(self, *_: Any, **__: Any) -> int | None:
            if self.returncode is None and self._has_ended(0):
                self._take_end()
            return self.returncode

        def _wait(self, timeout: float | None) -> int:
            if self.returncode is None:
                if not self._has_ended(timeout):
                    assert timeout is not None
                    raise subprocess.TimeoutExpired(self.args, timeout)
                self._take_end()
            return self.returncode

        def _has_ended(self, timeout: float | None) -> bool:
            if self.returncode is not None or self._control is None:
                return True
            poll = select.poll()  # select() knows the first 1,024 descriptors only
            poll.register(self._control, select.POLLIN)
            return bool(poll.poll(None if timeout is None else timeout * 1000))

        def _take_end(self) -> None:
            with self._waitpid_lock:
                if self.returncode is None and self._control is not None:
                    self.returncode = int(self._next_line())
                    self._control.close()


def run(
    args: Any,
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **how: Any,
) -> "subprocess.CompletedProcess[Any]":
    """`subprocess.run` with this module's `Popen`."""
    if input is not None:
        how["stdin"] = subprocess.PIPE
    if capture_output:
        how["stdout"] = how["stderr"] = subprocess.PIPE
    with Popen(args, **how) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _is_plain(argv: list[str], env: dict[str, str]) -> bool:
    """Whether a forked interpreter is the same as a new one for this command."""
    given = {(name, value) for name, value in env.items() if name.startswith("PYTHON") and name != "PYTHONPATH"}
    words = env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG") or "C.UTF-8"
    is_script = len(argv) > 1 and (argv[1] in ("-m", "-c") or argv[1].endswith(".py"))
    return (
        argv[0] == sys.executable
        and is_script
        and given <= os.environ.items()
        and words.upper().replace("-", "").endswith(("UTF8", "C", "POSIX"))
    )


def warm_command(*argv: str) -> list[str]:
    """Return a command that runs a Python program on the server, for Toolwire to start as its own child process."""
    if not LINUX:
        return [sys.executable, *argv]
    _server()
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("warm.py")), str(_path()), *argv]


def _path() -> Path:
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    return Path(tempfile.gettempdir()) / f"toolwire-tests-{run}"


@cache
def _server() -> socket.socket:
    """A connection to the server of this run, which the first test process starts."""
    path = _path()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            command = [sys.executable, "-m", "tests.support.process_server", str(path)]
            subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
        deadline = time.monotonic() + 120
        while True:
            try:
                connection.connect(str(path))
            except OSError:
                assert time.monotonic() < deadline, "the process server does not start"
                time.sleep(0.02)
            else:
                atexit.register(connection.close)
                return connection
