"""Numbers for a schema: within its bounds, and multiples where it wants those."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice
from math import ceil, floor
from typing import Any

from toolwire.adapt.schemas_walk import Schema
from toolwire.backends.demo.schema.shapes import fraction, is_number

USUAL = (1, 2, 3, 0, -1, 5, 10, 100, Fraction(1, 2), Fraction(3, 2), Fraction(-1, 2))


def integers(schema: Schema, suggested: Sequence[Any]) -> Iterator[int]:
    """Whole numbers that may fit."""
    low, high = _bounds(schema)
    for number in (*_candidates(schema, suggested, Fraction(1)), *_multiples(Fraction(1), low, high)):
        if number.denominator == 1 and _is_between(number, low, high):
            yield int(number)


def numbers(schema: Schema, suggested: Sequence[Any]) -> Iterator[int | float]:
    """Numbers that may fit; those that are suggested first, then whole ones, but not all of them."""
    low, high = _bounds(schema)
    yield from (number for number in suggested if is_number(number))
    yield from islice(integers(schema, suggested), 24)
    for number in (*_candidates(schema, suggested, None), *_inside(low, high)):
        if _is_between(number, low, high):
            yield int(number) if number.denominator == 1 else float(number)


def _candidates(schema: Schema, suggested: Sequence[Any], step: Fraction | None) -> Iterator[Fraction]:
    low, high = _bounds(schema)
    yield from (number for number in map(fraction, suggested) if number is not None)
    yield from map(Fraction, USUAL)
    yield from (number for number in (low, high) if number is not None)
    step = fraction(schema.get("multipleOf")) or step
    if step is not None:
        yield from _multiples(abs(step), low, high)


def _bounds(schema: Schema) -> tuple[Fraction | None, Fraction | None]:
    """The tightest bounds; whether they are exclusive is left to the check."""
    lows = [fraction(schema.get(key)) for key in ("minimum", "exclusiveMinimum")]
    highs = [fraction(schema.get(key)) for key in ("maximum", "exclusiveMaximum")]
    low = max((number for number in lows if number is not None), default=None)
    return low, min((number for number in highs if number is not None), default=None)


def _is_between(number: Fraction, low: Fraction | None, high: Fraction | None) -> bool:
    return (low is None or number >= low) and (high is None or number <= high)


def _multiples(step: Fraction, low: Fraction | None, high: Fraction | None) -> Iterator[Fraction]:
    """The multiples from the bound that is there, or from 0, inwards."""
    if low is not None:
        first = ceil(low / step)
        yield from ((first + number) * step for number in range(64))
    elif high is not None:
        first = floor(high / step)
        yield from ((first - number) * step for number in range(64))
    else:
        yield from (number * step for number in range(64))
        yield from (-number * step for number in range(8))


def _inside(low: Fraction | None, high: Fraction | None) -> Iterator[Fraction]:
    """Numbers between the bounds, or beyond the only one."""
    if low is not None and high is not None:
        yield from (low + (high - low) * Fraction(part, 8) for part in range(1, 8))
    elif low is not None:
        yield from (low + Fraction(part, 2) for part in range(1, 8))
    elif high is not None:
        yield from (high - Fraction(part, 2) for part in range(1, 8))
