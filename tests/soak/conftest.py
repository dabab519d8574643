"""Rows of the table that `make soak` ends with: what was measured, and how much it may be."""

from collections.abc import Callable

import pytest


class Rows:
    """The rows of one test. `hold` fails it if one of them is beyond its ceiling."""

    def __init__(self, record: Callable[[str, object], None]) -> None:
        self._record = record
        self._beyond: list[str] = []

    def add(self, scenario: str, measured: float, ceiling: float, unit: str) -> None:
        holds = measured <= ceiling
        row = [scenario, f"{measured:,.4g} {unit}", f"{ceiling:,.4g} {unit}", "holds" if holds else "BEYOND"]
        self._record("row", row)
        if not holds:
            self._beyond.append(" · ".join(row))

    def hold(self) -> None:
        assert not self._beyond, "\n".join(self._beyond)


@pytest.fixture
def rows(record_property: Callable[[str, object], None]) -> Rows:
    return Rows(record_property)
