"""Numbers for a schema: within its bounds, and multiples where it wants those."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain
from math import ceil, floor
from typing import Any

from toolwire.adapt.schemas_walk import Schema
from toolwire.backends.demo.schema.plain import fraction

_USUAL = (1, 2, 3, 0, -1, 5, 10, 100, Fraction(1, 2), Fraction(3, 2), Fraction(-1, 2))


def numbers(schema: Schema, suggested: Sequence[Any], *, whole: bool) -> Iterator[int | float]:
    """Numbers that may fit: those that are suggested, usual ones, and those next to the bounds."""
    lows = [fraction(schema[key]) for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [fraction(schema[key]) for key in ("maximum", "exclusiveMaximum") if key in schema]
    low = max((number for number in lows if number is not None), default=None)
    high = min((number for number in highs if number is not None), default=None)
    step = fraction(schema.get("multipleOf")) or Fraction(1)
    given = (number for number in map(fraction, suggested) if number is not None)
    bounds = (number for number in (low, high) if number is not None)
    between = () if whole else _between(low, high)
    ones = _multiples(Fraction(1), low, high, 16) if step.denominator > 1 else ()
    for number in chain(given, map(Fraction, _USUAL), bounds, ones, _multiples(abs(step), low, high, 32), between):
        is_inside = (low is None or number >= low) and (high is None or number <= high)
        if is_inside and (number.denominator == 1 or not whole):
            yield int(number) if number.denominator == 1 else float(number)


def _multiples(step: Fraction, low: Fraction | None, high: Fraction | None, count: int) -> Iterator[Fraction]:
    """The multiples from the bound that is there inwards, or around 0."""
    if low is None and high is not None:
        return ((floor(high / step) - number) * step for number in range(count))
    first = ceil(low / step) if low is not None else -4
    return ((first + number) * step for number in range(count))


def _between(low: Fraction | None, high: Fraction | None) -> Iterator[Fraction]:
    """Numbers between the bounds, or beyond the only one."""
    start = low if low is not None else high or Fraction(0)
    width = high - low if low is not None and high is not None else Fraction(4 if low is not None else -4)
    return (start + width * Fraction(part, 8) for part in range(1, 8))
