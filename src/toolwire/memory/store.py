"""The contract of a store, and the errors that it raises.

Many processes may use one store at once. Every row belongs to an owner, and is seen by no other one. A process that was
taken for dead must not undo what another process did in its place, so two kinds of writers have a guard:

- the process that produces a background run has a `Fence`: the run's id and an epoch, which grows whenever another
  process takes the run over;
- the process that holds a `Lease` (on a conversation, a submission, a thread of Codex, the sweep) has the epoch with
  which the lease was granted, and which is never granted again.

A guard is checked by the statement that writes, or in its transaction. A writer that lost its guard gets `Overtaken`,
and nothing is written.

A process is a member as long as its heartbeats come in time. When they do not, its runs and leases may be taken over;
that also deletes the member, and until then a late heartbeat revives it. A store that was unreachable for a while is no
reason to take anything over: only a member that sent its own heartbeats in time may take from one that did not.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal, Protocol, TypeAlias

import msgspec

from toolwire.backoff import retry_after
from toolwire.core.errors import Failure, ToolwireError

Raw = msgspec.Raw
Kind: TypeAlias = Literal["response", "conversation", "deleted"]
"""What holds items. A deleted response stays, hidden, as long as others continue it."""
Reason: TypeAlias = Literal[
    "full", "busy", "readonly", "corrupt", "missing", "in_use", "newer", "io", "unreachable", "overtaken"
]

NO_BOUND = 2**63 - 1

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=NO_BOUND)]
Time: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=253402300800)]
"""Seconds since 1970, up to the year 9999."""
Id: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]


class KeptItem(msgspec.Struct, frozen=True):
    """An item of a response or conversation, with its id."""

    id: str
    raw: Raw


class Record(msgspec.Struct, frozen=True):
    """A stored response. `response` is its JSON without the output, which is stored as items."""

    id: str
    created: float
    status: str
    fields: bytes
    """The request's fields as JSON, without its input."""
    response: bytes
    previous: str = ""
    conversation: str = ""
    continuation: str = ""
    """The response that continued this one with its tool outputs."""

    @property
    def is_over(self) -> bool:
        return self.status not in UNFINISHED


class OwnedRecord(msgspec.Struct, frozen=True):
    """A response in a list of several owners' responses. The record has no `fields`."""

    owner: str
    record: Record


UNFINISHED = ("queued", "in_progress")
"""Statuses of a response that is still being produced."""


class EventChunk(msgspec.Struct, frozen=True):
    """Consecutive events of a background run, as bytes to send."""

    first: int
    """The number of the first event."""
    count: int
    frames: bytes


class Effects(msgspec.Struct, frozen=True):
    """What saving a response changes elsewhere, in the same transaction."""

    link: tuple[str, str] | None = None
    """The ids of a response and of the one that continues it."""
    conversation: str = ""
    """The conversation to which the items are added."""
    answered: tuple[str, ...] = ()
    """Ids of the calls in that conversation that this turn answers."""


class Page(msgspec.Struct, frozen=True):
    items: list[KeptItem]
    has_more: bool


class Conversation(msgspec.Struct, frozen=True):
    id: str
    created: float
    metadata: bytes


class KeyValue(msgspec.Struct, frozen=True):
    """A value that outlives a turn."""

    owner: str
    kind: str
    key: bytes
    value: bytes


class Member(msgspec.Struct, frozen=True):
    """A process that uses the store. It gets a new id whenever it joins."""

    id: str
    host: str = ""
    """The name of its machine."""


class Fence(msgspec.Struct, frozen=True):
    """The right to write one background run. `epoch` grows with every claim of it."""

    id: str
    epoch: int


class Lease(msgspec.Struct, frozen=True):
    """The right to do something that one process may do at a time, by name. No epoch is granted twice."""

    name: str
    member: str
    epoch: int


OriginCheck: TypeAlias = Fence | Lease


class RunLimits(msgspec.Struct, frozen=True):
    """Maximum numbers of unfinished background runs, over all processes."""

    in_all: int = NO_BOUND
    per_owner: int = NO_BOUND
    reason: str = "server.max_background_runs"
    """The setting behind `in_all`."""

    def check(self, in_all: int, owned: int) -> None:
        """Raise `TooManyRuns` if one more run would exceed a limit."""
        if owned >= self.per_owner:
            raise TooManyRuns(self, of_owner=True)
        if in_all >= self.in_all:
            raise TooManyRuns(self, of_owner=False)


