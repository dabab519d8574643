"""Gateways with settings of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.gateway import Gateway


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
