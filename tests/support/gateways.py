"""Several gateways on one store, and what can happen to them."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from tests.support.gateway import Events, Gateway, Responses, iter_events

PATIENCE = 90.0
"""Seconds that anything may take on a busy machine."""
OVER = ("completed", "failed", "cancelled", "incomplete")


def until(holds: Callable[[], Any], what: str = "") -> Any:
    """What `holds` returns as soon as it is true."""
    end = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < end, f"not within {PATIENCE:g} s: {what or holds}"
        time.sleep(0.02)
    return found


class Gateways:
    """Gateways with one configuration and one store. Each test client may ask any of them."""

    def __init__(self, folder: Path, config: str, count: int, http: httpx.Client, **environment: str) -> None:
        self._folder = folder
        self._config = config
        self._environment = environment
        self._http = http
        self.gateways = [self._start() for _ in range(count)]

    def _start(self) -> Gateway:
        return Gateway(self._folder, self._config, **self._environment)

    def __getitem__(self, number: int) -> Responses:
        return Responses(self._http, self.gateways[number])

    def __iter__(self) -> Iterator[Responses]:
        return (self[number] for number in range(len(self.gateways)))

    def workers(self, number: int) -> list[int]:
        """The worker processes of a gateway that has a supervisor."""
        pid = self.gateways[number].process.pid
        children = (path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children"))
        return [int(child) for some in children for child in some]

    def kill(self, number: int) -> None:
        """All its processes, the supervisor first, so that it replaces none of them."""
        workers = self.workers(number)
        self.gateways[number].process.kill()
        for pid in workers:
            send(pid, signal.SIGKILL)
        self.gateways[number].kill()

    def start_again(self, number: int) -> None:
        self.gateways[number] = self._start()

    def pause(self, number: int) -> None:
        self.gateways[number].process.send_signal(signal.SIGSTOP)

    def go_on(self, number: int) -> None:
        self.gateways[number].process.send_signal(signal.SIGCONT)

    def outcomes(self, number: int) -> list[str]:
        """How background runs ended for this gateway, by its log."""
        return [line["outcome"] for line in self.gateways[number].turns() if "outcome" in line]

    def stop(self) -> None:
        for number, gateway in enumerate(self.gateways):
            if gateway.process.poll() is None:
                self.go_on(number)
            gateway.stop()


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def over(api: Responses, id: str) -> dict[str, Any]:
    """A response once it is over."""
    return until(lambda: (found := api.retrieve(id))["status"] in OVER and found, f"the end of {id}")


def frames(api: Responses, id: str, after: int = -1, most: int | None = None) -> list[bytes]:
    """The bytes of the events of a stream after this number, up to its end or so many of them."""
    found: list[bytes] = []
    query = {"stream": "true", "starting_after": after}
    with api.http.stream("GET", f"{api.url}/{id}", params=query, headers=api.headers, timeout=PATIENCE) as answer:
        assert answer.status_code == 200, answer.read()
        event: list[str] = []
        for line in answer.iter_lines():
            if line.startswith(("event: ", "data: {")):
                event.append(line)
            elif not line and event:
                found.append("\n".join(event).encode())
                event = []
                if len(found) == most:
                    break
    return found


def seen_until(api: Responses, id: str, type: str) -> Events:
    """A stream as far as the first event of this type."""
    events = Events()
    query = {"stream": "true"}
    with api.http.stream("GET", f"{api.url}/{id}", params=query, headers=api.headers, timeout=PATIENCE) as answer:
        for frame in iter_events(answer, events):
            events.frames.append(frame)
            if frame[0] == type:
                return events
    raise AssertionError(f"no {type} in {events.types}")