class TooManyRuns(ToolwireError):
    """A limit of unfinished background runs is reached. Nothing was written."""

    def __init__(self, limits: RunLimits, *, of_owner: bool) -> None:
        super().__init__(limits, of_owner)
        own = f"{limits.per_owner} of yours (server.max_background_runs_per_owner)"
        self._limit = own if of_owner else f"{limits.in_all} ({limits.reason})"

    @property
    def failure(self) -> Failure:
        message = f"Too many unfinished background responses: the limit is {self._limit}. Try again when one has ended."
        return Failure(429, "too_many_background_runs", message, retry_after=retry_after(5), retryable=True)


class Append(msgspec.Struct, frozen=True):
    """New events of a run."""

    owner: str
    fence: Fence
    chunk: EventChunk


class Appended(msgspec.Struct, frozen=True):
    """The outcome of several appends. The events of runs that are not lost are committed."""

    lost: frozenset[Fence] = frozenset()
    """Runs that another process has taken over, or that were deleted."""
    cancelled: frozenset[Fence] = frozenset()
    """Runs that are to be cancelled."""


class Follow(msgspec.Struct, frozen=True):
    """A request for the events of a run from number `next` on."""

    owner: str
    id: str
    next: int


class Followed(msgspec.Struct, frozen=True):
    """The events for a follower, in order and without gaps."""

    chunks: tuple[EventChunk, ...]
    is_over: bool
    """Whether no event comes after these."""


class ClaimedRun(msgspec.Struct, frozen=True):
    """An orphaned run that now belongs to the member that claimed it."""

    owner: str
    fence: Fence
    record: Record
    plan: bytes
    """What is needed to run it, as the process that queued it wrote it."""
    next_event: int
    """The number of committed events."""
    is_started: bool
    """Whether something was started that must not be done twice."""
    is_cancelled: bool


class Row(msgspec.Struct, frozen=True, tag_field="table"):
    """A row of an export. As JSON it names its table, and bytes are base64.

    Values have bounds because an export may have been edited.
    """


class HolderRow(Row, frozen=True, tag="holder"):
    """A response or a conversation. Times are seconds since 1970."""

    id: Id
    owner: str
    kind: Kind
    created: Time
    used: Time
    size: Count
    """Bytes of its fields, body, items and events."""
    status: str
    previous: str
    conversation: str
    continuation: str
    fields: bytes
    body: bytes


class ItemRow(Row, frozen=True, tag="item"):
    holder: Id
    owner: str
    made: bool
    """Whether it is output. The items of a conversation are input."""
    place: Count
    id: str
    item: bytes


class EventRow(Row, frozen=True, tag="event"):
    holder: Id
    owner: str
    first: Count
    count: Count
    frames: bytes


class RunRow(Row, frozen=True, tag="run"):
    """A background run. It belongs to no member of the other store, so an unfinished one can be claimed there."""

    id: Id
    owner: str
    epoch: Count
    is_over: bool
    is_started: bool
    is_cancelled: bool
    plan: bytes


class ValueRow(Row, frozen=True, tag="kept"):
    owner: str
    kind: str
    key: bytes
    value: bytes
    used: Time


AnyRow: TypeAlias = HolderRow | ItemRow | EventRow | RunRow | ValueRow


class StoreStats(msgspec.Struct, frozen=True):
    """Numbers for operators."""

    bytes: int = 0
    responses: int = 0
    conversations: int = 0
    runs: int = 0
    """Unfinished background runs."""
    members: int = 0


