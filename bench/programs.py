"""What all benchmarks use: programs on a core of their own, the mock upstream and the load generator."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
WORK = Path(tempfile.gettempdir()) / "toolwire-bench-own"
CORES = sorted(os.sched_getaffinity(0))


class Program:
    """A process on a core of its own."""

    def __init__(self, command: list[str], core: int, ready: str) -> None:
        began = time.monotonic()
        log = (WORK / f"{Path(command[1] if len(command) > 1 else command[0]).name}.log").open("ab")
        self._process = subprocess.Popen(
            ["taskset", "-c", str(core), *command], stdout=log, stderr=log, start_new_session=True
        )
        while not self._answers(ready):
            if self._process.poll() is not None or time.monotonic() - began > 30:
                sys.exit(f"{command} did not start; see {WORK}")
            time.sleep(0.005)
        self.cold_start = time.monotonic() - began

    @staticmethod
    def _answers(url: str) -> bool:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return response.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def cpu(self) -> float:
        """Seconds of CPU so far of all its processes: their process clocks, which count every thread."""
        return sum(time.clock_gettime((~pid << 3) | 2) for pid in _family(self._process.pid))

    def memories(self) -> list[float]:
        """Megabytes that belong to each of its processes."""
        return [_pss(pid) for pid in _family(self._process.pid)]

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(40)


def _family(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from _family(int(child))


def _pss(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


def prepare() -> dict[str, dict[str, int]]:
    """Compile the tools and write the fixtures; returns how many events each has."""
    if not shutil.which("gcc") or not shutil.which("taskset"):
        sys.exit("make bench needs gcc and taskset (Debian: apt install gcc util-linux)")
    WORK.mkdir(exist_ok=True)
    for name in ("upstream", "load"):
        subprocess.run(["gcc", "-O2", "-o", WORK / name, HERE / f"{name}.c"], check=True)
    subprocess.run([sys.executable, HERE / "fixtures.py", WORK / "fx"], check=True, stdout=subprocess.DEVNULL)
    return json.loads((WORK / "fx" / "meta.json").read_text())


def load(
    port: int, body: Path, connections: int, requests: int, path: str = "/v1/chat/completions"
) -> dict[str, float]:
    command = ["taskset", "-c", str(CORES[0]), WORK / "load", "--port", str(port), "--path", path]
    command += ["--body", body, "--conc", str(connections), "--n", str(requests), "--timeout", "90"]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if result["errors"] or result["timed_out"]:
        sys.exit(f"the load on port {port} met errors: {result}")
    return result
