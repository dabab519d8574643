"""The store contract on the engines that `make test` leaves out: the oldest PostgreSQL, and PostgreSQL behind PgBouncer."""

from collections.abc import Iterator

import pytest

from tests.store.conftest import loop, store
from tests.store.on_postgres import behind_pooler, databases, on_oldest_postgres
from tests.store.place import Place

__all__ = ["databases", "loop", "store"]

ENGINES = {"oldest-postgres": on_oldest_postgres, "postgres-behind-pooler": behind_pooler}


@pytest.fixture(params=list(ENGINES))
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with ENGINES[request.param](request) as place:
        yield place
