"""What the gateway needs of a store, and how a store says that it fails.

One store may be used by many processes at once. Everything in it belongs to an owner. Two kinds of writers are guarded,
so that a process which was taken for dead cannot undo what another one did in its place:

- the process that produces a background run has a `Fence`: the run's id with a number that grows whenever another
  process takes the run over;
- the process that holds a `Lease` (on a conversation, on a submission, on a thread of Codex, on the sweep) has the
  number that it was granted with, which is never granted twice.

A guard is checked in the very statement that writes. Who lost it gets `Overtaken`, and nothing is written.

A process is a member as long as its heartbeat comes in time. When it does not, its runs and leases are free to take:
whoever takes some of them takes the member away with them, and until then a late heartbeat brings it back. A store that
nobody could reach for a while is no reason to take anything: who takes must itself have beaten for as long as the other
one did not.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal, Protocol, TypeAlias

import msgspec

from toolwire.core.errors import Failure, ToolwireError
from toolwire.pauses import retry_after

Raw = msgspec.Raw
Kind: TypeAlias = Literal["response", "conversation", "deleted"]
"""What holds items. A deleted response is kept as long as others continue it."""
Reason: TypeAlias = Literal[
    "full", "busy", "readonly", "corrupt", "missing", "in_use", "newer", "io", "unreachable", "overtaken"
]

NO_BOUND = 2**63 - 1

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=NO_BOUND)]
Time: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=253402300800)]
"""Seconds since 1970, up to the year 9999."""
Id: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]


class KeptItem(msgspec.Struct, frozen=True):
    """An item with the id it is known by."""

    id: str
    raw: Raw


class Record(msgspec.Struct, frozen=True):
    """A response as it is kept. `response` has no output: that is in the items."""

    id: str
    created: float
    status: str
    fields: bytes
    """What was asked, as JSON, but for the items."""
    response: bytes
    previous: str = ""
    conversation: str = ""
    continuation: str = ""
    """The response that its tool outputs led to, once they were submitted."""

    @property
    def is_over(self) -> bool:
        return self.status not in UNFINISHED


class OwnedRecord(msgspec.Struct, frozen=True):
    """A response in a list that may have those of several owners. Its record is without what was asked."""

    owner: str
    record: Record


UNFINISHED = ("queued", "in_progress")
"""The states of a response that is still being produced."""


class EventChunk(msgspec.Struct, frozen=True):
    """Some events of a background run, one after the other as they were sent."""

    first: int
    """The number of the first one."""
    count: int
    frames: bytes


class Effects(msgspec.Struct, frozen=True):
    """What a response that is kept changes elsewhere, in the same transaction."""

    link: tuple[str, str] | None = None
    """A response, and what its tool outputs have led to."""
    conversation: str = ""
    """The conversation that the items of the response are added to."""
    answered: tuple[str, ...] = ()
    """Calls in that conversation that the response brought results for."""


class Page(msgspec.Struct, frozen=True):
    items: list[KeptItem]
    has_more: bool


class Conversation(msgspec.Struct, frozen=True):
    id: str
    created: float
    metadata: bytes


class KeyValue(msgspec.Struct, frozen=True):
    """A value of some kind that is kept between turns."""

    owner: str
    kind: str
    key: bytes
    value: bytes


class Member(msgspec.Struct, frozen=True):
    """A process that uses the store. Its id is made anew whenever a process begins to use it."""

    id: str
    host: str = ""
    """The machine it runs on: processes of the same machine can talk to each other."""
    socket: str = ""
    """The path of its Unix socket there."""


class Fence(msgspec.Struct, frozen=True):
    """The right to write one background run. `epoch` grows by every claim of the run."""

    id: str
    epoch: int


class Lease(msgspec.Struct, frozen=True):
    """The right to do something by name that one process may do at a time. No epoch is granted twice."""

    name: str
    member: str
    epoch: int
    step: int = 0
    """Moved on by `advance`; what it counts is known to whoever holds the lease."""


Guard: TypeAlias = Fence | Lease


class RunLimits(msgspec.Struct, frozen=True):
    """Most background runs that may be unfinished, in all processes together."""

    in_all: int = NO_BOUND
    per_owner: int = NO_BOUND
    reason: str = "server.max_background_runs"
    """What sets the limit in all."""

    def check(self, in_all: int, owned: int) -> None:
        """Raise `TooManyRuns` if one more run is too many."""
        if owned >= self.per_owner:
            raise TooManyRuns(self, of_owner=True)
        if in_all >= self.in_all:
            raise TooManyRuns(self, of_owner=False)


class TooManyRuns(ToolwireError):
    """The limit of unfinished background runs is reached. Nothing was written."""

    def __init__(self, limits: RunLimits, *, of_owner: bool) -> None:
        super().__init__(limits, of_owner)
        own = f"{limits.per_owner} of yours (server.max_background_runs_per_owner)"
        self._said = own if of_owner else f"{limits.in_all} ({limits.reason})"

    @property
    def failure(self) -> Failure:
        message = f"Too many unfinished background responses: the limit is {self._said}. Try again when one has ended."
        return Failure(429, "too_many_background_runs", message, retry_after=retry_after(5), retryable=True)


class Append(msgspec.Struct, frozen=True):
    """New events of one run."""

    owner: str
    fence: Fence
    chunk: EventChunk


class Appended(msgspec.Struct, frozen=True):
    """What became of several appends: those that are not named here are committed."""

    lost: frozenset[Fence] = frozenset()
    """Runs that somebody else has by now, or that were deleted."""
    cancelled: frozenset[Fence] = frozenset()
    """Runs that somebody wants to end. Their events are committed."""


class Follow(msgspec.Struct, frozen=True):
    """Somebody waits for the events of a run from number `next` on."""

    owner: str
    id: str
    next: int


class Followed(msgspec.Struct, frozen=True):
    """What there is for a follower, in order and without a gap."""

    chunks: tuple[EventChunk, ...]
    is_over: bool
    """No event comes after these."""


class ClaimedRun(msgspec.Struct, frozen=True):
    """A run that had no living process, and is the claiming one's now."""

    owner: str
    fence: Fence
    record: Record
    plan: bytes
    """What the process that queued it wrote down to run it."""
    next_event: int
    """How many events of it are committed."""
    is_started: bool
    """Something was begun that must not be done twice."""
    is_cancelled: bool


