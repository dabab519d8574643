"""Measures what several processes and a shared store cost, beside one process with a store in memory, as ratios.

    run.py fleet            →  the table of docs/performance.md

All gateways run at the same time on one core, and are asked in turn; the mock upstream, the load and PostgreSQL are on
the other one. CPU time of a gateway is that of all its processes. That of the database is not counted: it has its own
row in the sizing table of docs/deploy.md.
"""

import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import fixtures
from programs import CORES, WORK, Program, load, prepare

sys.path.insert(0, str(Path(__file__).parent.parent))  # the tests know how to start PostgreSQL

UPSTREAM_PORT, FIRST_PORT = 9430, 9431
BINARY = str(Path(sys.executable).parent / "toolwire")

MEMORY, SQLITE, POSTGRES, WORKERS = "memory", "sqlite", "postgres", "two workers"


class Turns(NamedTuple):
    """Requests of one kind: their API, fixture, pacing, what is added to the body, and how many come at once."""

    api: str
    fixture: str
    pacing: str
    extra: dict[str, object]
    connections: int
    requests: int


STREAM = {"stream": True, "store": False}
KEPT = {"stream": True, "store": True}
BACKGROUND = {"stream": True, "store": True, "background": True}
BURST = Turns("responses", "tool", "b", STREAM, 16, 200)
PACED = Turns("responses", "tool", "p20", STREAM, 50, 50)
PLAIN = Turns("responses", "tool", "", {"stream": False, "store": False}, 16, 600)
STORED = Turns("responses", "tool", "", {"stream": False, "store": True}, 8, 400)
BURST_KEPT, PACED_KEPT = BURST._replace(extra=KEPT), PACED._replace(extra=KEPT)
BURST_BEHIND, PACED_BEHIND = BURST._replace(extra=BACKGROUND), PACED._replace(extra=BACKGROUND)
FEW_BEHIND = PACED_BEHIND._replace(connections=10, requests=20)
MANY_BEHIND = PACED_BEHIND._replace(connections=100, requests=100)


def twice(turns: Turns) -> Turns:
    """As many for each of two workers as one process gets: whoever has fewer streams wakes up more often for each."""
    return turns._replace(connections=2 * turns.connections, requests=2 * turns.requests)


# name: (gateway, turns) over (gateway, turns), and the most that the ratio may be
ROWS: dict[str, tuple[tuple[str, Turns], tuple[str, Turns], float | None]] = {
    "2 workers / 1, burst": ((WORKERS, twice(BURST)), (SQLITE, BURST), 1.10),
    "2 workers / 1, paced": ((WORKERS, twice(PACED)), (SQLITE, PACED), 1.10),
    "unstored, SQLite / memory, plain": ((SQLITE, PLAIN), (MEMORY, PLAIN), 1.05),
    "unstored, SQLite / memory, burst": ((SQLITE, BURST), (MEMORY, BURST), 1.05),
    "unstored, PostgreSQL / memory, plain": ((POSTGRES, PLAIN), (MEMORY, PLAIN), 1.05),
    "unstored, PostgreSQL / memory, burst": ((POSTGRES, BURST), (MEMORY, BURST), 1.05),
    "stored, PostgreSQL / SQLite, plain": ((POSTGRES, STORED), (SQLITE, STORED), 1.30),
    "background / foreground, SQLite, burst": ((SQLITE, BURST_BEHIND), (SQLITE, BURST_KEPT), 1.60),
    "background / foreground, SQLite, paced": ((SQLITE, PACED_BEHIND), (SQLITE, PACED_KEPT), 1.60),
    "background / foreground, PostgreSQL, burst": ((POSTGRES, BURST_BEHIND), (POSTGRES, BURST_KEPT), 1.60),
    "background / foreground, PostgreSQL, paced": ((POSTGRES, PACED_BEHIND), (POSTGRES, PACED_KEPT), 1.60),
    "100 runs / 10 runs, SQLite, per event": ((SQLITE, MANY_BEHIND), (SQLITE, FEW_BEHIND), None),
    "100 runs / 10 runs, PostgreSQL, per event": ((POSTGRES, MANY_BEHIND), (POSTGRES, FEW_BEHIND), None),
}


