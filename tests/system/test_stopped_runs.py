"""A test run leaves no process behind, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.unit.test_processes import lives, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="another platform: reads /proc")

RUN = """
import pathlib, signal, time
from tests.support import processes
from tests.support.gateway import Gateway

def test_that_is_stopped(tmp_path):
    gateway = Gateway(tmp_path)
    nested = processes.Popen(["sh", "-c", "sleep 600 & sleep 600"])
    pathlib.Path({pids!r}).write_text(f"{{gateway.process.pid}} {{nested.pid}}")
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_that_is_stopped_leaves_nothing(tmp_path: Path, number: signal.Signals, workers: str):
    pids = tmp_path / "pids"
    test = tmp_path / "test_stopped.py"
    test.write_text(RUN.format(pids=str(pids)))
    options = ["-p", "no:cacheprovider", "-n", workers, "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # It starts a process server of its own, and is none of ours.
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", *options, str(test)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as tests:
        try:
            until(lambda: pids.exists() and pids.read_text().count(" ") == 1, "the test does not start")
            gateway, nested = map(int, pids.read_text().split())
            inner = children(nested)
            assert lives(gateway)
            tests.send_signal(number)
            until(lambda: not any(map(lives, (gateway, nested, *inner))), "a process outlives its tests")
        finally:
            os.killpg(tests.pid, signal.SIGKILL)
            tests.communicate()


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    until(lambda: len(path.read_text().split()) == 2, "the shell does not start its commands")
    return [int(each) for each in path.read_text().split()]