class Row(msgspec.Struct, frozen=True, tag_field="table"):
    """A row of a store that is copied to another one. As JSON a line says its table, and bytes are base64.

    Values are bounded where rows are read from JSON, which a person may have changed.
    """


class HolderRow(Row, frozen=True, tag="holder"):
    """A response or a conversation. Times are seconds since 1970."""

    id: Id
    owner: str
    kind: Kind
    created: Time
    used: Time
    size: Count
    """Bytes that it counts: of its fields, its body, its items and its events."""
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
    """Whether it is output, or input, which the items of a conversation are too."""
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
    """A background run. It belongs to no member of the new store, so one that is not over can be claimed there."""

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
    """Background runs that are not over."""
    members: int = 0


class StoreFailed(ToolwireError):
    """The store cannot be read or written now."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason

    @property
    def is_lasting(self) -> bool:
        """Whether somebody must change something first: waiting alone does not mend it."""
        return self.reason not in ("full", "busy", "unreachable")

    @property
    def failure(self) -> Failure:
        message = f"The store of responses and conversations cannot be used now ({_SAID[self.reason]})."
        return Failure(503, "store_unavailable", message, retry_after=retry_after(5), retryable=True)


class Overtaken(StoreFailed):
    """Another process has taken over what this one wanted to write. Nothing was written."""

    def __init__(self, guard: Guard) -> None:
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
    """What was asked for has more bytes than whoever asks may take; nothing of it was loaded."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class Responses(Protocol):
    """Responses, conversations and their items. Every call is about one owner's things."""

    async def save(
        self,
        owner: str,
        record: Record,
        given: Sequence[KeptItem] | None,
        made: Sequence[KeptItem],
        effects: Effects = ...,
        *,
        guard: Guard | None = None,
        last: EventChunk | None = None,
    ) -> None:
        """Keep a response, or its new state. `given` is None when its input is kept already.

        A response that is over stays as it is: saving it again changes nothing, so this may be tried again. An id that
        belongs to somebody else is left alone. A response that has a run is saved with its fence alone: `last` are then
        its last events, and a record that is over ends the run.
        """
        ...

    async def load(self, owner: str, id: str) -> Record | None: ...

    async def recent(self, owner: str | None, limit: int, most: int) -> list[OwnedRecord]:
        """Responses of an owner, or of everybody, those used last first.

        Once their bodies have `most` bytes together, further records have none.
        """
        ...

    async def input(self, owner: str, holder: str, most: int = ...) -> list[Raw]:
        """The input of a response, or a whole conversation."""
        ...

    async def output(self, owner: str, id: str) -> list[Raw]:
        """The output of a response."""
        ...

    async def chain(self, owner: str, id: str, most: int = ...) -> list[Raw] | None:
        """Everything said up to and with this response, oldest first; None if a link of the chain is missing."""
        ...

    async def missing_link(self, owner: str, id: str) -> str:
        """The latest response of a chain that is not there; nothing if the chain is whole."""
        ...

    async def delete(self, owner: str, id: str, kind: Kind = "response") -> bool:
        """Forget a response or a conversation; the process that has its run loses it.

        The items of a response that others continue stay in their chains, and are seen nowhere else.
        """
        ...

    async def page(self, owner: str, holder: str, after: str, limit: int, order: str, most: int = ...) -> Page | None:
        """Some of the input of a response, or of a conversation; None if `after` is none of its items.

        A page ends before `most` bytes; its first item is there whatever its size.
        """
        ...

    async def find(self, owner: str, ids: Sequence[str], most: int = ...) -> dict[str, Raw]:
        """Items by their ids, wherever they are kept; an id counts as often as it is given."""
        ...

    async def put_conversation(self, owner: str, conversation: Conversation) -> None: ...

    async def conversation(self, owner: str, id: str) -> Conversation | None: ...

    async def add_items(self, owner: str, holder: str, items: Sequence[KeptItem]) -> None:
        """Add items to a conversation, if it is still there. Items that are there already are not added again."""
        ...

    async def add_turn(self, owner: str, id: str, items: Sequence[KeptItem], effects: Effects, guard: Lease) -> None:
        """Add all items of a turn to its conversation, if that is still there; the response of this id is not kept."""
        ...

    async def item(self, owner: str, holder: str, id: str) -> Raw | None:
        """One item of a conversation."""
        ...

    async def delete_item(self, owner: str, holder: str, id: str) -> bool: ...


