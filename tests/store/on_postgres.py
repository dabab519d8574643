"""The contract's places in PostgreSQL: three stores, each with connections of its own.

The databases and stores of a module are used for all its tests; before each, everything in them is deleted.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.store.place import BRIEF, DAY, DEADLINE, LONG, PLENTY, Loop, Place, Users
from tests.support.postgres import database, run
from toolwire.memory.postgres import PostgresStore
from toolwire.memory.postgres import database as statements
from toolwire.memory.store import Member

USERS = 3
TABLES = (
    *("holders", "items", "runs", "journal", "members", "leases", "kept", "dropped", "probes", "turns", "commits"),
    "issued_keys",
    "usage",
)
EMPTY = "".join(f"DELETE FROM toolwire.{table};" for table in TABLES)


@contextmanager
def patient() -> Generator[None]:
    """Statements may take long: the machine may be slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statements, "OPERATION_TIMEOUT", DEADLINE)
        yield


class Databases:
    """Two databases on one server; `url` says how the stores reach one of them."""

    def __init__(
        self, loop: Loop, server: Any, url: Callable[[str], str], databases: ExitStack, *, pooler: bool
    ) -> None:
        self._loop = loop
        self._server = server
        self._url = url
        self._databases = databases
        self._pooler = pooler
        self._names: dict[str, str] = {}
        self._opened: dict[tuple[Any, ...], Users] = {}

    def open(self, *, max_age: float = DAY, max_size: int = PLENTY) -> Users:
        return self.users("own", max_age, max_size, LONG)

    def join_briefly(self, member: Member) -> None:
        self.users("own", DAY, PLENTY, BRIEF).join(member)

    def shift(self, member: str, *, beat: float = 0.0, since: float = 0.0) -> None:
        change = f"until = until + {beat} * interval '1 second', since = since + {since} * interval '1 second'"
        self._loop.run(run(self.admin_url(), f"UPDATE toolwire.members SET {change} WHERE id = '{member}'"))

    def other(self) -> Users:
        return self.users("other", DAY, PLENTY, LONG)

    def users(
        self, which: str, max_age: float, max_size: int, lease: float, kind: type[PostgresStore] = PostgresStore
    ) -> Users:
        given = (self._name(which), max_age, max_size, lease, kind)
        if given not in self._opened:
            url = self._url(given[0])
            stores = [kind(url, max_age, max_size, lease, pooler=self._pooler) for _ in range(USERS)]
            self._opened[given] = Users(self._loop, stores)
        return self._opened[given]

    def admin_url(self) -> str:
        """How to reach the database of the store without any pooler."""
        return self._server.url(self._name("own"))

    def empty(self) -> None:
        """Begin anew."""
        for name in self._names.values():
            self._loop.run(run(self._server.url(name), EMPTY))

    def close(self) -> None:
        for users in self._opened.values():
            users.close()

    def _name(self, which: str) -> str:
        if which not in self._names:
            self._names[which] = self._databases.enter_context(database(self._server))
            store = PostgresStore(self._server.url(self._names[which]), DAY, PLENTY)
            store.check()
        return self._names[which]


@pytest.fixture(scope="module")
def databases(loop: Loop) -> Iterator[Callable[..., Databases]]:
    """The databases of a module, by how they are reached."""
    made: dict[str, Databases] = {}
    with ExitStack() as stack, patient():

        def get(name: str, server: Any, url: Callable[[str], str], *, pooler: bool = False) -> Databases:
            if name not in made:
                made[name] = Databases(loop, server, url, stack, pooler=pooler)
            made[name].empty()
            return made[name]

        yield get
        for each in made.values():
            each.close()


@contextmanager
def on_postgres(request: pytest.FixtureRequest) -> Generator[Place]:
    server = request.getfixturevalue("postgres")
    yield request.getfixturevalue("databases")("postgres", server, server.url)


@contextmanager
def on_oldest_postgres(request: pytest.FixtureRequest) -> Generator[Place]:
    server = request.getfixturevalue("oldest_postgres")
    yield request.getfixturevalue("databases")("oldest", server, server.url)


@contextmanager
def behind_pooler(request: pytest.FixtureRequest) -> Generator[Place]:
    server, pooler = request.getfixturevalue("postgres"), request.getfixturevalue("pooler")
    yield request.getfixturevalue("databases")("pooler", server, pooler.url, pooler=True)
