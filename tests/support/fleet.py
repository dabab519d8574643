"""A gateway with several workers, what can be done to them, and clients that ask meanwhile."""

import http.client
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.gateway import Gateway, chat_body

PATIENCE = 90.0
"""Seconds that anything may take on a busy machine."""

STORE = '[store]\nurl = "sqlite:kept.db"\n'


def until(holds: Callable[[], Any], what: str = "") -> Any:
    """What `holds` returns as soon as it is true."""
    end = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < end, f"not within {PATIENCE:g} s: {what or holds}"
        time.sleep(0.05)
    return found


class Fleet(Gateway):
    """`toolwire serve --workers N`, without a terminal, so that SIGHUP reads the configuration anew."""

    own_session = True

    def __init__(
        self,
        folder: Path,
        config: str = "",
        workers: int = 2,
        patch: str = "",
        *,
        fresh: bool = False,
        **environment: str,
    ) -> None:
        """`patch` is code that runs first: a shorter time, or a mutant."""
        self.path = folder / "toolwire.toml"
        if patch:
            self.program = (sys.executable, "-c", f"{patch}\nfrom toolwire.cli import main; main()")
        super().__init__(folder, _with_store(config), ("--workers", str(workers)), fresh=fresh, **environment)

    def configure(self, config: str) -> None:
        self.path.write_text(_with_store(config))

    def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    @property
    def pids(self) -> set[int]:
        """The workers that live."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return {int(pid) for pid in children if _lives(int(pid))}

    def events(self, event: str, **facts: Any) -> list[dict[str, Any]]:
        """Lines of the log with these facts."""
        return [line for line in self.lines(event) if all(line.get(name) == value for name, value in facts.items())]

    def wait_for(self, event: str, count: int = 1, **facts: Any) -> list[dict[str, Any]]:
        until(lambda: len(self.events(event, **facts)) >= count, f"{event} {facts} in {self.log[-3:]}")
        return self.events(event, **facts)

    def readiness(self) -> tuple[int, dict[str, Any]]:
        status, body = request(self.url, "GET", "/readyz")
        return status, json.loads(body)

    def all_ready(self, count: int) -> bool:
        return self.readiness()[1]["workers"]["ready"] == count

    def versions(self, count: int = 12) -> Counter[str]:
        """The configurations that some answers come from."""
        return Counter(self.readiness()[1]["configuration"] for _ in range(count))

    def metrics(self) -> dict[str, float]:
        status, body = request(self.url, "GET", "/metrics")
        assert status == 200, body
        rows = (line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in rows}


def request(url: str, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def ask(url: str, model: str = "demo") -> int:
    """One turn on a connection of its own."""
    return request(url, "POST", "/v1/chat/completions", chat_body(model))[0]


class Asking:
    """Clients that ask all the time, each request on a connection of its own."""

    def __init__(self, url: str, clients: int = 4) -> None:
        self.answers: Counter[object] = Counter()
        self._url = url
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(clients)]

    def __enter__(self) -> "Asking":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.answers[ask(self._url)] += 1
            except (OSError, http.client.HTTPException) as error:
                self.answers[repr(error)] += 1

    def more(self, count: int) -> None:
        """Wait for so many answers more."""
        wanted = self.answers[200] + count
        until(lambda: self.answers[200] >= wanted, f"answers, of {self.answers}")

    @property
    def failed(self) -> dict[object, int]:
        return {answer: count for answer, count in self.answers.items() if answer != 200}


def _with_store(config: str) -> str:
    return config if "[store]" in config else f"{config}\n{STORE}"


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def signal_to(pid: int, number: signal.Signals) -> None:
    os.kill(pid, number)


def loaded_at_most(times: int, folder: Path) -> str:
    """A module with a gateway tool, `find`, that can be loaded so many times, by all processes together."""
    return f"""
import pathlib
loads = pathlib.Path({str(folder / "loads")!r})
with loads.open("a") as file:
    file.write("x")
if loads.stat().st_size > {times}:
    raise RuntimeError("loaded too often")

def find(q: str) -> str:
    return "found"
"""
