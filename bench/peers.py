"""Measures other gateways beside this one and `bare.py`, interleaved, as ratios of CPU time, with latency and memory.

    run.py peers            →  the table of docs/performance.md
    run.py peers --only litellm,chat>chat

Each peer comes from PyPI into an environment of its own and runs with the least configuration that serves the flow: no
database, no cache, no logs of requests. Only one of them runs at a time, beside the gateway and `bare.py`. A stream
counts only if it had as many deltas as the upstream sent, so that one that loses something does not look cheap.
"""

import ctypes
import fcntl
import json
import secrets
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import fixtures
from programs import CORES, HERE, WORK, Failed, Program, load, prepare

UPSTREAM_PORT, BARE_PORT, GATEWAY_PORT, PEER_PORT, SPARE_PORT = 9470, 9471, 9472, 9473, 9474
UPSTREAM = f"http://127.0.0.1:{UPSTREAM_PORT}"
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
FLOWS = ["chat>chat", "messages>messages", "chat>messages"]
BARE, OWN = "bare", "Toolwire"
KEY = f"sk-{secrets.token_hex(16)}"

# name: fixture, pacing, streamed, connections, requests (None: as many as take SHARE seconds of CPU)
SCENARIOS = {
    "burst": ("tool", "b", True, 16, None),
    "paced": ("tool", "p40", True, 20, 20),
    "plain": ("tool", "", False, 16, None),
    "first delta": ("tiny", "b", True, 1, 200),
}
CROWD = ("tiny", "p4000", True, 1000, 1000)
SHARE, FEWEST, MOST = 2.0, 16, 1500
MODELS = sorted(
    {f"mock-{kind}" + (f"-{pacing}" if pacing else "") for kind, pacing, *_ in (*SCENARIOS.values(), CROWD)}
)


class Peer(NamedTuple):
    """A gateway: what pip installs, what it is started with, and the flows it is asked for."""

    package: str
    command: str
    flows: Mapping[str, str]
    """For each flow (client>backend) the prefix of its models."""
    files: Mapping[str, str] = {}
    ready: str | Path = f"http://127.0.0.1:{PEER_PORT}/health"
    environment: Mapping[str, str] = {}
    path: str = ""
    headers: tuple[str, ...] = ("authorization: Bearer none", "anthropic-version: 2023-06-01")


def _litellm() -> str:
    rows = [
        {
            "model_name": prefix + model,
            "litellm_params": {"model": f"{kind}/{model}", "api_base": base, "api_key": "none"},
        }
        for prefix, kind, base in (("", "openai", f"{UPSTREAM}/v1"), ("anthropic-", "anthropic", UPSTREAM))
        for model in MODELS
    ]
    return json.dumps({"model_list": rows, "litellm_settings": {"telemetry": False}})


def _rosetta() -> str:
    providers = {
        "chat": {"type": "openai_chat", "api_key": "none", "base_url": f"{UPSTREAM}/v1"},
        "anthropic": {"type": "anthropic", "api_key": "none", "base_url": UPSTREAM},
    }
    abilities = {"capabilities": ["text", "tools"]}
    models = {model: {"provider": "chat", **abilities} for model in MODELS}
    models |= {f"anthropic-{model}": {"provider": "anthropic", **abilities} for model in MODELS}
    server = {"host": "127.0.0.1", "port": PEER_PORT, "open_on_no_keys": True}
    return json.dumps({"providers": providers, "models": models, "server": server})


def _tensorzero() -> str:
    rows = ["[gateway]\nobservability.enabled = false\n"]
    for prefix, kind, base in (
        ("", "openai", f"{UPSTREAM}/v1/"),
        ("anthropic-", "anthropic", f"{UPSTREAM}/v1"),
    ):
        for model in MODELS:
            name = f'models."{prefix}{model}"'
            rows.append(
                f'[{name}]\nrouting = ["up"]\n[{name}.providers.up]\ntype = "{kind}"\nmodel_name = "{model}"\n'
                f'api_base = "{base}"\napi_key_location = "env::BENCH_KEY"\n'
            )
    return "".join(rows)