class StoreFailed(ToolwireError):
    """The store cannot be read or written now; `reason` says why."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason

    @property
    def is_lasting(self) -> bool:
        """Whether waiting does not help, because something has to be changed first."""
        return self.reason not in ("full", "busy", "unreachable")

    @property
    def failure(self) -> Failure:
        message = f"The store of responses and conversations cannot be used now ({_SAID[self.reason]})."
        return Failure(503, "store_unavailable", message, retry_after=retry_after(5), retryable=True)


class Overtaken(StoreFailed):
    """Another process has taken over the run or lease. Nothing was written."""

    def __init__(self, guard: OriginCheck) -> None:
        super().__init__("overtaken", f"another process has taken over {guard!r}")


_SAID: dict[Reason, str] = {
    "full": "no room is left on its disk",
    "busy": "another program has locked it",
    "readonly": "it cannot be written to",
    "corrupt": "its file is damaged",
    "missing": "its file has gone",
    "in_use": "a gateway of an older version uses it",
    "newer": "it was made by a newer version",
    "io": "its disk reports an error",
    "unreachable": "its database cannot be reached",
    "overtaken": "another process has taken over",
}


class TooLarge(Exception):
    """The result has more bytes than the caller accepts; none of it was loaded."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class Responses(Protocol):
    """Responses, conversations and their items."""

    async def save(
        self,
        owner: str,
        record: Record,
        given: Sequence[KeptItem] | None,
        made: Sequence[KeptItem],
        effects: Effects = ...,
        *,
        guard: OriginCheck | None = None,
        last: EventChunk | None = None,
    ) -> None:
        """Save a response or its new state.

        `given` is its input, None if that is saved already; `made` is its output. A finished response does not change
        any more: saving it again has no effect, so a save may be retried. An id of another owner is left alone. A
        response with a run can be saved only with the run's fence; `last` are then its last events, and a finished
        record ends the run. Raises `Overtaken`.
        """
        ...

    async def load(self, owner: str, id: str) -> Record | None: ...

    async def recent(self, owner: str | None, limit: int, most: int) -> list[OwnedRecord]:
        """The latest used responses of one owner, or of all.

        Once the bodies have `most` bytes together, further records come without one.
        """
        ...

    async def input(self, owner: str, holder: str, most: int = ...) -> list[Raw]:
        """The input of a response, or all items of a conversation. Raises `TooLarge`."""
        ...

    async def output(self, owner: str, id: str) -> list[Raw]:
        """The output of a response."""
        ...

    async def chain(self, owner: str, id: str, most: int = ...) -> list[Raw] | None:
        """All items of this response and those it continues, oldest first; None if one of them is missing.

        Raises `TooLarge`. A chain that is read does not expire.
        """
        ...

    async def missing_link(self, owner: str, id: str) -> str:
        """The id of the response at which a chain is broken; empty if the chain is complete."""
        ...

    async def delete(self, owner: str, id: str, kind: Kind = "response") -> bool:
        """Delete a response or a conversation; whether it was there. The process that has its run loses it.

        The items of a response that others continue stay in those chains, and are seen nowhere else.
        """
        ...

    async def page(self, owner: str, holder: str, after: str, limit: int, order: str, most: int = ...) -> Page | None:
        """A page of the items of a conversation, or of a response's input; None if `after` is not one of them.

        A page ends before `most` bytes, but has at least one item if there is one.
        """
        ...

    async def find(self, owner: str, ids: Sequence[str], most: int = ...) -> dict[str, Raw]:
        """Items by id, of any response or conversation. Raises `TooLarge`; an id given twice counts twice."""
        ...

    async def put_conversation(self, owner: str, conversation: Conversation) -> None: ...

    async def conversation(self, owner: str, id: str) -> Conversation | None: ...

    async def add_items(self, owner: str, holder: str, items: Sequence[KeptItem]) -> None:
        """Add items to a conversation, if it exists. Items whose id it has already are not added again."""
        ...

    async def add_turn(self, owner: str, id: str, items: Sequence[KeptItem], effects: Effects, guard: Lease) -> None:
        """Add all items of a turn to its conversation, if it exists; the response itself, `id`, is not saved."""
        ...

    async def item(self, owner: str, holder: str, id: str) -> Raw | None:
        """One item of a conversation."""
        ...

    async def delete_item(self, owner: str, holder: str, id: str) -> bool: ...


