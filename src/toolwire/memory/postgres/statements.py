"""Statements with names for their values: `:name` in the text, whatever number PostgreSQL calls it by."""

import re
from collections.abc import Sequence

_NAME = re.compile(r"(?<!:):([a-z_]+)")


class Statement:
    """A statement; called with its values by name, it gives what a connection needs to make it."""

    def __init__(self, text: str) -> None:
        self.names = tuple(dict.fromkeys(_NAME.findall(text)))
        numbers = {name: f"${number}" for number, name in enumerate(self.names, 1)}
        self.text = _NAME.sub(lambda found: numbers[found[1]], text)

    def __call__(self, **values: object) -> tuple[str, Sequence[object]]:
        """The text and the values that it names; it may name fewer than there are."""
        return self.text, [values[name] for name in self.names]
