"""New settings for running workers: checked first, then one slot after the other gets a worker that has them.

The old worker of a slot stops accepting when the new one does. If a new worker does not come about, the slots that have
one already get workers with the old settings, in the same way. There is never a moment in which a slot has none.

Workers with the old settings may not come about either. A roll-back goes on until they do, or until settings that
somebody has mended meanwhile are checked.
"""

from toolwire.gateway.workers.messages import FromWorker
from toolwire.gateway.workers.slot import Child, Generation


class Check:
    """New settings, while a process finds out whether workers could serve with them."""

    def __init__(self, generation: Generation, child: Child) -> None:
        self.generation = generation
        self.child = child
        self.said: list[FromWorker] = []
        """By the child."""


class Reload:
    """One reload, from the check to its end."""

    def __init__(self, before: Generation, after: Generation) -> None:
        self.before = before
        self.after = after
        self.reason = ""
        """Why it is being rolled back."""

    @property
    def target(self) -> Generation:
        """What every slot is to have."""
        return self.before if self.reason else self.after
