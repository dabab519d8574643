"""The types and errors of a store; its operations are the public methods of `Store` (`sql/store.py`).

Many processes may use one store at once. Every row belongs to an owner, and no other owner sees it. A process that was
presumed dead must not undo what another process did in its place, so two kinds of writers have a guard:

- the process that produces a background run has a `Fence`: the run's id and an epoch, which is incremented whenever
  another process claims the run;
- the process that holds a `Lease` (on a conversation, a submission, the sweep) has the epoch with which the lease was
  granted. No epoch is granted twice.

A guard is checked by the statement that writes, or in its transaction. A writer that lost its guard gets `Overtaken`,
and nothing is written.

A process is a member as long as its heartbeats arrive in time. Otherwise its runs and leases may be taken over, which
also deletes the member; until then a late heartbeat revives it. An outage of the store leads to no take-over: only a
member that sent its own heartbeats in time may take over from one that did not.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

from toolwire.backoff import retry_after
from toolwire.core.errors import Failure, ToolwireError

Raw = msgspec.Raw
Kind: TypeAlias = Literal["response", "conversation", "deleted"]
"""The kinds of row that have items. A deleted response stays, hidden, as long as other responses continue it."""
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
    """A response and its owner, for lists. The record has no `fields`."""

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
    """The ids of a response and of the one that continues it; the second is empty to remove the link."""
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


class KeptTurn(msgspec.Struct, frozen=True):
    """A turn that the console keeps."""

    id: str
    owner: str
    facts: bytes
    """What a list of turns shows."""
    content: bytes = b""


class TurnBounds(msgspec.Struct, frozen=True):
    """How long turns are kept, in seconds (0: as long as everything else), and how many bytes of them."""

    max_age: float = 0.0
    max_size: int = NO_BOUND


class KeyLimits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a key may use; 0 is no limit. A limit that is not known here makes a stored key unreadable."""

    requests_per_minute: Count = 0
    tokens_per_minute: Count = 0
    concurrent_turns: Count = 0


class IssuedKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """A key of a client that was issued while the gateway ran. Times are seconds since 1970; 0 is never."""

    name: str
    """The tenant. Names are never used again, because stored data belongs to them."""
    digest: bytes
    """The SHA-256 of the secret, which is not stored."""
    created: Time
    rotated: Time = 0.0
    expires: Time = 0.0
    revoked: Time = 0.0
    team: str = ""
    models: tuple[str, ...] = ()
    """The models that it may use, as names or globs; all if there are none."""
    backends: tuple[str, ...] = ()
    """The backends that it may use; all if there are none."""
    labels: dict[str, str] = {}
    limits: KeyLimits = KeyLimits()

    def is_valid(self, now: float) -> bool:
        """Whether it may be used: it is neither revoked nor expired."""
        return not self.revoked and (not self.expires or now < self.expires)


class UsageRow(msgspec.Struct, frozen=True):
    """What one turn used, or the turns of an hour together."""

    id: str
    span: int
    """Seconds: 0 for one turn."""
    at: float
    """When it ended, in seconds since 1970."""
    hour: int
    """The same in whole hours."""
    key: str
    team: str
    model: str
    backend: str
    dialect: str
    outcome: str
    turns: int
    input: int
    """Tokens, as are the next four; as in `Usage`."""
    output: int
    cached: int
    cache_write: int
    reasoning: int
    calls: int
    notes: int
    duration: int
    """Milliseconds."""


class Member(msgspec.Struct, frozen=True):
    """A process that uses the store. Each time it joins, it gets a new id."""

    id: str
    host: str = ""
    """The name of its machine."""


class Fence(msgspec.Struct, frozen=True):
    """The right to write one background run. Every claim of the run increments `epoch`."""

    id: str
    epoch: int


class Lease(msgspec.Struct, frozen=True):
    """The right to work that one process may do at a time, by name. No epoch is granted twice."""

    name: str
    member: str
    epoch: int


WriteGuard: TypeAlias = Fence | Lease


class RunLimits(msgspec.Struct, frozen=True):
    """The maximum number of unfinished background runs, across all processes."""

    in_all: int = NO_BOUND
    per_owner: int = NO_BOUND
    reason: str = "server.max_background_runs"
    """The setting that determines `in_all`."""

    def check(self, in_all: int, owned: int) -> None:
        """Raise `TooManyRuns` if one more run would exceed a limit."""
        if owned >= self.per_owner:
            raise TooManyRuns(self, of_owner=True)
        if in_all >= self.in_all:
            raise TooManyRuns(self, of_owner=False)


class TooManyRuns(ToolwireError):
    """The limit on unfinished background runs is reached. Nothing was written."""

    def __init__(self, limits: RunLimits, *, of_owner: bool) -> None:
        super().__init__(limits, of_owner)
        own = f"{limits.per_owner} per key (server.max_background_runs_per_owner)"
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
    """Runs whose cancellation was requested."""


class Follow(msgspec.Struct, frozen=True):
    """A request for the events of a run from number `next` on."""

    owner: str
    id: str
    next: int


class Followed(msgspec.Struct, frozen=True):
    """The events for a follower, in order and without gaps."""

    chunks: tuple[EventChunk, ...]
    is_over: bool
    """Whether these are the last events."""


class ClaimedRun(msgspec.Struct, frozen=True):
    """An orphaned run that now belongs to the member that claimed it."""

    owner: str
    fence: Fence
    record: Record
    plan: bytes
    """What is needed to run it, written by the process that queued it."""
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
    """A background run. A restored run belongs to no member, so an unfinished one can be claimed."""

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


class KeyRow(Row, frozen=True, tag="key"):
    """An issued key; `facts` is an `IssuedKey` as JSON."""

    name: Id
    facts: bytes


AnyRow: TypeAlias = HolderRow | ItemRow | EventRow | RunRow | ValueRow | KeyRow


class StoreStats(msgspec.Struct, frozen=True):
    """Numbers for operators."""

    bytes: int = 0
    responses: int = 0
    conversations: int = 0
    runs: int = 0
    """Unfinished background runs."""
    members: int = 0
    turns: int = 0
    """Turns that the console keeps; `bytes` does not count them."""


class StoreFailed(ToolwireError):
    """The store cannot be read or written now; `reason` says why."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason

    @property
    def is_lasting(self) -> bool:
        """Whether the failure lasts until something is changed."""
        return self.reason not in ("full", "busy", "unreachable")

    @property
    def failure(self) -> Failure:
        message = f"The store of responses and conversations cannot be used now ({_SAID[self.reason]})."
        return Failure(503, "store_unavailable", message, retry_after=retry_after(5), retryable=True)


class Overtaken(StoreFailed):
    """Another process has taken over the run or lease. Nothing was written."""

    def __init__(self, guard: WriteGuard) -> None:
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
