"""How a row becomes a test: a theme collects its cases by slug and turns them into one parametrised test."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tests.museum.rows import ROWS

Case = Callable[..., None]

TESTED: dict[str, Case] = {}
"""Every case of all themes that were loaded, by slug."""


class Theme:
    """The cases of one theme. A case is a function that may ask for fixtures by name, as any test."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._cases: dict[str, Case] = {}

    def row(self, slug: str) -> Callable[[Case], Case]:
        assert ROWS[slug].theme == self._name, slug
        assert slug not in self._cases, slug

        def register(case: Case) -> Case:
            self._cases[slug] = TESTED[slug] = case
            return case

        return register

    def test(self) -> Case:
        """The test of the module, one per row."""
        cases = [pytest.param(case, id=slug) for slug, case in self._cases.items()]

        @pytest.mark.parametrize("case", cases)
        def test_museum(case: Case, request: pytest.FixtureRequest) -> None:
            wanted: Any = inspect.signature(case).parameters
            case(**{name: request.getfixturevalue(name) for name in wanted})

        return test_museum
