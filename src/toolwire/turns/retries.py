"""How often a backend may be asked again: a server in trouble must not get several times the requests."""

RESERVE = 10
"""Retries that are there at first, and come back in a minute."""
MOST = 100
"""Most retries that are saved up."""


class RetryBudget:
    """Retries of one backend: a share of its requests, and a small reserve for one that has few."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._left = float(RESERVE)
        self._since = 0.0

    def earn(self) -> None:
        """A request is made for the first time."""
        self._left = min(MOST, self._left + self._share)

    def spend(self, now: float) -> bool:
        """Whether a request may be made again, at this time in seconds."""
        refilled = self._left + RESERVE * (now - self._since) / 60 if self._since else self._left
        self._since = now
        self._left = max(self._left, min(RESERVE, refilled))
        if self._left < 1:
            return False
        self._left -= 1
        return True