class Runs(Protocol):
    """Background runs and their events. Only who has a run's fence writes it; everybody of its owner may read it."""

    async def queue(
        self,
        owner: str,
        record: Record,
        given: Sequence[KeptItem],
        effects: Effects,
        *,
        plan: bytes,
        member: str,
        guard: Guard | None = None,
        limits: RunLimits = ...,
    ) -> Fence:
        """Keep a response whose turn has yet to run, and its run, which this member has claimed.

        The same again gives the same fence, unless the run was taken over in between. Raises `TooManyRuns`: the limits
        are exact over all processes.
        """
        ...

    async def append(self, appends: Sequence[Append]) -> Appended:
        """Commit new events of many runs in one statement.

        The same append again changes nothing: what became of it is not known after a failure, so it is sent again as it
        was, before any that comes after it.
        """
        ...

    async def start(self, fence: Fence) -> bool:
        """Commit that something begins which must not be done twice; False if the run is somebody else's by now."""
        ...

    async def claim(self, member: str, limit: int) -> list[ClaimedRun]:
        """Take over runs whose process is dead, each with a higher epoch. Nothing for a member that is not alive.

        Dead is who has left, or has not beaten for a lease while this member did, without missing a beat.
        """
        ...

    async def cancel(self, owner: str, id: str) -> bool:
        """Want a run to end; whether there is one that is not over."""
        ...

    async def cancelled(self, member: str) -> list[Fence]:
        """The runs of a member that somebody wants to end."""
        ...

    async def follow(self, wanted: Sequence[Follow], most: int = ...) -> list[Followed]:
        """The committed events that followers wait for, for all of them in one query, an answer for each.

        A run that is not there, or has no events, is over. `most` bounds the bytes of the answers together, but each
        gets at least one chunk if there is one.
        """
        ...

    async def events(self, owner: str, id: str, number: int) -> EventChunk | None:
        """The event of this number with those behind it in its chunk, or the last chunk; None if no events are kept."""
        ...


