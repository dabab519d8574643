"""Three gateways on one store are killed and stopped at random, and nothing that a client was told is lost or doubled."""

from pathlib import Path

import httpx
import pytest

from tests.support.chaos import LEASE, SHED, Chaos
from tests.support.gateway import backend
from tests.support.gateways import Gateways
from tests.support.postgres import Given, Server, database
from tests.support.upstream import Upstream


def live(folder: Path, store: str, workers: int, upstream: Upstream, http: httpx.Client, turns: int) -> None:
    (folder / "shed.py").write_text(SHED)
    tools = '[gateway_tools]\ntools = ["shed:note"]\n'
    server = f"[server]\nworkers = {workers}\n"
    config = f'{server}{tools}[store]\nurl = "{store}"\nlease = {LEASE}\n{backend(upstream.url)}'
    gateways = Gateways(folder, config, 3, http, PYTHONPATH=str(folder))
    try:
        chaos = Chaos(gateways, upstream, folder, turns, seed=turns)
        chaos.run(clients=6)
        chaos.check()
    finally:
        gateways.stop()


def test_processes_on_one_file_lose_and_double_nothing(tmp_path, upstream, http):
    live(tmp_path, "sqlite:kept.db", 1, upstream, http, turns=60)


def test_machines_with_workers_lose_and_double_nothing(tmp_path, upstream, http, postgres: Server | Given):
    with database(postgres) as name:
        live(tmp_path, postgres.url(name), 2, upstream, http, turns=150)


@pytest.mark.soak
def test_machines_with_workers_lose_and_double_nothing_in_ten_thousand_turns(
    tmp_path, upstream, http, postgres: Server | Given
):
    with database(postgres) as name:
        live(tmp_path, postgres.url(name), 2, upstream, http, turns=10_000)
