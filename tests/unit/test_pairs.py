"""Pairwise selection holds every pair, and little more."""

from itertools import product

from tests.support.pairs import covering, pairs_of, pairwise


def test_every_pair_of_a_product_is_there():
    rows = [*product("abcdefgh", "xyz", "uvw", (True, False))]
    chosen = [rows[index] for index in covering(rows)]
    assert set().union(*map(pairs_of, chosen)) == set().union(*map(pairs_of, rows))
    assert len(chosen) < len(rows) / 4


def test_a_pair_that_cannot_be_is_not_asked_for():
    rows = [("a", 1, "x"), ("a", 2, "x"), ("b", 1, "y")]
    assert covering(rows) == {0, 1, 2}


def test_the_rest_is_for_soak():
    marks = [bool(param.marks) for param in pairwise([*product("ab", "xy", "uv")], "".join)]
    assert marks.count(False) == 4
    assert marks.count(True) == 4
