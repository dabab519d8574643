"""Gateways with settings of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

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


@pytest.fixture(scope="session")
def routes(upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routes]:
    """One gateway with a backend of every kind, for all tests of the matrix."""
    gateway = Gateway(tmp_path_factory.mktemp("matrix"), backends(upstream.url))
    yield Routes(gateway, upstream, http)
    gateway.stop()
