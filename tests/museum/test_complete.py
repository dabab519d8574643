"""Every row is tested."""

import importlib
import pkgutil

from tests import museum
from tests.museum.cases import TESTED
from tests.museum.rows import ROWS


def test_every_row_is_tested() -> None:
    for module in pkgutil.iter_modules(museum.__path__, "tests.museum."):
        if module.name.startswith("tests.museum.test_"):
            importlib.import_module(module.name)
    assert set(TESTED) == set(ROWS)


def test_numbers_are_unique() -> None:
    assert len({row.number for row in ROWS.values()}) == len(ROWS)
