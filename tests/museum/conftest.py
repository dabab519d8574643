"""Fixtures of the museum: the gateway as everybody has it, and one with no patience."""

from collections.abc import Iterator

import httpx
import pytest

from tests.museum.gate import Routes, Wire, tables
from tests.support.gateway import Gateway, backend
from tests.support.upstream import Upstream

_IMPATIENT = """
[server]
commit_after = 0.2
keepalive = 0.2

[tools]
stop_after = true

[timeouts]
idle = 0.8
progress = 1.6
"""


@pytest.fixture(scope="session")
def wire(gateway: Gateway, upstream: Upstream, http: httpx.Client) -> Wire:
    return Wire(gateway, upstream, http)


@pytest.fixture(scope="session")
def impatient(upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """Short clocks, one more try, and no waiting for text after a burst of calls."""
    table = backend(upstream.url).replace("retries = 0", "retries = 1")
    gateway = Gateway(tmp_path_factory.mktemp("impatient"), _IMPATIENT + table)
    yield Wire(gateway, upstream, http)
    gateway.stop()


@pytest.fixture(scope="session")
def routes(upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routes]:
    """A backend of every kind."""
    gateway = Gateway(tmp_path_factory.mktemp("routes"), tables(upstream.url))
    yield Routes(gateway, upstream, http)
    gateway.stop()
