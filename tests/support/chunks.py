"""Every stage must give the same result whole, byte by byte and at random cuts."""

import random
from collections.abc import Callable, Iterator
from typing import TypeVar

Piece = TypeVar("Piece", bytes, str)
Result = TypeVar("Result")


def chunkings(data: Piece, seed: int = 0, tries: int = 12) -> Iterator[list[Piece]]:
    """The data whole, in single units, and cut at random."""
    yield [data]
    yield [data[place : place + 1] for place in range(len(data))]
    rnd = random.Random(seed)
    for _ in range(tries):
        cuts = sorted(rnd.sample(range(len(data) + 1), min(len(data) + 1, rnd.randint(1, 9))))
        yield [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def in_any_chunking(data: Piece, run: Callable[[list[Piece]], Result]) -> Result:
    """Run on every chunking, demand one result, return it."""
    first, *others = [run(pieces) for pieces in chunkings(data)]
    for other in others:
        assert other == first
    return first
