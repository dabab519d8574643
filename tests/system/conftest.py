"""Fixtures for tests of many processes."""

from collections.abc import Iterator

import httpx
import pytest


@pytest.fixture(scope="session")
def http() -> Iterator[httpx.Client]:
    """A client that keeps no connection: a gateway that ends would wait a second for the next request on it."""
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(timeout=120, trust_env=False, limits=limits) as client:
        yield client