class Members(Protocol):
    """Which processes are alive, and who may do what one process may do at a time."""

    async def join(self, member: Member) -> None:
        """Become a member until the heartbeat stops for longer than a lease lasts."""
        ...

    async def beat(self, member: str) -> bool:
        """Stay a member, or be one again. False if this one was taken for dead: it must join anew, under another id."""
        ...

    async def leave(self, member: str) -> None:
        """Stop being a member: its runs and leases are free at once."""
        ...

    async def member(self, id: str) -> Member | None:
        """A member that is alive."""
        ...

    async def members(self, most: int) -> list[Member]:
        """Members that are alive, by their ids."""
        ...

    async def leases(self, most: int) -> list[Lease]:
        """Leases that living members have, by their names."""
        ...

    async def take_lease(self, name: str, member: str) -> Lease | None:
        """A new lease, or the one that this member has.

        None if another member has it that is not dead, or if this one is not alive itself.
        """
        ...

    async def holder(self, name: str) -> Lease | None:
        """The lease of this name, if a living member has it."""
        ...

    async def advance(self, lease: Lease) -> Lease | None:
        """Move the lease on by one step, once; None if it is lost, or somebody has moved it on already."""
        ...

    async def drop_lease(self, lease: Lease) -> None: ...


class Kept(Protocol):
    """Small values that are kept between turns."""

    async def put_values(self, rows: Sequence[KeyValue]) -> None: ...

    async def get_values(self, owner: str, keys: Sequence[tuple[str, bytes]], most: int = ...) -> list[bytes | None]:
        """The values with these kinds and keys, as long as there are not too many bytes of them."""
        ...


class Store(Responses, Runs, Members, Kept, Protocol):
    """All of it, in one engine."""

    @property
    def failing(self) -> Reason | None:
        """Why the latest attempt failed, if it did."""
        ...

    @property
    def outlives_process(self) -> bool:
        """Whether what is kept is there after this process."""
        ...

    @property
    def version(self) -> int:
        """The version of the schema that this program makes."""
        ...

    async def inspect(self) -> int:
        """The version of the schema that is there, 0 if there is none. Nothing is changed."""
        ...

    async def open(self) -> None:
        """Make ready what can be; a store that cannot be reached now is tried again when it is used."""
        ...

    async def probe(self) -> bool:
        """Whether the store works. One that fails is tried once more, but not too often."""
        ...

    async def maintain(self, member: str) -> None:
        """Let go of what is too old or too much, if no other process does. Called again and again."""
        ...

    async def stats(self) -> StoreStats: ...

    def dump(self) -> AsyncIterator[AnyRow]:
        """Everything that is kept when this begins, the same for every engine; holders come before what is theirs."""
        ...

    async def restore(self, rows: Sequence[AnyRow]) -> None:
        """Add rows of `dump` in their order; what is there already stays."""
        ...

    async def close(self) -> None: ...
