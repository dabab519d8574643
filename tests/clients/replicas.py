"""Fixtures that put two gateways on one PostgreSQL in the place of one."""

from collections.abc import Iterator

import pytest

from tests.sdk.turns import TURNS
from tests.support.gateway import backend
from tests.support.postgres import Given, Server, database
from tests.support.replicas import Replicas
from tests.support.upstream import Upstream


@pytest.fixture(scope="module")
def gateway(
    upstream: Upstream, postgres: Server | Given, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replicas]:
    with database(postgres) as name:
        config = f'{backend(upstream.url)}\n[store]\nurl = "{postgres.url(name)}"\n'
        replicas = Replicas(tmp_path_factory.mktemp("replicas"), config)
        yield replicas
        replicas.stop()


@pytest.fixture(scope="module")
def base_url(gateway: Replicas, upstream: Upstream) -> str:
    upstream.replies |= {f"client-{name}": reply for name, reply in TURNS.items()}
    return gateway.base_url
