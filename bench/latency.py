"""Measures how much later a user sees each delta than over a direct connection, with few and with many paced streams.

    run.py latency          →  the table of docs/performance.md

The upstream writes the time into each delta just before it sends it; the load generator compares it with its own clock.
What is added is the difference between the same quantile through the gateway and without it, in the same round.
"""

import json
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

import fixtures
from peers import PATHS
from programs import CORES, HERE, WORK, Failed, Program, load, prepare

UPSTREAM_PORT, BARE_PORT, GATEWAY_PORT = 9480, 9481, 9482
ROWS = {
    "chat > chat": (GATEWAY_PORT, "chat", "chat"),
    "messages > messages": (GATEWAY_PORT, "messages", "messages"),
    "responses > responses": (GATEWAY_PORT, "responses", "responses"),
    "chat > responses": (GATEWAY_PORT, "chat", "responses"),
    "bare, chat > responses": (BARE_PORT, "chat", "responses"),
}
"""Port, client and backend; the direct connection is one of the backend's protocol."""
STREAMS = {1: 2, 100: 100, 500: 500}
"""Streams at once, and how many in all."""
MODEL = "mock-tool-p50"
"""A delta each 50 ms."""
QUANTILES = ("p50", "p99")


def main(rounds: int, only: str) -> None:
    prepare()
    url = f"http://127.0.0.1:{UPSTREAM_PORT}"
    config = WORK / "latency.toml"
    config.write_text(
        f'[server]\nport = {GATEWAY_PORT}\n[store]\nurl = "memory:"\n'
        + "".join(f'[[backends]]\nname = "{kind}"\nkind = "{kind}"\nbase_url = "{url}/v1"\n' for kind in PATHS)
    )
    binary, bare = str(Path(sys.executable).parent / "toolwire"), str(HERE / "bare.py")
    with ExitStack() as stack:
        for command, core, ready in (
            ([str(WORK / "upstream"), str(UPSTREAM_PORT), str(WORK / "fx")], CORES[0], url),
            ([binary, "serve", "--config", str(config)], CORES[-1], f"http://127.0.0.1:{GATEWAY_PORT}/healthz"),
            (
                [sys.executable, bare, str(BARE_PORT), f"{url}/v1/responses"],
                CORES[-1],
                f"http://127.0.0.1:{BARE_PORT}/",
            ),
        ):
            stack.callback(Program(command, core, ready).stop)
        heads = (f"{streams} {quantile}" for streams in STREAMS for quantile in QUANTILES)
        print(f"{'ms added to a delta':26}" + "".join(f"{head:>16}" for head in heads), flush=True)
        for name in [each for each in ROWS if only in each]:
            cells = (cell for streams in STREAMS for cell in _added(*ROWS[name], streams, rounds))
            print(f"{name:26}" + "".join(f"{cell:>16}" for cell in cells), flush=True)
        print("in brackets: the direct connection")


def _added(port: int, client: str, backend: str, streams: int, rounds: int) -> list[str]:
    """For each quantile, the median of what is added in each round, and that of the direct connection."""
    pairs: list[tuple[dict[str, float], dict[str, float]]] = []
    for _ in range(rounds):
        direct = _lateness(UPSTREAM_PORT, backend, "", streams)
        through = _lateness(port, client, "" if port == BARE_PORT else f"{backend}/", streams)
        if direct["n"] != through["n"]:
            raise Failed(f"{through['n']} of {direct['n']} deltas arrived")
        pairs.append((direct, through))
    return [
        f"{statistics.median(late[each] - soon[each] for soon, late in pairs) / 1000:.2f}"
        f" ({statistics.median(soon[each] for soon, _ in pairs) / 1000:.2f})"
        for each in QUANTILES
    ]


def _lateness(port: int, dialect: str, prefix: str, streams: int) -> dict[str, float]:
    body = WORK / f"latency-{prefix.replace('/', '-')}{dialect}.json"
    body.write_text(json.dumps(fixtures.requests(prefix + MODEL, True)[dialect]))
    return load(port, body, streams, STREAMS[streams], PATHS[dialect])["lat"]
