"""What turns used: each turn once, and the same sums before and after they are rolled up."""

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.store.place import Place, Users, call
from toolwire.memory.sql.usage import HOUR, ROWS_PER_ROLL_UP, UsageField
from toolwire.memory.store import UsageRow

NUMBERS = ("turns", "input", "output", "cached", "cache_write", "reasoning", "calls", "notes", "duration")
FIELDS: tuple[UsageField, ...] = ("key", "team", "model", "backend", "dialect", "outcome", "hour")
END = 1e9


def turn(id: str, at: float = 0.0, **fields: Any) -> UsageRow:
    texts = {name: fields.pop(name, "") for name in FIELDS if name != "hour"}
    numbers = {name: fields.pop(name, 1) for name in NUMBERS if name != "turns"}
    return UsageRow(id=id, span=0, at=at, hour=int(at // HOUR), turns=1, **texts, **numbers)


def sums(store: Users, *by: UsageField, since: float = 0.0, until: float = END) -> dict[tuple[Any, ...], list[int]]:
    groups = store.sum_usage(by, since, until)
    return {group.values: [getattr(group, name) for name in NUMBERS] for group in groups}


def expect(rows: Sequence[UsageRow], *by: UsageField) -> dict[tuple[Any, ...], list[int]]:
    found: dict[tuple[Any, ...], Counter[str]] = {}
    for row in rows:
        counter = found.setdefault(tuple(getattr(row, name) for name in by), Counter())
        counter.update({name: getattr(row, name) for name in NUMBERS})
    return {values: [counter[name] for name in NUMBERS] for values, counter in found.items()}


ROWS = st.lists(
    st.builds(
        turn,
        st.integers(0, 30).map(str),
        st.floats(0, 5 * HOUR, exclude_max=True),
        **{name: st.sampled_from(["", "a", "b\N{SNOWMAN}"]) for name in FIELDS if name != "hour"},
        **{name: st.integers(0, 10**12) for name in ("input", "output", "cached", "duration")},
        **{name: st.integers(0, 9) for name in ("cache_write", "reasoning", "calls", "notes")},
    ),
    max_size=40,
    unique_by=lambda row: row.id,
)


EXAMPLES = count(1)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, cuts=st.lists(st.floats(0, 6 * HOUR), max_size=4), by=st.lists(st.sampled_from(FIELDS), unique=True))
def test_the_sums_equal_the_turns_however_they_are_put_and_rolled_up(
    store: Users, rows: list[UsageRow], cuts: list[float], by: list[UsageField]
):
    number = next(EXAMPLES)  # all examples are in one store, each in hours of its own
    start = number * 100 * HOUR
    rows = [replace(row, id=f"{number}-{row.id}", at=row.at + start, hour=row.hour + start // HOUR) for row in rows]
    half = len(rows) // 2
    store.put_usage(rows[:half])
    for cut in cuts:
        store.roll_up_usage(start + cut)
    if not cuts:
        store.put_usage(rows[: half + 1])
    store.put_usage(rows[half:])
    for cut in cuts:
        store.roll_up_usage(start + cut)
    assert sums(store, *by, since=start, until=start + 10 * HOUR) == expect(rows, *by)


def test_a_turn_that_is_put_again_counts_once(store: Users):
    store.put_usage([turn("a"), turn("b", key="ann")])
    store.put_usage([turn("b", key="ann"), turn("c", key="ann")])
    assert sums(store, "key") == {("",): [1] * 9, ("ann",): [2] * 9}
    assert sums(store) == {(): [3] * 9}


def test_nothing_was_used_in_a_time_without_turns(store: Users):
    store.put_usage([turn("a", at=10.0)])
    assert sums(store, since=10.5) == sums(store, until=10.0) == sums(store, "model", since=11.0) == {}
    assert sums(store, since=10.0, until=10.5) == {(): [1] * 9}


def test_days_and_hours_are_counted_from_1970(store: Users):
    store.put_usage([turn("a", at=23.5 * HOUR), turn("b", at=24.5 * HOUR), turn("c", at=47.0 * HOUR)])
    assert sums(store, "day") == {(0,): [1] * 9, (1,): [2] * 9}
    assert sums(store, "day", "hour") == {(0, 23): [1] * 9, (1, 24): [1] * 9, (1, 47): [1] * 9}


def test_many_processes_put_and_roll_up_at_once(place: Place):
    store = place.open()
    rows = [turn(f"t{number}", at=number % 3 * HOUR, key=str(number % 2)) for number in range(3 * ROWS_PER_ROLL_UP)]
    batches = [rows[start : start + 100] for start in range(0, len(rows), 100)]
    works = [call("put_usage", batch) for batch in batches] + [call("roll_up_usage", END) for _ in range(6)]
    outcomes = store.at_once(*works)
    assert not [each for each in outcomes if isinstance(each, BaseException)]
    while store.roll_up_usage(END):
        pass
    assert sums(store, "key", "hour") == expect(rows, "key", "hour")
    assert {group.turns for group in store.sum_usage(["hour"], 0.0, END)} == {ROWS_PER_ROLL_UP}