class Runs(Protocol):
    """Background runs and their events. A run is written with its fence; any process may read it for its owner."""

    async def queue(
        self,
        owner: str,
        record: Record,
        given: Sequence[KeptItem],
        effects: Effects,
        *,
        plan: bytes,
        member: str,
        guard: OriginCheck | None = None,
        limits: RunLimits = ...,
    ) -> Fence:
        """Save a response whose turn has yet to run, and its run, which belongs to this member.

        Queuing it again returns the same fence, unless the run was taken over. Raises `Overtaken`, and `TooManyRuns`
        if a limit is reached, exactly over all processes.
        """
        ...

    async def append(self, appends: Sequence[Append]) -> Appended:
        """Commit new events of several runs together.

        An append that is repeated has no effect. After a failure its outcome is unknown, so repeat it unchanged before
        any later one.
        """
        ...

    async def start(self, fence: Fence) -> bool:
        """Commit that something starts which must not be done twice; False if the run is lost."""
        ...

    async def claim(self, member: str, limit: int) -> list[ClaimedRun]:
        """Take over runs whose process is dead, each with a higher epoch. A member that is not alive gets none.

        A process is dead if it has left, or sent no heartbeat for a lease in which this member sent all of its own.
        """
        ...

    async def cancel(self, owner: str, id: str) -> bool:
        """Ask for the end of a run; whether there is an unfinished one."""
        ...

    async def cancelled(self, member: str) -> list[Fence]:
        """The runs of a member that are to be cancelled."""
        ...

    async def follow(self, wanted: Sequence[Follow], most: int = ...) -> list[Followed]:
        """The committed events for each of these followers.

        A run that does not exist is over. The answers together have at most `most` bytes, but each has at least one
        chunk if there is one.
        """
        ...

    async def events(self, owner: str, id: str, number: int) -> EventChunk | None:
        """The chunk with the event of this number, or the last chunk; None if there are no events."""
        ...


class Members(Protocol):
    """Which processes are alive, and leases on what one process may do at a time."""

    async def join(self, member: Member) -> None:
        """Become a member, until no heartbeat comes for longer than a lease."""
        ...

    async def beat(self, member: str) -> bool:
        """Send a heartbeat. False if the member was taken for dead: the process must join again under a new id."""
        ...

    async def leave(self, member: str) -> None:
        """Stop being a member. Its runs and leases are free at once."""
        ...

    async def member(self, id: str) -> Member | None:
        """The member of this id, if it is alive."""
        ...

    async def members(self, most: int) -> list[Member]:
        """Living members, ordered by id."""
        ...

    async def leases(self, most: int) -> list[Lease]:
        """Leases of living members, ordered by name."""
        ...

    async def take_lease(self, name: str, member: str) -> Lease | None:
        """Grant the lease of this name, or return the one that this member has already.

        None if another member that is not dead has it, or if this member is not alive.
        """
        ...

    async def holder(self, name: str) -> Lease | None:
        """The lease of this name, if a living member has it."""
        ...

    async def drop_lease(self, lease: Lease) -> None: ...


class KeyValues(Protocol):
    """Small values that outlive a turn."""

    async def put_values(self, rows: Sequence[KeyValue]) -> None: ...

    async def get_values(self, owner: str, keys: Sequence[tuple[str, bytes]], most: int = ...) -> list[bytes | None]:
        """The values of these kinds and keys, None for each that is missing or follows after `most` bytes."""
        ...


class Store(Responses, Runs, Members, KeyValues, Protocol):
    """The whole contract. Every operation may raise `StoreFailed`."""

    @property
    def failing(self) -> Reason | None:
        """Why the store fails, if it does."""
        ...

    @property
    def outlives_process(self) -> bool:
        """Whether the data is still there after this process."""
        ...

    @property
    def version(self) -> int:
        """The version of the schema that this program creates."""
        ...

    async def inspect(self) -> int:
        """The version of the existing schema, 0 if there is none. Changes nothing."""
        ...

    async def open(self) -> None:
        """Prepare the store. One that cannot be reached now is tried again when it is used."""
        ...

    async def probe(self) -> bool:
        """Whether the store works. A failing store is tried again, but not too often."""
        ...

    async def maintain(self, member: str) -> None:
        """Delete expired and excess rows, unless another process does so. To be called periodically."""
        ...

    async def stats(self) -> StoreStats: ...

    def dump(self) -> AsyncIterator[AnyRow]:
        """All rows as of the start of the dump, the same for every engine; holders come before their items."""
        ...

    async def restore(self, rows: Sequence[AnyRow]) -> None:
        """Add rows of `dump`, in its order; existing rows stay."""
        ...

    async def close(self) -> None: ...
