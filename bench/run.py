"""Measures the gateway beside `bare.py`, the least a Python translator can do, interleaved in one run, as ratios.

The mock upstream and the load generator (C, built here with gcc) run on one core, the program under test on another.
CPU time is that of the program's own process, so a slow neighbour moves both sides alike. Absolute figures of two runs
are not comparable; ratios are, within about five per cent.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import codex
import console
import fixtures
import fleet
import latency
import peers
from programs import CORES, HERE, WORK, Failed, Program, load, prepare

UPSTREAM_PORT, BARE_PORT, GATEWAY_PORT = 9400, 9412, 9411

# name: fixture, pacing, streamed, connections, requests, most that CPU may be relative to bare
SCENARIOS = {
    "burst-tool": ("tool", "b", True, 32, 300, 2.0),
    "burst-text": ("text", "b", True, 32, 300, 2.0),
    "paced-tool": ("tool", "p20", True, 100, 100, 1.5),
    "plain": ("tool", "", False, 16, 1500, 2.0),
    "first-token": ("tiny", "b", True, 1, 300, None),
    "big-arguments": ("big", "b", True, 4, 24, None),
}


SECTIONS = {"codex": codex, "console": console, "fleet": fleet, "latency": latency, "peers": peers}


def body_for(model: str, streamed: bool) -> Path:
    path = WORK / f"{model.replace('/', '_')}-{streamed}.json"
    path.write_text(json.dumps(fixtures.requests(model, streamed)["chat"]))
    return path


def cost(program: Program, port: int, prefix: str, scenario: str) -> float:
    """Microseconds of CPU for one request."""
    kind, pacing, streamed, connections, requests, _ = SCENARIOS[scenario]
    model = f"{prefix}mock-{kind}" + (f"-{pacing}" if pacing else "")
    before = program.cpu()
    done = load(port, body_for(model, streamed), connections, requests)
    return (program.cpu() - before) / done["streams"] * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section", nargs="?", choices=("http", *SECTIONS), default="http")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    if chosen.section in SECTIONS:
        SECTIONS[chosen.section].main(chosen.rounds, chosen.only)
        return
    events = prepare()
    config = WORK / "toolwire.toml"
    config.write_text(
        f'[server]\nport = {GATEWAY_PORT}\n[store]\nurl = "memory:"\n'
        f'[[backends]]\nname = "up"\nkind = "responses"\nbase_url = "http://127.0.0.1:{UPSTREAM_PORT}/v1"\n'
    )
    core = CORES[-1]
    url = f"http://127.0.0.1:{UPSTREAM_PORT}"
    programs = [Program([str(WORK / "upstream"), str(UPSTREAM_PORT), str(WORK / "fx")], CORES[0], url)]
    try:
        bare_command = [sys.executable, str(HERE / "bare.py"), str(BARE_PORT), f"{url}/v1/responses"]
        bare = Program(bare_command, core, f"http://127.0.0.1:{BARE_PORT}/")
        command = [str(Path(sys.executable).parent / "toolwire"), "serve", "--config", str(config)]
        gateway = Program(command, core, f"http://127.0.0.1:{GATEWAY_PORT}/healthz")
        programs += [bare, gateway]
        idle = sum(gateway.memories())
        for prefix, port in (("", BARE_PORT), ("up/", GATEWAY_PORT)):
            load(port, body_for(f"{prefix}mock-tool-b", streamed=True), 16, 100)
        measured: dict[str, list[tuple[float, float]]] = {}
        for _ in range(chosen.rounds):
            for name in chosen.only.split(",") if chosen.only else SCENARIOS:
                pair = cost(bare, BARE_PORT, "", name), cost(gateway, GATEWAY_PORT, "up/", name)
                measured.setdefault(name, []).append(pair)
        report(measured, events)
        after = sum(gateway.memories())
        print(f"\ncold start {gateway.cold_start:.2f} s · memory {idle:.0f} MB idle, {after:.0f} MB after")
    finally:
        for program in reversed(programs):
            program.stop()


def report(measured: dict[str, list[tuple[float, float]]], events: dict[str, dict[str, int]]) -> None:
    print(f"{'chat over responses':22}{'CPU x bare':>11}{'bar':>6}{'us/request':>12}{'us/event':>10}")
    for name, pairs in measured.items():
        kind, _, streamed, _, _, bar = SCENARIOS[name]
        ratio = statistics.median(own / bare for bare, own in pairs)
        each = statistics.median(own for _, own in pairs)
        per_event = f"{each / events[f'responses.{kind}']['events']:10.2f}" if streamed else f"{'-':>10}"
        print(f"{name:22}{ratio:11.2f}{bar or '-':>6}{each:12.0f}{per_event}")


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(str(error))
