"""Observers of turns: the log, metrics, the console, recordings. The path of a turn knows this interface only.

    TurnObserver    sees every turn of an application: begin, enter, ask, end
    TurnTap         sees the bytes of one turn: the request, its attempts, the answer
    AttemptTap      sees one attempt: what the backend is asked, and every read of its reply

An observer that is interested in the bytes of a turn returns a tap when the turn begins. A turn without taps costs an
empty loop for every read and every write.
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
    """What is known of a turn, under the names that the log uses. A field is UNSET until it is known."""

    turn: str
    """Ids of the turn are made from it."""
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
    """Why it failed, if its events do not say so."""


class AttemptInfo(msgspec.Struct, frozen=True):
    """What is known of an attempt before it begins."""

    backend: str
    kind: str
    """The protocol of the backend's reply."""
    model: str
    """The model's name at the backend."""
    round: int = 0
    """Which turn of the model this is, where the gateway runs tools between them."""
    seed: str = ""
    request: Request = Request("", ())
    """As the client sent it."""
    client_key: str = ""
    key_variable: str = ""
    """The environment variable that holds the backend's own key."""


class AttemptTap(Protocol):
    """Sees one attempt."""

    def ask(self, opening: Opening, headers: Callable[[], Mapping[str, str]]) -> None:
        """The backend is asked; `headers` returns those that are sent along."""
        ...

    def reply(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of the reply is here."""
        ...

    def read(self, data: bytes) -> None:
        """Some more bytes of the reply are here."""
        ...

    def send(self, messages: Sequence[Ask | bytes]) -> None:
        """Messages go to a worker while it replies."""
        ...

    def end(self) -> None:
        """The reply is whole."""
        ...

    def close(self) -> None:
        """The attempt is over, whether its reply is whole or not."""
        ...


class AttemptObserver(Protocol):
    """Sees every attempt."""

    def attempt(self, info: AttemptInfo) -> AttemptTap: ...


class TurnTap(AttemptObserver, Protocol):
    """Sees the bytes of one turn. It must neither copy nor inspect them: every read and every write passes here."""

    def receive(self, body: bytes) -> None:
        """The body of the client's request is here."""
        ...

    def look(self, events: Sequence[Event]) -> None:
        """These events are about to be written."""
        ...

    def send_head(self, headers: HeaderList) -> None:
        """The head of the answer leaves."""
        ...

    def write(self, pieces: Sequence[bytes]) -> None:
        """Some bytes of the answer leave."""
        ...


class TurnObserver:
    """Sees every turn of an application. A subclass overrides what it needs."""

    def begin(self, report: TurnReport, head: RequestHead, path: str) -> TurnTap | None:
        """The head of a request is here. Returns a tap for the bytes of the turn, or None."""

    def start(self) -> None:
        """A request is being served from now on; a background turn counts beside the request that started it."""

    def stop(self) -> None:
        """A request is no longer being served."""

    def enter(self, report: TurnReport) -> None:
        """The client is authenticated."""

    def ask(self, report: TurnReport, request: Request) -> None:
        """The request is decoded, and a backend is about to be asked."""

    def call(self, tool: str, outcome: str) -> None:
        """One of the gateway's own tools was run."""

    def crash(self, turn: str, error: Exception) -> None:
        """A fault of ours."""

    def end(self, report: TurnReport, outcome: TurnOutcome) -> None:
        """The turn is over, and the report is complete."""


class ObservedTurn:
    """One turn, as its observers see it. What is not a turn, such as the list of models, is served but not reported."""

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
        """Begin a turn whose request has this head and asks for this path."""
        taps = [tap for each in observers if (tap := each.begin(report, head, path)) is not None]
        return ObservedTurn(observers, report, head, taps)

    def detach(self) -> "ObservedTurn":
        """Hand the turn to another request, which reports it; this one has nothing to report from now on."""
        other = ObservedTurn(self.observers, self.report, self.head, self.taps)
        self.taps, self.is_reported = (), False
        return other

    def enter(self, key: str) -> None:
        """The client is authenticated, by the key of this name."""
        self.report.key = key
        if self.is_reported:
            for each in self.observers:
                each.enter(self.report)

    def end(self, outcome: TurnOutcome) -> None:
        """The turn is over, and its report complete."""
        if self.is_reported:
            for each in self.observers:
                each.end(self.report, outcome)
