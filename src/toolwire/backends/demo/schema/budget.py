"""The steps that may be spent on one schema, which is a client's and may ask for anything."""


class TooMuch(Exception):
    """The steps are used up."""


class Budget:
    """Counts steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Count these steps. Raises `TooMuch` when there are none left."""
        self._left -= steps
        if self._left < 0:
            raise TooMuch
