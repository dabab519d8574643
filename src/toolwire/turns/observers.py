"""The interface of observers: the log, metrics, the console and recordings.

    TurnObserver    sees every turn of an application: begin, enter, ask, end
    TurnTap         sees the bytes of one turn: the request, its attempts, the answer
    AttemptTap      sees one attempt: the request to the backend, and every read of its reply

An observer that needs the bytes of a turn returns a tap when the turn begins. Without taps every read and every write
costs an empty loop.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from toolwire.core.backend import Ask, Opening
from toolwire.core.errors import Failure
from toolwire.core.events import Event
from toolwire.core.notes import TurnStats
from toolwire.core.request import Request, RequestHead

HeaderList = Sequence[tuple[bytes, bytes]]


class TurnReport(msgspec.Struct):
    """The facts about a turn, named as in the log. A field is UNSET until it is known."""

    turn: str
    """The ids of the turn are derived from it."""
    request_id: str
    dialect: str
    key: str | UnsetType = UNSET
    """The name of the client's key."""
    replay_of: str | UnsetType = UNSET
    transport: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    output_mode: str | UnsetType = UNSET
    gateway_calls: int | UnsetType = UNSET
    gateway_calls_failed: int | UnsetType = UNSET
    background: bool | UnsetType = UNSET
    taken_over: bool | UnsetType = UNSET
    warm_up: bool | UnsetType = UNSET
    error: str | UnsetType = UNSET
    status: int | UnsetType = UNSET
    outcome: str | UnsetType = UNSET
    """How a background run ended."""
    backend: str | UnsetType = UNSET
    upstream_request_id: str | UnsetType = UNSET
    stream: bool | UnsetType = UNSET


class TurnOutcome(msgspec.Struct, frozen=True):
    """How a turn ended."""

    stats: TurnStats
    seconds: float
    owner: str
    failure: Failure | None
    """Why it failed, if it failed without events."""


class AttemptInfo(msgspec.Struct, frozen=True):
    """The facts about an attempt before it begins."""

    backend: str
    kind: str
    """The protocol of the backend's reply."""
    model: str
    """The model's name at the backend."""
    round: int = 0
    """The number of the model's turn: greater than 0 after gateway tools have run."""
    seed: str = ""
    request: Request = Request("", ())
    """The client's request."""
    client_key: str = ""
    key_variable: str = ""
    """The environment variable that holds the backend's own key."""


class AttemptTap(Protocol):
    """Sees one attempt."""

    def ask(self, opening: Opening, headers: Callable[[], Mapping[str, str]]) -> None:
        """The request is about to be sent; `headers` returns its headers."""
        ...

    def reply(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of the reply has arrived."""
        ...

    def read(self, data: bytes) -> None:
        """More bytes of the reply have arrived."""
        ...

    def send(self, messages: Sequence[Ask | bytes]) -> None:
        """Messages are sent to a worker while it replies."""
        ...

    def end(self) -> None:
        """The reply is complete."""
        ...

    def close(self) -> None:
        """The attempt is over, whether its reply is complete or not."""
        ...


class AttemptObserver(Protocol):
    """Sees every attempt."""

    def attempt(self, info: AttemptInfo) -> AttemptTap: ...


class TurnTap(AttemptObserver, Protocol):
    """Sees the bytes of one turn. It must not copy or inspect them, because it sees every read and every write."""

    def receive(self, body: bytes) -> None:
        """The body of the client's request has arrived."""
        ...

    def look(self, events: Sequence[Event]) -> None:
        """These events are about to be written. Deltas like the one before may be left out."""
        ...

    def send_head(self, headers: HeaderList) -> None:
        """The head of the answer is sent."""
        ...

    def write(self, pieces: Sequence[bytes]) -> None:
        """Bytes of the answer are sent."""
        ...


class TurnObserver:
    """Sees every turn of an application. A subclass overrides what it needs."""

    def begin(self, report: TurnReport, head: RequestHead, path: str) -> TurnTap | None:
        """The head of a request has arrived. Returns a tap for the bytes of the turn, or None."""

    def start(self) -> None:
        """A request is being served. A background turn counts in addition to the request that started it."""

    def stop(self) -> None:
        """A request is no longer being served."""

    def enter(self, report: TurnReport) -> None:
        """The client is authenticated."""

    def ask(self, report: TurnReport, request: Request) -> None:
        """The request is decoded, and is about to be sent to a backend."""

    def call(self, tool: str, outcome: str) -> None:
        """A gateway tool was run."""

    def crash(self, turn: str, error: Exception) -> None:
        """An unexpected exception: a fault of Toolwire."""

    def end(self, report: TurnReport, outcome: TurnOutcome) -> None:
        """The turn is over, and the report is complete."""


class ObservedTurn:
    """One turn and its observers. A request that is not a turn, such as one for the list of models, is not reported."""

    __slots__ = ("head", "is_reported", "observers", "report", "taps")

    def __init__(
        self,
        observers: Sequence[TurnObserver],
        report: TurnReport,
        head: RequestHead,
        taps: Sequence[TurnTap] = (),
        *,
        is_reported: bool = True,
    ) -> None:
        self.observers = observers
        self.report = report
        self.head = head
        self.taps = taps
        self.is_reported = is_reported

    @staticmethod
    def begin(observers: Sequence[TurnObserver], report: TurnReport, head: RequestHead, path: str) -> "ObservedTurn":
        """Begin the turn of a request with this head and path."""
        taps = [tap for each in observers if (tap := each.begin(report, head, path)) is not None]
        return ObservedTurn(observers, report, head, taps)

    def detach(self) -> "ObservedTurn":
        """Move the turn to another request, which will report it instead of this one."""
        other = ObservedTurn(self.observers, self.report, self.head, self.taps)
        self.taps, self.is_reported = (), False
        return other

    def enter(self, key: str) -> None:
        """The client is authenticated with the key of this name."""
        self.report.key = key
        if self.is_reported:
            for each in self.observers:
                each.enter(self.report)

    def end(self, outcome: TurnOutcome) -> None:
        """The turn is over, and the report is complete."""
        if self.is_reported:
            for each in self.observers:
                each.end(self.report, outcome)
