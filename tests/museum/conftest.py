"""Fixtures of the museum: the gateway as everybody has it, one with no patience, and one that asks again."""

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
"""
_RETRYING = """
[server]
commit_after = 120

[tools]
stop_after = true
stop_after_grace_ms = 60000
"""


@pytest.fixture(scope="session")
def wire(gateway: Gateway, upstream: Upstream, http: httpx.Client) -> Wire:
    return Wire(gateway, upstream, http)


@pytest.fixture(scope="session")
def impatient(upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A gateway that soon says that it is there."""
    gateway = Gateway(tmp_path_factory.mktemp("impatient"), _IMPATIENT + backend(upstream.url))
    yield Wire(gateway, upstream, http)
    gateway.stop()


@pytest.fixture(scope="session")
def retrying(upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """One more try, as long as nothing was shown, and no text after a burst of calls."""
    table = backend(upstream.url).replace("retries = 0", "retries = 1")
    gateway = Gateway(tmp_path_factory.mktemp("retrying"), _RETRYING + table)
    yield Wire(gateway, upstream, http)
    gateway.stop()


@pytest.fixture(scope="session")
def routes(upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routes]:
    """A backend of every kind."""
    gateway = Gateway(tmp_path_factory.mktemp("routes"), tables(upstream.url))
    yield Routes(gateway, upstream, http)
    gateway.stop()
