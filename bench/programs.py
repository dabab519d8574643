"""What all benchmarks use: programs on a core of their own, the mock upstream and the load generator."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WORK = Path(tempfile.gettempdir()) / "toolwire-bench-own"
CORES = sorted(os.sched_getaffinity(0))


class Failed(Exception):
    """A program did not start, or a load met errors."""


class Program:
    """A process on a core of its own."""

    def __init__(
        self,
        command: list[str],
        core: int,
        ready: str | Path,
        environment: Mapping[str, str] | None = None,
        within: float = 30,
    ) -> None:
        """`ready` is an address that answers once it is, or the file into which the program writes its own."""
        began = time.monotonic()
        path = WORK / f"{Path(command[1] if len(command) > 1 else command[0]).name}.log"
        with path.open("ab") as log:
            self._process = subprocess.Popen(
                ["taskset", "-c", str(core), *command],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        while not self._answers(ready):
            if self._process.poll() is not None or time.monotonic() - began > within:
                self.stop()
                raise Failed(f"{command[0]} did not start; see {path}")
            time.sleep(0.005)
        self.cold_start = time.monotonic() - began

    @staticmethod
    def _answers(ready: str | Path) -> bool:
        try:
            with urllib.request.urlopen(ready.read_text() if isinstance(ready, Path) else ready, timeout=5) as response:
                return response.status == 200
        except urllib.error.HTTPError as error:
            return error.code == 404  # TensorZero has no address that says so
        except (OSError, urllib.error.URLError):
            return False

    def cpu(self) -> float:
        """Seconds of CPU so far of all its processes: their process clocks, which count every thread."""
        return sum(time.clock_gettime((~pid << 3) | 2) for pid in _family(self._process.pid))

    def memories(self) -> list[float]:
        """Megabytes that belong to each of its processes."""
        return [_pss(pid) for pid in _family(self._process.pid)]

    def stop(self) -> None:
        for way in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self._process.pid, way)
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
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for name in ("upstream", "load"):
        subprocess.run(["gcc", "-O2", "-o", WORK / name, HERE / f"{name}.c"], check=True)
    subprocess.run([sys.executable, HERE / "fixtures.py", WORK / "fx"], check=True, stdout=subprocess.DEVNULL)
    return json.loads((WORK / "fx" / "meta.json").read_text())


def load(
    port: int,
    body: Path,
    connections: int,
    requests: int,
    path: str = "/v1/chat/completions",
    headers: Sequence[str] = (),
) -> dict[str, Any]:
    """What the load generator measured; `load.c` tells what its fields are."""
    command = ["taskset", "-c", str(CORES[0]), str(WORK / "load"), "--port", str(port), "--path", path]
    command += ["--body", str(body), "--conc", str(connections), "--n", str(requests), "--timeout", "180"]
    command += [part for header in headers for part in ("-H", header)]
    output = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(output)
    if result["errors"] or result["timed_out"]:
        ended = f"{result['streams']} of {requests} ended after {result['elapsed']:.0f} s, {result['errors']} failed"
        raise Failed(f"the load on port {port} met errors: {ended} {result['err']}".rstrip())
    return result
