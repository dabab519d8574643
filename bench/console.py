"""Measures what the console costs: the same gateway with its ring on and off, interleaved in one run, as ratios.

CPU time is that of each gateway's own process. A round is many short pairs, one right after the other and in turning
order, so that neighbours disturb both alike; the ratio of a scenario is the median over all pairs.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import fixtures
from programs import CORES, WORK, Program, load, prepare

# name: fixture, pacing, streamed, connections, requests of one measurement
SCENARIOS = {
    "plain": ("tool", "", False, 16, 1500),
    "burst-tool": ("tool", "b", True, 32, 200),
    "burst-text": ("text", "b", True, 32, 200),
    "first-token": ("tiny", "b", True, 1, 600),
    "paced-tool": ("tool", "p20", True, 100, 100),
}
REST = 1.0
"""Seconds before a measurement, so that it begins with nothing left of the one before."""
PAIRS = 4
"""Pairs of one round."""
MOST = 1.10
"""What the gateway may cost with the ring on, relative to off."""
UPSTREAM_PORT = 9450
PORTS = {"on": 9451, "off": 9452}


def main(rounds: int, only: str) -> None:
    prepare()
    url = f"http://127.0.0.1:{UPSTREAM_PORT}"
    core = CORES[-1]
    command = [str(WORK / "upstream"), str(UPSTREAM_PORT), str(WORK / "fx")]
    programs = [Program(command, CORES[0], url)]
    gateways: dict[str, Program] = {}
    try:
        for name, port in PORTS.items():
            config = WORK / f"console-{name}.toml"
            config.write_text(
                f'[server]\nport = {port}\n[store]\nurl = "memory:"\n'
                f"[console]\nenabled = {'true' if name == 'on' else 'false'}\n"
                f'[[backends]]\nname = "up"\nkind = "responses"\nbase_url = "{url}/v1"\n'
            )
            command = [str(Path(sys.executable).parent / "toolwire"), "serve", "--config", str(config)]
            gateways[name] = Program(command, core, f"http://127.0.0.1:{port}/healthz")
            programs.append(gateways[name])
            load(port, body_for("up/mock-tool-b", streamed=True), 16, 100)
        print(f"{'ring on / off':22}{'CPU':>8}{'least':>8}{'most':>8}{'bar':>6}{'us on':>10}{'us off':>10}", flush=True)
        for scenario in only.split(",") if only else SCENARIOS:
            pairs = [_pair(gateways, scenario, number) for number in range(PAIRS * rounds)]
            ratios = [on / off for on, off in pairs]
            columns = "".join(f"{each:8.3f}" for each in (statistics.median(ratios), min(ratios), max(ratios)))
            on, off = (statistics.median(each) for each in zip(*pairs, strict=True))
            print(f"{scenario:22}{columns}{MOST:6.2f}{on:10.0f}{off:10.0f}", flush=True)
    finally:
        for program in reversed(programs):
            program.stop()


def body_for(model: str, streamed: bool) -> Path:
    path = WORK / f"console-{model.replace('/', '_')}-{streamed}.json"
    path.write_text(json.dumps(fixtures.requests(model, streamed)["chat"]))
    return path


def _pair(gateways: dict[str, Program], scenario: str, number: int) -> tuple[float, float]:
    cost: dict[str, float] = {}
    for name in ("on", "off") if number % 2 else ("off", "on"):
        cost[name] = _cost(gateways[name], PORTS[name], scenario)
    return cost["on"], cost["off"]


def _cost(gateway: Program, port: int, scenario: str) -> float:
    """Microseconds of CPU for one request."""
    kind, pacing, streamed, connections, requests = SCENARIOS[scenario]
    body = body_for(f"up/mock-{kind}" + (f"-{pacing}" if pacing else ""), streamed)
    time.sleep(REST)
    before = gateway.cpu()
    done = load(port, body, connections, requests)
    return (gateway.cpu() - before) / done["streams"] * 1e6
