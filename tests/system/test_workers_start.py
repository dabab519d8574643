"""How several workers start: slowly if they must, again if they end, and not at all only for a reason."""

import os
import signal
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.fleet import PATIENCE, STORE, signal_to, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="another platform: reads /proc")

TOOLS = '[gateway_tools]\ntools = ["late:find"]\n'
QUICK = "import toolwire.gateway.workers.supervisor as supervisor; supervisor.TICK = 0.3\n"
"""A worker that was ready is hung after three seconds, and one that is not has 36."""


def loaded(folder: Path, code: str) -> dict[str, str]:
    """The environment for a gateway tool that runs code when it is loaded: `load` counts, of all processes, from 1.
    The first that loads it is the check."""
    counting = f"""
import os, pathlib, time
loads = pathlib.Path({str(folder / "loads")!r})
with loads.open("a") as file:
    file.write("x")
load = loads.stat().st_size
{code}

def find(q: str) -> str:
    return "found"
"""
    (folder / "late.py").write_text(counting)
    return {"PYTHONPATH": str(folder)}


def loads_of(folder: Path) -> int:
    return (folder / "loads").stat().st_size if (folder / "loads").exists() else 0


@pytest.fixture
def begin(tmp_path: Path) -> "Iterator[Callable[..., subprocess.Popen[str]]]":
    """Begins a start that may come to nothing. What is left of it in the end is killed."""
    begun: list[subprocess.Popen[str]] = []

    def begin(config: str, patch: str = "", **environment: str) -> "subprocess.Popen[str]":
        (tmp_path / "toolwire.toml").write_text(config + STORE)
        program = (sys.executable, "-c", f"{patch}\nfrom toolwire.cli import main; main()")
        command = [*program, "serve", "-c", "toolwire.toml", "--port", "0", "--workers", "2"]
        process = processes.Popen(
            command,
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        begun.append(process)
        return process

    yield begin
    for process in begun:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)


def ended(process: "subprocess.Popen[str]") -> tuple[int, list[str]]:
    """The exit code, and what was said."""
    _, said = process.communicate(timeout=PATIENCE)
    return process.returncode, said.splitlines()


# Slowly


class StalledDatabase(socketserver.StreamRequestHandler):
    """A PostgreSQL that lets everybody in and answers nothing."""

    def handle(self) -> None:
        with suppress(OSError, struct.error):
            while self._opening() == 80877103:  # whoever asks for encryption
                self.wfile.write(b"N")
            self.wfile.write(_said(b"R", struct.pack("!I", 0)))
            for name, value in (("server_version", "16.0"), ("client_encoding", "UTF8"), ("TimeZone", "UTC")):
                self.wfile.write(_said(b"S", f"{name}\0{value}\0".encode()))
            self.wfile.write(_said(b"K", struct.pack("!II", 1, 2)) + _said(b"Z", b"I"))
            while self.connection.recv(65536):
                pass

    def _opening(self) -> int:
        [size] = struct.unpack("!I", self.rfile.read(4))
        return struct.unpack("!I", self.rfile.read(size - 4)[:4])[0]


def _said(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", 4 + len(body)) + body


@pytest.fixture
def stalled() -> Iterator[str]:
    """The URL of a database that never answers."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), StalledDatabase) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"postgresql://u:p@127.0.0.1:{server.server_address[1]}/d"
        server.shutdown()


def test_a_database_that_stalls_does_not_end_the_start_nor_kill_anybody(start_fleet, stalled: str):
    pytest.importorskip("asyncpg")
    impatient = "from toolwire.memory.postgres import database; database.MIGRATION_TIMEOUT = 6.0\n"
    fleet = start_fleet(f'[store]\nurl = "{stalled}"\n', patch=QUICK + impatient)
    assert fleet.readiness()[0] == 200
    assert fleet.lines("worker") == []


def test_a_worker_that_takes_its_time_to_start_is_not_hung(start_fleet, tmp_path):
    fleet = start_fleet(TOOLS, patch=QUICK, **loaded(tmp_path, "if load > 1: time.sleep(5)"))
    assert fleet.lines("worker") == []


def test_a_worker_that_takes_too_long_ends_the_start_with_exit_1(begin, tmp_path):
    quicker = QUICK.replace("0.3", "0.02")
    start = begin(TOOLS, quicker, **loaded(tmp_path, "if load > 1: time.sleep(3600)"))
    code, [line] = ended(start)
    assert (code, "does not start: it was not ready within 120 s" in line) == (1, True), line


# Again


ALL_THREE_END = """
if 1 < load < 5:
    while loads.stat().st_size < 4:
        time.sleep(0.01)
    os._exit(3)
"""


def test_every_slot_has_attempts_of_its_own(start_fleet, tmp_path):
    fleet = start_fleet(TOOLS, workers=3, **loaded(tmp_path, ALL_THREE_END))
    lost = fleet.events("worker", state="ended", ending="exit code 3")
    assert len(lost) == 3


def test_a_slot_whose_workers_all_end_stops_the_start_with_exit_1(begin, tmp_path):
    """No setting is to blame as far as anybody knows, so systemd may try again."""
    code, [*_, last] = ended(begin(TOOLS, **loaded(tmp_path, "if load > 1: os._exit(3)")))
    assert (code, "does not start: it ended with exit code 3" in last) == (1, True), last


def test_a_check_that_is_killed_stops_the_start_with_exit_1(begin, tmp_path):
    kill = f"os.kill(os.getpid(), {signal.SIGKILL:d})"
    code, [line] = ended(begin(TOOLS, **loaded(tmp_path, kill)))
    assert (code, "the check of the settings ended with SIGKILL" in line) == (1, True), line


# Signals meanwhile


def children(process: "subprocess.Popen[str]") -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("who", "loads"), [("if load == 1", 1), ("if load > 1", 3)], ids=["check", "workers"])
def test_a_signal_ends_a_start_that_takes_its_time(begin, tmp_path, who: str, loads: int, number: signal.Signals):
    process = begin(TOOLS, **loaded(tmp_path, f"{who}: time.sleep(3600)"))
    until(lambda: loads_of(tmp_path) == loads)
    started = children(process)
    assert started
    process.send_signal(number)
    assert ended(process) == (0, [])
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)


@pytest.mark.parametrize("who", ["if load == 1", "if load > 1"], ids=["check", "workers"])
def test_sighup_during_the_start_is_a_reload_after_it(begin, tmp_path, who: str):
    wait = f"""
{who}:
    while not pathlib.Path({str(tmp_path / "go")!r}).exists():
        time.sleep(0.05)
"""
    process = begin(TOOLS, **loaded(tmp_path, wait))
    until(lambda: loads_of(tmp_path) == (1 if "==" in who else 3))
    for pid in children(process):
        signal_to(pid, signal.SIGHUP)  # as a terminal does, or systemd
        signal_to(pid, signal.SIGINT)
    process.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    assert process.stderr is not None
    said = [next(process.stderr) for _ in range(4)]
    assert "toolwire ready on" in said[0]
    assert '"state":"checking"' in said[2]
    assert '"state":"done"' in said[3]
    process.terminate()
    assert ended(process)[0] == 0


HANGUP_WHILE_LOADING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "toolwire.gateway.serve":
            os.kill(os.getpid(), signal.SIGHUP)
sys.meta_path.insert(0, Finder())
"""


def test_sighup_while_the_program_is_loaded_is_a_reload_after_it(start_fleet):
    fleet = start_fleet(patch=HANGUP_WHILE_LOADING, fresh=True)
    fleet.wait_for("reload", state="done")
    assert fleet.lines("worker") == []