class Fleet(Program):
    """A gateway with all its processes."""

    def __init__(self, name: str, port: int, store: str, workers: int) -> None:
        config = WORK / f"{name.replace(' ', '-')}.toml"
        config.write_text(
            f'[server]\nport = {port}\nworkers = {workers}\n[console]\nenabled = false\n[store]\nurl = "{store}"\n'
            f'[[backends]]\nname = "up"\nkind = "responses"\nbase_url = "http://127.0.0.1:{UPSTREAM_PORT}/v1"\n'
        )
        self.port = port
        super().__init__([BINARY, "serve", "--config", str(config)], CORES[-1], f"http://127.0.0.1:{port}/healthz")

    def cost(self, turns: Turns) -> float:
        """Microseconds of CPU for one request."""
        before = self.cpu()
        done = load(self.port, _body(turns), turns.connections, turns.requests, f"/v1/{turns.api}")
        return (self.cpu() - before) / done["streams"] * 1e6


def _body(turns: Turns) -> Path:
    model = f"up/mock-{turns.fixture}" + (f"-{turns.pacing}" if turns.pacing else "")
    kind = "".join(name for name, is_set in turns.extra.items() if is_set)
    path = WORK / f"fleet-{turns.fixture}-{turns.pacing}-{kind}.json"
    path.write_text(json.dumps({**fixtures.requests(model, True)[turns.api], **turns.extra}))
    return path


def _postgres(stack: ExitStack) -> str | None:
    """The address of a database for this run; None where no server can be had."""
    from tests.support.postgres import NEWEST, Server, binaries, database  # noqa: PLC0415

    programs = binaries(NEWEST)
    if programs is None:
        print("without PostgreSQL, which is nowhere")
        return None
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {CORES[0]})
    server = Server(programs, {"fsync": "on", "full_page_writes": "on"})
    os.sched_setaffinity(0, cores)
    stack.callback(server.close)
    return server.url(stack.enter_context(database(server)))


def _gateways(stack: ExitStack) -> Iterator[tuple[str, Fleet]]:
    for path in WORK.glob("fleet*.db*"):
        path.unlink()
    stores = {
        MEMORY: ("memory:", 1),
        SQLITE: (f"sqlite:{WORK}/fleet.db", 1),
        WORKERS: (f"sqlite:{WORK}/fleet-workers.db", 2),
    }
    if (url := _postgres(stack)) is not None:
        stores[POSTGRES] = (url, 1)
    for number, (name, (store, workers)) in enumerate(stores.items()):
        gateway = Fleet(name, FIRST_PORT + number, store, workers)
        stack.callback(gateway.stop)
        gateway.cost(BURST)  # what is done once is done
        yield name, gateway


def main(rounds: int, only: str) -> None:
    prepare()
    with ExitStack() as stack:
        url = f"http://127.0.0.1:{UPSTREAM_PORT}"
        upstream = Program([str(WORK / "upstream"), str(UPSTREAM_PORT), str(WORK / "fx")], CORES[0], url)
        stack.callback(upstream.stop)
        gateways = dict(_gateways(stack))
        rows = {name: row for name, row in ROWS.items() if only in name and row[0][0] in gateways}
        print(f"{'CPU of the gateway':46}{'ratio':>7}{'least':>7}{'most':>7}{'bar':>7}", flush=True)
        for name, (one, other, bar) in rows.items():
            ratios = [_ratio(gateways, one, other) for _ in range(rounds)]
            middle = f"{statistics.median(ratios):7.2f}{min(ratios):7.2f}{max(ratios):7.2f}"
            print(f"{name:46}{middle}{bar or '-':>7}", flush=True)
        idle = gateways[WORKERS].memories()
        print(f"\nmemory (PSS): {', '.join(f'{each:.1f}' for each in idle)} MB of the supervisor and each worker")


def _ratio(gateways: dict[str, Fleet], one: tuple[str, Turns], other: tuple[str, Turns]) -> float:
    first: Callable[[], float] = lambda: gateways[one[0]].cost(one[1])  # noqa: E731
    second: Callable[[], float] = lambda: gateways[other[0]].cost(other[1])  # noqa: E731
    return (first() + first()) / (second() + second())
