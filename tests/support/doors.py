"""Connections to the workers of a gateway, one to each, so that a test decides where a request lands."""

import os
import threading
from pathlib import Path

import httpx

from tests.support.fleet import PATIENCE, Fleet, until

KEY = "key-of-ours"


class Door:
    """A connection to one worker, which is used again and again."""

    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=1, keepalive_expiry=None)
        headers = {"authorization": f"Bearer {KEY}"}
        self.http = httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=PATIENCE, limits=limits)
        self.slot = self.leads_to()
        self.lock = threading.Lock()
        """Held by who uses it beside others: one connection is no matter for several threads."""

    def leads_to(self) -> int:
        """The worker behind it: another one, if the connection was closed and had to be made again."""
        return self.http.get("/readyz").json()["worker"]


class Doors:
    """One connection to each worker, by its number. The gateway must let connections be idle for long."""

    def __init__(self, fleet: Fleet, count: int) -> None:
        self._fleet = fleet
        self._count = count
        self._doors: dict[int, Door] = {}

    def __getitem__(self, slot: int) -> httpx.Client:
        return self._doors[slot].http

    def lock(self, slot: int) -> threading.Lock:
        return self._doors[slot].lock

    def open(self) -> None:
        """Make those that are missing, or lead somewhere else by now."""
        for door in tuple(self._doors.values()):
            if door.leads_to() != door.slot:
                self._doors.pop(door.slot).http.close()
        until(self._are_all_there, "a connection to each worker")

    def _are_all_there(self) -> bool:
        if len(self._doors) == self._count:
            return True
        door = Door(self._fleet.url)
        if door.slot in self._doors:
            door.http.close()
        else:
            self._doors[door.slot] = door
        return len(self._doors) == self._count

    def close(self) -> None:
        for door in self._doors.values():
            door.http.close()
        self._doors = {}


def patched(folder: Path, answer: float = PATIENCE, hung: int = 600, more: str = "") -> str:
    """A PYTHONPATH with which a worker has so many seconds to answer another, and so many to be silent.

    Everybody has all the time in the world to write down that a thread waits.
    """
    lines = (
        "import sys",
        "if 'toolwire' in sys.orig_argv:",
        "    from toolwire.gateway.workers import worker_pool",
        "    from toolwire.memory import write_behind",
        "    from toolwire.upstream.codex import host",
        f"    host.FIND_TIMEOUT, worker_pool.HANG_TICKS = {answer}, {hung}",
        f"    write_behind.STORE_TIMEOUT = host.PARK_TIMEOUT = {PATIENCE}",
        more,
    )
    (folder / "sitecustomize.py").write_text("\n".join(lines))
    return os.pathsep.join((str(folder), *filter(None, (os.environ.get("PYTHONPATH"),))))