def _toolwire() -> str:
    return f'[server]\nport = {GATEWAY_PORT}\n[store]\nurl = "memory:"\n' + "".join(
        f'[[backends]]\nname = "{kind}"\nkind = "{kind}"\nbase_url = "{UPSTREAM}/v1"\n' for kind in PATHS
    )


LITELLM = Peer(
    "litellm[proxy]==1.106.1",
    f"{{bin}}/litellm --config {{work}}/litellm.yaml --host 127.0.0.1 --port {PEER_PORT}",
    {"chat>chat": "", "messages>messages": "anthropic-", "chat>messages": "anthropic-"},
    {"litellm.yaml": _litellm()},
    f"http://127.0.0.1:{PEER_PORT}/health/liveliness",
    {
        "LITELLM_MASTER_KEY": KEY,
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_TELEMETRY": "False",
    },
    headers=(f"authorization: Bearer {KEY}", "anthropic-version: 2023-06-01"),
)
SMG = Peer(
    "smg==1.13.0",
    f"{{bin}}/smg launch --backend openai --worker-urls {UPSTREAM} --host 127.0.0.1 --port {PEER_PORT}"
    f" --prometheus-port {SPARE_PORT} --history-backend none --log-level error"
    " --disable-tokenizer-autoload --disable-circuit-breaker --disable-retries",
    {"chat>chat": ""},
)
PEERS = {
    "TensorZero": Peer(
        "tensorzero==2026.6.0",
        f"{{bin}}/python {HERE}/tensorzero_start.py {{work}}/tensorzero.toml {{work}}/tensorzero.url",
        {"chat>chat": "tensorzero::model_name::", "chat>messages": "tensorzero::model_name::anthropic-"},
        {"tensorzero.toml": _tensorzero()},
        WORK / "tensorzero.url",
        {"BENCH_KEY": "none"},
        "/openai",
    ),
    "llm-rosetta": Peer(
        "llm-rosetta[gateway]==0.13.0",
        "{bin}/llm-rosetta-gateway --config {work}/rosetta.jsonc --data-dir {work} --no-banner --log-level error",
        {"chat>chat": "", "messages>messages": "anthropic-", "chat>messages": "anthropic-"},
        {"rosetta.jsonc": _rosetta()},
    ),
    "LiteLLM": LITELLM,
    "LiteLLM, granian": LITELLM._replace(command=LITELLM.command + " --run_granian"),
    "LiteLLM, Rust": LITELLM._replace(
        environment={**LITELLM.environment, "LITELLM_RUST": "true"},
        flows={"messages>messages": "anthropic-"},  # the only route that has it
    ),
    "SMG": SMG,
    "SMG, Anthropic": SMG._replace(
        command=SMG.command.replace("openai", "anthropic"),
        flows={"messages>messages": ""},
    ),
}


def _install(peer: Peer) -> Path:
    """The folder of its programs, in an environment of its own under the work folder."""
    folder = WORK / "peers" / peer.package.replace("[", "-").partition("=")[0].rstrip("]")
    mark = folder / peer.package
    if not mark.exists():
        print(f"installing {peer.package}", file=sys.stderr)
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(folder / "bin" / "pip"), "install", "--quiet", peer.package],
        ):
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                reason = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stdout]
                raise Failed(f"not installed: {reason[0][:160]}")
        mark.touch()
    return folder / "bin"


def only_loopback() -> bool:
    """Leave the machine's network, so that all that is started from here has only the loopback; root may."""
    if ctypes.CDLL(None).unshare(0x40000000):  # CLONE_NEWNET
        return False
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
    return True


