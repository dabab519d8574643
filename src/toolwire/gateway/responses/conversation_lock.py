"""Serializes the turns of one conversation, and the submissions of tool outputs for one response.

A turn takes the lease before it reads what it continues and holds it until it is stored, so two turns never mix, even
in different processes. A turn that loses its lease is not stored, and sends no more requests to a backend.
"""

from functools import partial
from typing import Literal, TypeAlias

import msgspec

from toolwire.backoff import retry_after
from toolwire.core.errors import Failure, ToolwireError
from toolwire.gateway.exchange import Exchange
from toolwire.memory.leases import Leases, LeaseTaken, lease_name
from toolwire.memory.store import Lease, StoreFailed

LOCK_TIMEOUT = 20.0
"""Seconds for which a request waits for the one before it."""
RETRY_AFTER = 2
"""Seconds after which the client of a refused request may try again."""

Kind: TypeAlias = Literal["conversation", "submission"]

_REASONS: dict[str, str] = {
    "conversation": "Another turn of this conversation is being answered.",
    "submission": "The calls of this response are being answered by another request.",
}


class ConversationLock(msgspec.Struct, frozen=True):
    """The lock under which a turn is produced and stored. With a lease it is the guard of the turn."""

    lease: Lease | None = None
    leases: Leases | None = None
    """The leases of this process, among them `lease`."""
    refusal: StoreFailed | None = None
    """The failure of the store that prevented a lease. The turn is answered but not stored."""

    def require_lease(self) -> Lease | None:
        """The lease that the store checks when the turn is stored. Raises the refusal."""
        if self.refusal is not None:
            raise self.refusal
        return self.lease

    async def confirm(self) -> None:
        """Raise `Locked` if another process may have taken the lock."""
        if (
            self.lease is not None
            and self.leases is not None
            and not await self.leases.membership.has_lease(self.lease)
        ):
            raise Locked(self.lease.name.partition(":")[0])

    async def begin_action(self) -> None:
        """Confirm the lock. A turn in the foreground ends with its process, so there is nothing to record."""
        await self.confirm()


UNLOCKED = ConversationLock()
"""The lock of a turn that continues nothing."""


class Locked(ToolwireError):
    """The conversation or the response is locked by another request."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self._kind = kind

    @property
    def failure(self) -> Failure:
        message = f"{_REASONS[self._kind]} Try again when it is done."
        again = retry_after(RETRY_AFTER)
        return Failure(409, f"{self._kind}_locked", message, "invalid_request_error", retry_after=again, retryable=True)


async def acquire(
    leases: Leases, exchange: Exchange, kind: Kind, owner: str, id: str, seconds: float = LOCK_TIMEOUT
) -> ConversationLock:
    """Wait for the lock; the exchange holds it until it ends. Raises `Locked` after `seconds`."""
    try:
        lease = await leases.take(lease_name(kind, owner, id), seconds)
    except LeaseTaken:
        raise Locked(kind) from None
    except StoreFailed as error:
        return ConversationLock(refusal=error)
    exchange.closing.append(partial(leases.drop, lease))
    return ConversationLock(lease, leases)
