"""New settings for running workers: checked first, then one slot after the other gets a worker that has them.

The old worker of a slot stops accepting when the new one does. If a new worker does not come about, the slots that have
one already get workers with the old settings, in the same way. There is never a moment in which a slot has none.
"""

from toolwire.gateway.workers.messages import FromWorker
from toolwire.gateway.workers.slot import Child, Generation


class Reload:
    """One reload, from the signal to its end."""

    def __init__(self, before: Generation, after: Generation, checker: Child) -> None:
        self.before = before
        self.after = after
        self.checker: Child | None = checker
        self.said: list[FromWorker] = []
        """By the checker."""
        self.reason = ""
        """Why it is being rolled back."""

    @property
    def target(self) -> Generation:
        """What every slot is to have."""
        return self.before if self.reason else self.after
