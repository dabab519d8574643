"""The contract finds what it is there for: stores without a guard, or with one that does not hold, fail it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.store import mutants, test_contract_members, test_contract_runs
from tests.store.conftest import SharedFile
from tests.store.examples import joined, queued
from tests.store.place import DAY, LONG, PLENTY, Loop, Users
from tests.store.processes import Process
from tests.store.races import RACES
from toolwire.memory.sqlite import SqliteStore

ROUNDS = 200
"""Most rounds of a race until its fault must have shown."""


@contextmanager
def opened(loop: Loop, kind: type[SqliteStore]) -> Iterator[Users]:
    users = Users(loop, [kind("memory:", DAY, PLENTY, lease=LONG)])
    try:
        yield users
    finally:
        users.close()


def fails(check: Callable[[], Any]) -> bool:
    """Whether a check finds a fault. What pytest raises where an error is missing is no Exception."""
    try:
        check()
    except (AssertionError, pytest.fail.Exception):
        return True
    return False


OF_RUNS = {
    test_contract_runs.test_who_lost_a_run_cannot_write_it: mutants.NoFence,
    test_contract_runs.test_one_append_of_many_runs_loses_only_those_that_are_lost: mutants.NoFence,
    test_contract_runs.test_an_end_that_another_process_made_is_no_end_of_ours: mutants.NoFence,
    test_contract_runs.test_no_epoch_of_a_run_is_given_twice: mutants.ReusedEpochOfRun,
    test_contract_runs.test_the_same_append_again_changes_nothing: mutants.SecondCounter,
    test_contract_runs.test_a_deleted_run_is_lost_and_over: mutants.ShownBeforeCommit,
}
OF_LEASES = {
    test_contract_members.test_who_lost_a_lease_writes_nothing_with_it: mutants.NoFence,
    test_contract_members.test_no_epoch_of_a_lease_is_granted_twice: mutants.ReusedEpochOfLease,
}


@pytest.mark.parametrize(("check", "kind"), OF_RUNS.items(), ids=lambda each: each.__name__)
def test_a_fault_of_runs_is_found(loop: Loop, check: Callable[..., None], kind: type[SqliteStore]):
    for each, expected in ((SqliteStore, False), (kind, True)):
        with opened(loop, each) as store:
            if "run" not in check.__code__.co_varnames[: check.__code__.co_argcount]:
                assert fails(lambda store=store: check(store)) is expected
                continue
            joined(store, "one", "two")
            run = queued(store, "r1", "one")
            assert fails(lambda store=store, run=run: check(store, run)) is expected


@pytest.mark.parametrize(("check", "kind"), OF_LEASES.items(), ids=lambda each: each.__name__)
def test_a_fault_of_leases_is_found(loop: Loop, check: Callable[[Users], None], kind: type[SqliteStore]):
    for each, expected in ((SqliteStore, False), (kind, True)):
        with opened(loop, each) as store:
            assert fails(lambda store=store: check(store)) is expected


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)
@pytest.mark.parametrize("kind", ["no-fence", "check-then-write"])
def test_a_check_that_is_not_part_of_the_write_is_found(
    loop: Loop, processes: list[Process], tmp_path: Path, race: Callable[[Users, str], None], kind: str
):
    store = SharedFile(loop, processes, tmp_path, kind).open()
    assert any(fails(lambda n=n: race(store, str(n))) for n in range(ROUNDS))
    store.close()


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)
def test_a_store_whose_writers_are_stopped_has_no_such_fault(
    loop: Loop, processes: list[Process], tmp_path: Path, race: Callable[[Users, str], None]
):
    store = SharedFile(loop, processes, tmp_path, "stopped").open()
    for n in range(5):
        race(store, str(n))
    store.close()
