"""The engines that the contract is for. Another one is one more function in `ENGINES`; `tests/system/store` has more."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from tests.store.on_postgres import databases, on_postgres  # noqa: F401 - a fixture
from tests.store.place import BRIEF, DAY, LONG, PLENTY, Loop, Place, Users
from tests.store.processes import Process
from toolwire.memory.sqlite import SqliteStore
from toolwire.memory.store import Member

SHIFT = "UPDATE members SET beat = beat + ?, since = since + ? WHERE id = ?"


class InMemory:
    """One process and one user."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.opened: list[Users] = []

    def open(self, *, max_age: float = DAY, max_size: int = PLENTY) -> Users:
        store = SqliteStore("memory:", max_age, max_size, lease=LONG)
        self.opened.append(Users(self._loop, [store]))
        return self.opened[-1]

    def join_briefly(self, member: Member) -> None:
        (store,) = self.opened[0].stores
        store._lease = BRIEF
        self.opened[0].join(member)
        store._lease = LONG

    def shift(self, member: str, *, beat: float = 0.0, since: float = 0.0) -> None:
        (store,) = self.opened[0].stores
        self._loop.run(store.in_writer(lambda database: database.execute(SHIFT, (beat, since, member)).rowcount))

    def other(self) -> Users:
        return self.open()


class SharedFile:
    """A file that several processes use."""

    def __init__(self, loop: Loop, processes: list[Process], folder: Path, kind: str = "sqlite") -> None:
        self._loop = loop
        self._processes = processes
        self._folder = folder
        self._kind = kind
        self.opened: list[Users] = []

    def open(self, *, max_age: float = DAY, max_size: int = PLENTY) -> Users:
        return self._open("kept.db", max_age, max_size, LONG)

    def join_briefly(self, member: Member) -> None:
        self._open("kept.db", DAY, PLENTY, BRIEF).join(member)

    def shift(self, member: str, *, beat: float = 0.0, since: float = 0.0) -> None:
        with closing(sqlite3.connect(self._folder / "kept.db", isolation_level=None)) as database:
            database.execute(SHIFT, (beat, since, member))

    def other(self) -> Users:
        return self._open("other.db", DAY, PLENTY, LONG)

    def _open(self, name: str, max_age: float, max_size: int, lease: float) -> Users:
        url = f"sqlite:{self._folder / name}"
        made = (process.make(self._kind, url, max_age, max_size, lease=lease) for process in self._processes)
        self.opened.append(Users(self._loop, [self._loop.run(each) for each in made]))
        return self.opened[-1]


@contextmanager
def in_memory(request: pytest.FixtureRequest) -> Iterator[Place]:
    place = InMemory(request.getfixturevalue("loop"))
    yield place
    for users in place.opened:
        users.close()


@contextmanager
def shared_file(request: pytest.FixtureRequest) -> Iterator[Place]:
    loop, processes, folder = map(request.getfixturevalue, ("loop", "processes", "tmp_path"))
    place = SharedFile(loop, processes, folder)
    yield place
    for users in place.opened:
        users.close()


ENGINES: dict[str, Callable[[pytest.FixtureRequest], AbstractContextManager[Place]]] = {
    "sqlite-memory": in_memory,
    "sqlite-three-processes": shared_file,
    "postgres": on_postgres,
}


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def processes() -> Iterator[list[Process]]:
    """Three processes, for all tests of a module."""
    started = [Process() for _ in range(3)]
    yield started
    for process in started:
        process.stop()


@pytest.fixture(params=list(ENGINES))
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with ENGINES[request.param](request) as place:
        yield place


@pytest.fixture
def store(place: Place) -> Users:
    return place.open()
