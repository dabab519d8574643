"""Gateways that keep their state in one PostgreSQL."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import processes
from tests.support.gateway import Gateway, Responses, text_of
from tests.support.postgres import NEWEST, Server, binaries, database
from toolwire.backends import demo

MODEL = demo.MODELS[0]
PATIENCE = 120.0
SECRET = "hunter2"


def config(url: str, more: str = "") -> str:
    return f'[store]\nurl = "{url}"\n{more}'


@pytest.fixture
def database_url(postgres: Any) -> Iterator[str]:
    with database(postgres) as name:
        yield postgres.url(name)


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=PATIENCE, trust_env=False) as client:
        yield client


def folder(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.mkdir()
    return path


def serve(tmp_path: Path, text: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A gateway that does not start."""
    path = tmp_path / "toolwire.toml"
    path.write_text(text)
    command = [sys.executable, "-m", "toolwire", "serve", "--config", str(path), "--port", "0"]
    given = {**os.environ, **environment}
    return processes.run(command, env=given, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_what_one_gateway_keeps_another_one_continues_and_deletes(tmp_path, http, database_url):
    gateways = [
        Gateway(folder(tmp_path, "one"), config(database_url)),
        Gateway(folder(tmp_path, "two"), config("", 'url_env = "STORE"\n'), STORE=database_url),
    ]
    try:
        one, two = (Responses(http, gateway) for gateway in gateways)
        first = one.create(MODEL, "Say one.")
        second = two.create(MODEL, "Say two.", previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
        assert text_of(one.retrieve(second["id"])) == text_of(second)
        assert one.delete(second["id"]).status_code == 200
        assert two.get(second["id"]).status_code == 404
        assert http.get(f"{gateways[0].url}/readyz").json()["store"] == "ok"
    finally:
        codes = [gateway.stop() for gateway in gateways]
    assert codes == [0, 0]


def test_a_gateway_starts_without_its_database_and_uses_it_when_it_is_there(tmp_path, http):
    programs = binaries(NEWEST)
    if programs is None:
        pytest.skip("no PostgreSQL of our own: one that is away is not tried")
    server = Server(programs)
    server.stop()
    gateway = Gateway(folder(tmp_path, "one"), config(server.url("postgres")))
    try:
        assert any("cannot be used yet" in line for line in gateway.log), gateway.log
        assert http.get(f"{gateway.url}/readyz").json()["store"] == "failing"
        api = Responses(http, gateway)
        assert api.create(MODEL, "Say one.")["store"] is False, "told as it is"
        server.start()
        deadline = time.monotonic() + PATIENCE
        while http.get(f"{gateway.url}/readyz").json()["store"] != "ok":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        kept = api.create(MODEL, "Say two.")
        assert kept["store"] is True
        assert api.retrieve(kept["id"])["id"] == kept["id"]
    finally:
        gateway.stop()
        server.close()


def test_a_database_that_is_not_there_is_told_in_one_line_without_the_password(tmp_path, postgres):
    url = postgres.url("nowhere").replace("://toolwire@", f"://toolwire:{SECRET}@")
    done = serve(tmp_path, config(url))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert 'database "nowhere" does not exist' in line
    assert SECRET not in line
