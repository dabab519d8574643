"""A table that several owners share keeps to its bytes, and nobody is pushed out by somebody who has more."""

from toolwire.core.cache import ENTRY_OVERHEAD, TenantCache

ROOM = 10 * (ENTRY_OVERHEAD + 1000)


def filled(**counts: int) -> TenantCache[str, str]:
    table: TenantCache[str, str] = TenantCache(ROOM)
    for owner, count in counts.items():
        for place in range(count):
            table.put(owner, f"{owner}{place}", owner, 1000)
    return table


def left(table: TenantCache[str, str], owner: str) -> list[int]:
    return [place for place in range(100) if table.get(f"{owner}{place}") is not None]


def test_beyond_its_bytes_the_oldest_goes():
    assert left(filled(ann=25), "ann") == list(range(15, 25))


def test_who_has_most_gives_way():
    table = filled(ann=3, ben=50)
    assert (left(table, "ann"), left(table, "ben")) == ([0, 1, 2], list(range(43, 50)))


def test_who_comes_later_gets_his_part_of_a_full_table():
    table = filled(ann=50, ben=50)
    assert (len(left(table, "ann")), len(left(table, "ben"))) == (5, 5)


def test_a_value_that_is_too_large_for_the_table_is_not_kept_and_costs_no_other_value():
    table = filled(ann=3)
    for owner in ("ann", "ben"):
        table.put(owner, "huge", owner, 2 * ROOM)
        assert table.get("huge") is None
        assert left(table, "ann") == [0, 1, 2]


def test_a_value_put_again_is_the_newest_and_counts_once():
    table = filled(ann=10)
    table.put("ann", "ann0", "new", 1000)
    table.put("ann", "ann10", "ann", 1000)
    assert left(table, "ann") == [0, *range(2, 11)]
    assert table.get("ann0") == "new"


def test_what_was_taken_out_takes_no_room():
    table = filled(ann=10)
    for place in range(10):
        table.pop(f"ann{place}")
        table.pop(f"ann{place}")
    assert len(table) == 0
    table.put("ben", "large", "ben", ROOM - ENTRY_OVERHEAD)
    assert table.get("large") == "ben"


def test_many_values_without_bytes_are_bounded_too():
    table: TenantCache[int, str] = TenantCache(ROOM)
    for place in range(1000):
        table.put("ann", place, "", 0)
    assert len(table) == ROOM // ENTRY_OVERHEAD
