"""Pairwise selection: a small subset of a product of factors that contains every possible pair of values.

It exposes faults that depend on two values. `make soak` runs the rest of the product.
"""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import Any

import pytest

Pair = tuple[int, Any, int, Any]


def pairs_of(row: Sequence[Any]) -> set[Pair]:
    """All pairs of values in a row, with their columns."""
    return {(*one, *two) for one, two in combinations(enumerate(row), 2)}


def cover(rows: Sequence[Sequence[Any]]) -> set[int]:
    """Indexes of rows that together hold every pair, chosen greedily and always alike."""
    pairs = [pairs_of(row) for row in rows]
    missing: set[Pair] = set().union(*pairs)
    # A row's gain never grows, so the top of the heap is the best row if its recorded gain is still correct.
    heap = [(-len(each), index) for index, each in enumerate(pairs)]
    heapify(heap)
    chosen: set[int] = set()
    while missing:
        gain, index = heappop(heap)
        left = len(pairs[index] & missing)
        if left == -gain:
            missing -= pairs[index]
            chosen.add(index)
        elif left:
            heappush(heap, (-left, index))
    return chosen


def pairwise(
    rows: Sequence[Sequence[Any]],
    name: Callable[[Sequence[Any]], str],
    further: Callable[[Sequence[Any]], Sequence[Any]] = lambda row: (),
) -> list[Any]:
    """Return a parameter for each row; rows outside the pairwise subset have the mark `soak`.

    `further` gives factors that follow from a row, such as whether a route translates: they meet every value, too.
    """
    chosen = cover([(*row, *further(row)) for row in rows])
    return [
        pytest.param(*row, id=name(row), marks=() if index in chosen else pytest.mark.soak)
        for index, row in enumerate(rows)
    ]
