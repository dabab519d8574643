"""Turns that follow each other: those of one conversation, and the answers to the calls of one response.

Each has the lease of what it continues from before it reads that until it is kept, so two of them are never mixed, in
whichever processes they run. A turn whose lease was lost meanwhile is not kept, and one that has lost it before its
backend is asked does not ask.
"""

import msgspec

from toolwire.core.errors import Failure, ToolwireError
from toolwire.gateway.exchange import Exchange
from toolwire.memory.leases import Leases, LeaseTaken, lease_name
from toolwire.memory.membership import Membership
from toolwire.memory.store import Lease, StoreFailed
from toolwire.pauses import retry_after

PATIENCE = 20.0
"""Seconds for which a request waits for the one before it."""
RETRY_AFTER = 2
"""Seconds after which its client may try again."""

_SAID = {
    "conversation": "Another turn of this conversation is being answered.",
    "submission": "The calls of this response are being answered by another request.",
}


class Permit(msgspec.Struct, frozen=True):
    """By which right a turn is kept."""

    lease: Lease | None = None
    refusal: StoreFailed | None = None
    """Why there is none: the turn goes on, and cannot be kept."""

    def guard(self) -> Lease | None:
        """What the store checks when the turn is kept."""
        if self.refusal is not None:
            raise self.refusal
        return self.lease

    async def confirm(self, membership: Membership) -> None:
        """Raise `Locked` if another process may have continued the same meanwhile. Called before a backend is asked."""
        if self.lease is not None and not await membership.holds(self.lease):
            raise Locked(self.lease.name.partition(":")[0])


FREE = Permit()
"""That of a turn which follows no other."""


class Locked(ToolwireError):
    """What is to be continued is being continued by somebody else."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self._kind = kind

    @property
    def failure(self) -> Failure:
        message = f"{_SAID[self._kind]} Try again when it is done."
        again = retry_after(RETRY_AFTER)
        return Failure(409, f"{self._kind}_locked", message, "invalid_request_error", retry_after=again, retryable=True)


async def wait_turn(
    leases: Leases, exchange: Exchange, kind: str, owner: str, id: str, patience: float = PATIENCE
) -> Permit:
    """Wait until nobody else continues this. The exchange has the lease from then on until it is over."""
    try:
        held = await leases.take(lease_name(kind, owner, id), patience)
    except LeaseTaken:
        raise Locked(kind) from None
    except StoreFailed as error:
        return Permit(refusal=error)
    exchange.closing.append(held.release)
    return Permit(held.lease)
