"""Gateways with settings of their own."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.fleet import Fleet
from tests.support.gateway import Gateway
from tests.support.routes import Routes, backends
from tests.support.upstream import Upstream


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    """Start a gateway with this configuration and environment."""
    started: list[Gateway] = []

    def begin(config: str = "", *args: str, **environment: str) -> Gateway:
        gateway = Gateway(tmp_path, config, args, **environment)
        started.append(gateway)
        return gateway

    yield begin
    for gateway in started:
        gateway.stop()


@pytest.fixture
def start_fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Start a gateway with several workers; `patch` is code that its supervisor runs first."""
    started: list[Fleet] = []

    def begin(config: str = "", workers: int = 2, patch: str = "", **environment: str) -> Fleet:
        started.append(Fleet(tmp_path, config, workers, patch, **environment))
        return started[-1]

    yield begin
    for fleet in started:
        if fleet.process.poll() is None:
            fleet.process.send_signal(signal.SIGTERM)  # a second one ends it at once
        fleet.stop()


@pytest.fixture(scope="session")
def routes(upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routes]:
    """One gateway with a backend of every kind, for all tests of the matrix."""
    gateway = Gateway(tmp_path_factory.mktemp("matrix"), backends(upstream.url))
    yield Routes(gateway, upstream, http)
    gateway.stop()