class Side(NamedTuple):
    """A running program, and how it is asked in one flow."""

    program: Program
    port: int
    client: str
    backend: str
    prefix: str = ""
    path: str = ""
    headers: tuple[str, ...] = ()

    def body(self, model: str, streamed: bool) -> Path:
        path = WORK / f"peers-{self.prefix.replace('/', '-')}{self.client}-{model}-{streamed}.json"
        body = fixtures.requests(self.prefix + model, streamed)[self.client]
        path.write_text(json.dumps({**body, "max_tokens": 4096}))  # which Messages requires of all
        return path

    def ask(self, scenario: tuple[str, str, bool, int, int | None], requests: int | None = None) -> dict[str, Any]:
        """What a load measured, with the CPU of one request; fails where deltas are missing."""
        kind, pacing, streamed, connections, _ = scenario
        body = self.body(f"mock-{kind}" + (f"-{pacing}" if pacing else ""), streamed)
        if not streamed:
            self._whole(body, kind)
        before = self.program.cpu()
        path = self.path + PATHS[self.client]
        done = load(self.port, body, connections, requests or FEWEST, path, self.headers)
        done["cost"] = (self.program.cpu() - before) / done["streams"]
        sent = _deltas(self.backend, kind)
        if streamed and not done["fewest"] == sent == done["deltas"] / done["streams"]:
            raise Failed(f"{done['fewest']} of {sent} deltas")
        return done

    def _whole(self, body: Path, kind: str) -> None:
        """Fail where a plain answer lacks something of the arguments."""
        headers = dict(each.split(": ", 1) for each in self.headers) | {"content-type": "application/json"}
        url = f"http://127.0.0.1:{self.port}{self.path}{PATHS[self.client]}"
        with urllib.request.urlopen(urllib.request.Request(url, body.read_bytes(), headers), timeout=90) as response:
            arrived = response.read().decode().count("@@T")
        sent = (WORK / "fx" / f"chat.{kind}.json").read_text().count("@@T")  # without thoughts, which some keep back
        if arrived < sent:
            raise Failed(f"{arrived} of {sent} pieces of arguments")


def _deltas(backend: str, kind: str) -> int:
    """How many events with one delta the upstream sends."""
    events = (WORK / "fx" / f"{backend}.{kind}.sse").read_text().split("\n\n")
    return sum(event.count("@@T") == 1 for event in events)


