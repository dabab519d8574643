"""How one piece of code runs on both engines.

An operation is an async function of a transaction. On PostgreSQL it is awaited as usual. On SQLite it runs from
beginning to end in the engine's own thread: a statement there returns at once, so the coroutine never suspends and is
driven by a single `send`.

The decorators turn an operation into a method of the store, and say what it needs:

- `reading`: one query, which sees what is committed;
- `writing`: one statement on PostgreSQL, which commits by itself. It is sent again if its connection is lost, so it
  must be idempotent;
- `urgent`: the same on a connection of its own, for heartbeats and events: it waits for no other statement;
- `transaction`: several statements, all or none. It is run again only if it is known not to have been committed.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from types import CoroutineType
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, get_args

from toolwire.memory.store import Reason, StoreFailed

Row: TypeAlias = Sequence[Any]
Side: TypeAlias = Literal["write", "read"]
Need: TypeAlias = Literal["reading", "writing", "urgent", "transaction"]
P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="SqlStore")

NO_MAX_AGE = 100 * 365.0 * 86_400
"""Seconds for which rows are kept in a store without a maximum age."""


class Transaction(Protocol):
    """Runs statements, given by name or as text, with their values by name. Unused values are ignored."""

    async def fetch(self, statement: str, /, **values: object) -> Sequence[Row]:
        """Run a statement; returns its rows."""
        ...

    async def fetch_one(self, statement: str, /, **values: object) -> Row | None:
        """Run a statement; returns its first row, if it has one."""
        ...

    async def execute_many(self, statement: str, rows: Sequence[Mapping[str, object]], /) -> None:
        """Run a statement once for each row of values."""
        ...


class SqlStore(ABC):
    """What operations need from an engine.

    `max_age` is in seconds and `max_size` in bytes, each 0 for no bound; `lease` is the seconds for which a member
    lives without a heartbeat.
    """

    def __init__(self, max_age: float, max_size: int, lease: float) -> None:
        self._max_age = max_age
        self._max_size = max_size
        self._lease = lease
        self._unconfirmed: dict[str, int] = {}  # epochs of claimed runs that were not returned yet, by id
        self._claiming = asyncio.Lock()
        self._resting_until = 0.0
        self._faults: dict[Side, Reason] = {}
        self.tightened: list[str] = []
        """Files that other users could access until the store was opened."""
        self.watch: Callable[[StoreFailed | None], None] = lambda _: None
        """Called with every failure, and with None when the store works again."""

    @property
    def fault(self) -> Reason | None:
        return next(iter(self._faults.values()), None)

    def _recover(self, side: Side) -> None:
        if self._faults.pop(side, None) is not None and not self._faults:
            self.watch(None)

    def _report(self, side: Side, failed: StoreFailed) -> StoreFailed:
        """Record a failure; returns it."""
        if failed.reason != "overtaken":  # not a fault of the store
            self._faults[side] = failed.reason
            self.watch(failed)
        return failed

    @abstractmethod
    async def run(self, need: Need, operation: Callable[..., Coroutine[Any, Any, T]], *args: Any, **named: Any) -> T:
        """Run an operation: call it with this store, a transaction, and these arguments."""

    @abstractmethod
    def write_later(self, operation: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Write something in the background. A failure is reported to `watch`."""

    @abstractmethod
    def key(self, id: str) -> str:
        """The form of an id in the tables."""

    @property
    def age_limit(self) -> float:
        """Seconds after which an unused row is no longer visible."""
        return self._max_age or NO_MAX_AGE


_Operation: TypeAlias = Callable[Concatenate[S, Any, P], Coroutine[Any, Any, T]]
_Method: TypeAlias = "Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]"


class _Decorator(Protocol):
    def __call__(self, operation: _Operation[S, P, T]) -> "_Method[S, P, T]": ...


def _make_decorator(need: Need) -> _Decorator:
    def decorate(operation: _Operation[S, P, T]) -> "_Method[S, P, T]":
        @wraps(operation)
        async def call(self: S, *args: P.args, **named: P.kwargs) -> T:
            return await self.run(need, operation, *args, **named)

        return call

    return decorate


reading, writing, urgent, transaction = map(_make_decorator, get_args(Need))
