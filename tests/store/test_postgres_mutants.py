"""The contract finds what it is there for in PostgreSQL too: statements without a guard, or with one that does not hold.

Every statement is made to pause between its check and its write. With the row lock that harms nobody; without it the
writer is overtaken in between.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.store.on_postgres import Databases
from tests.store.place import DAY, LONG, PLENTY, Users
from tests.store.races import RACES
from toolwire.memory.postgres import PostgresStore
from toolwire.memory.postgres.operations import compose_save
from toolwire.memory.postgres.schema import STATEMENTS
from toolwire.memory.store import Appended, Overtaken, WriteGuard

ROUNDS = 100
"""Most rounds of a race until its fault must have shown."""
PAUSE = 0.05

Change = Callable[[str], str]


def without(*parts: str) -> Change:
    """A text without these parts, each of which it must have had."""

    def change(text: str) -> str:
        for part in parts:
            assert part in text
            text = text.replace(part, "")
        return text

    return change


def paused(text: str) -> str:
    """A statement that pauses between its guard and its write."""
    for joined, held in (("JOIN mine USING (id, epoch)", "sign(mine.epoch)"), (":token FROM guard", "guard.held")):
        text = text.replace(joined, f"{joined}, LATERAL pg_sleep({PAUSE} * {held})")
    assert "pg_sleep" in text
    return text


def unfenced(text: str) -> str:
    """Events that are written whoever has the run."""
    start, end = text.index("mine AS ("), text.index("added AS (")
    return f"{text[:start]}mine AS (SELECT id, epoch, false AS is_cancelled FROM given),\n{text[end:]}"


class CheckThenWrite(PostgresStore):
    """Guards are checked, and then something is written."""

    async def append(self, appends: Any) -> Appended:
        lost = {each.fence for each in appends if not await self._is_held(each.fence)}
        await super().append([each for each in appends if each.fence not in lost])
        return Appended(frozenset(lost))

    async def save(self, *given: Any, guard: WriteGuard | None = None, **named: Any) -> None:
        if guard is not None and not await self._is_held(guard):
            raise Overtaken(guard)
        await super().save(*given, guard=guard, **named)

    async def _is_held(self, guard: WriteGuard) -> bool:
        fence = "SELECT 1 FROM toolwire.runs WHERE id = :id AND epoch = :epoch AND NOT is_over"
        lease = "SELECT 1 FROM toolwire.leases WHERE name = :id AND epoch = :epoch"
        is_run = hasattr(guard, "id")
        id = getattr(guard, "id" if is_run else "name")
        return bool(await self.query(fence if is_run else lease, id=id, epoch=guard.epoch))


@pytest.fixture
def postgres_users(request: pytest.FixtureRequest, postgres: Any) -> Callable[[type[PostgresStore]], Users]:
    databases: Databases = request.getfixturevalue("databases")("postgres", postgres, postgres.url)
    return lambda kind: databases.users("own", DAY, PLENTY, LONG, kind)


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Changes the statements of the store."""

    def forget() -> None:
        STATEMENTS.clear()
        compose_save.cache_clear()

    def change(append: Change = str, **guards: str) -> None:
        texts = STATEMENTS.texts
        monkeypatch.setitem(texts, "append", paused(append(texts["append"])))
        monkeypatch.setitem(texts, "save", paused(texts["save"]))
        for name, text in guards.items():
            monkeypatch.setitem(texts, f"guard_{name}", text)
        forget()

    yield change
    monkeypatch.undo()
    forget()


def fails(check: Callable[[], Any]) -> bool:
    try:
        check()
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)
def test_a_guard_holds_however_long_the_write_takes(postgres_users, changed, race):
    changed()
    store = postgres_users(PostgresStore)
    for number in range(6):
        race(store, str(number))


NO_LOCK = {
    "append": without("FOR SHARE OF r"),
    "fence": "SELECT 1 AS held FROM toolwire.runs WHERE id = :guard AND epoch = :epoch AND NOT is_over",
    "lease": without("FOR SHARE")(STATEMENTS.texts["guard_lease"]),
}
NO_FENCE = {
    "append": unfenced,
    "fence": "SELECT 1 AS held FROM toolwire.runs WHERE id = :guard AND :epoch > 0",
    "lease": "SELECT 1 AS held WHERE :guard <> '' AND :member <> '' AND :epoch > 0",
}


@pytest.mark.parametrize(
    ("kind", "faults"),
    [(PostgresStore, NO_LOCK), (PostgresStore, NO_FENCE), (CheckThenWrite, NO_FENCE)],
    ids=["no-row-lock", "no-fence", "check-then-write"],
)
@pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)
def test_a_guard_that_does_not_hold_is_found(postgres_users, changed, race, kind, faults):
    changed(**faults)
    store = postgres_users(kind)
    assert any(fails(lambda n=n: race(store, str(n))) for n in range(ROUNDS))
