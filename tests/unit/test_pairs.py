"""Pairwise selection holds every pair, and little more."""

from itertools import product

from tests.support.pairs import cover, pairs_of, pairwise


def test_every_pair_of_a_product_is_there():
    rows = [*product("abcdefgh", "xyz", "uvw", (True, False))]
    chosen = [rows[index] for index in cover(rows)]
    assert set().union(*map(pairs_of, chosen)) == set().union(*map(pairs_of, rows))
    assert len(chosen) < len(rows) / 4


def test_a_pair_that_cannot_be_is_not_asked_for():
    rows = [("a", 1, "x"), ("a", 2, "x"), ("b", 1, "y")]
    assert cover(rows) == {0, 1, 2}


def test_the_rest_is_for_soak():
    marks = [bool(param.marks) for param in pairwise([*product("ab", "xy", "uv")], "".join)]
    assert marks.count(False) == 4
    assert marks.count(True) == 4


def test_a_factor_that_follows_from_a_row_meets_every_value():
    rows = [*product("abcdef", "xyz", "xyz")]
    params = pairwise(rows, "".join, lambda row: (row[1] == row[2],))
    kept = [param.values for param in params if not param.marks]
    assert {(name, left == right) for name, left, right in kept} == {*product("abcdef", (True, False))}