class Row:
    """What was found of one gateway in one flow."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}
        self.reasons: dict[str, str] = {}

    def add(self, column: str, value: float) -> None:
        self.values.setdefault(column, []).append(value)

    def text(self, column: str, digits: int) -> str:
        values = self.values.get(column)
        return f"{statistics.median(values):.{digits}f}" if values and column not in self.reasons else "-"


COLUMNS = {**dict.fromkeys(SCENARIOS, 2), "p50 ms": 2, "p99 ms": 2, "idle MB": 0, "crowd MB": 0, "cold s": 2}


def _rounds(sides: Mapping[str, Side], rows: Mapping[str, Row], rounds: int) -> None:
    """All scenarios of all sides, in turn; what fails on one side is left out there from then on."""
    requests = {
        (name, scenario): count
        for name, side in sides.items()
        for scenario in SCENARIOS
        if (count := _requests(side, rows[name], scenario)) is not None
    }
    for number in range(rounds):
        for scenario, shape in SCENARIOS.items():
            costs: dict[str, float] = {}
            for name in sorted(sides, reverse=bool(number % 2)):
                if (name, scenario) not in requests or scenario in rows[name].reasons:
                    continue
                try:
                    done = sides[name].ask(shape, requests[name, scenario])
                except (Failed, OSError) as error:
                    rows[name].reasons[scenario] = str(error)
                    continue
                costs[name] = done["cost"]
                if scenario == "first delta":
                    rows[name].add("p50 ms", done["ttfd"]["p50"] / 1000)
                    rows[name].add("p99 ms", done["ttfd"]["p99"] / 1000)
            for name, cost in costs.items() if BARE in costs else ():
                rows[name].add(scenario, cost / costs[BARE])


def _requests(side: Side, row: Row, scenario: str) -> int | None:
    """How many requests one measurement needs, found with a few, which also do what is done once."""
    shape = SCENARIOS[scenario]
    try:
        cost = [side.ask(shape, shape[4])["cost"] for _ in range(2)][1]
    except (Failed, OSError) as error:
        row.reasons[scenario] = str(error)
        return None
    return shape[4] or min(MOST, max(FEWEST, int(SHARE / cost)))


def _crowd(side: Side, row: Row) -> None:
    """The most memory it holds while it has a thousand streams."""
    done: list[dict[str, Any] | Exception] = []

    def run() -> None:
        try:
            done.append(side.ask(CROWD, CROWD[4]))
        except (Failed, OSError) as error:
            done.append(error)

    task = threading.Thread(target=run)
    task.start()
    most = 0.0
    while task.is_alive():
        with suppress(OSError):  # a process that has just ended
            most = max(most, sum(side.program.memories()))
        time.sleep(0.2)
    match done[0]:
        case Exception() as error:
            row.reasons["crowd MB"] = str(error)
        case result if result["open_most"] < CROWD[3]:
            row.reasons["crowd MB"] = f"{most:.0f} MB with {result['open_most']} streams at once, no more"
        case _:
            row.add("crowd MB", most)


def _compare(name: str, flow: str, bin: Path, rows: dict[str, Row], rounds: int) -> None:
    """One peer in one flow, beside this gateway and `bare.py`, all of them fresh."""
    peer = PEERS[name]
    client, backend = flow.split(">")
    own = [str(Path(sys.executable).parent / "toolwire"), "serve", "--config", str(WORK / "peers-toolwire.toml")]
    bare = [sys.executable, str(HERE / "bare.py"), str(BARE_PORT), f"{UPSTREAM}/v1/responses"]
    if isinstance(peer.ready, Path):
        peer.ready.unlink(missing_ok=True)
    with ExitStack() as stack:

        def start(command: list[str], ready: str | Path, environment: Mapping[str, str]) -> Program:
            program = Program(command, CORES[-1], ready, environment, within=120)
            stack.callback(program.stop)
            return program

        sides = {
            BARE: Side(start(bare, f"http://127.0.0.1:{BARE_PORT}/", {}), BARE_PORT, "chat", "responses"),
            OWN: Side(
                start(own, f"http://127.0.0.1:{GATEWAY_PORT}/healthz", {}), GATEWAY_PORT, client, backend, f"{backend}/"
            ),
        }
        for file, text in peer.files.items():
            (WORK / file).write_text(text)
        command = peer.command.format(bin=bin, work=WORK).split()
        program = start(command, peer.ready, {"HOME": str(WORK / "peers"), **peer.environment})
        port = int(peer.ready.read_text().split(":")[2].split("/")[0]) if isinstance(peer.ready, Path) else PEER_PORT
        sides[name] = Side(program, port, client, backend, peer.flows[flow], peer.path, peer.headers)
        for each, side in sides.items():
            rows.setdefault(each, Row())
            rows[each].add("idle MB", sum(side.program.memories()))
            rows[each].add("cold s", side.program.cold_start)
        _rounds(sides, rows, rounds)
        for each in (OWN, name):
            if "crowd MB" not in rows[each].values:
                _crowd(sides[each], rows[each])


def main(rounds: int, only: str) -> None:
    prepare()
    wanted = [each for each in only.split(",") if each]
    flows = [each for each in FLOWS if each in wanted] or FLOWS
    names = [each for each in PEERS if any(each.startswith(name) for name in wanted if ">" not in name)] or list(PEERS)
    folders: dict[str, Path] = {}
    for name in names:
        try:
            folders[name] = _install(PEERS[name])
        except Failed as error:
            print(f"{name:18} {error}", flush=True)
    if not only_loopback():
        print("without root: the peers can reach the network, with their telemetry switched off", file=sys.stderr)
    (WORK / "peers-toolwire.toml").write_text(_toolwire())
    upstream = Program([str(WORK / "upstream"), str(UPSTREAM_PORT), str(WORK / "fx")], CORES[0], UPSTREAM)
    try:
        for flow in flows:
            print(f"\n{flow:18}" + "".join(f"{column:>12}" for column in COLUMNS), flush=True)
            rows: dict[str, Row] = {}
            for name in [each for each in folders if flow in PEERS[each].flows]:
                try:
                    _compare(name, flow, folders[name], rows, rounds)
                    _print(name, rows.pop(name))
                except Failed as error:
                    print(f"{name:18} {error}", flush=True)
            for name, row in rows.items():
                _print(name, row)
    finally:
        upstream.stop()


def _print(name: str, row: Row) -> None:
    print(f"{name:18}" + "".join(f"{row.text(column, digits):>12}" for column, digits in COLUMNS.items()))
    for column, reason in row.reasons.items():
        print(f"  {column}: {reason[:300]}")
    sys.stdout.flush()
