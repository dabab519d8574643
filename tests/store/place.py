"""Where the contract of the store is tried out: several users of one store, called from tests that are not async.

Every engine is a `Place`. A test opens it as often as it likes, with bounds of its own, and calls it as if it were one
store; each call goes to one of its users, which may be other processes, at random.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from toolwire.memory.store import Member

DEADLINE = 120.0
DAY = 86_400.0
PLENTY = 1_000_000_000
LONG, BRIEF = 600.0, 0.05
"""Seconds that a lease lasts: longer than any test, and not long."""


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE)
        self.loop.close()


Call = tuple[str, tuple[Any, ...], dict[str, Any]] | Callable[[Any], Coroutine[Any, Any, Any]]


def call(name: str, *given: Any, **named: Any) -> Call:
    """A call for `at_once`."""
    return name, given, named


class Users:
    """Several users of one store. A call is made by one of them and returns when it is done."""

    def __init__(self, loop: Loop, stores: Sequence[Any]) -> None:
        self.stores = stores
        self._loop = loop
        self._random = random.Random(7)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def do(*given: Any, **named: Any) -> Any:
            return self._loop.run(_done(self._random.choice(self.stores), name, given, named))

        return do

    def at_once(self, *calls: Call) -> list[Any]:
        """Make all these calls together, each by the next user; an error is returned in place of a result.

        A function is given the user, and may make several calls one after the other.
        """

        async def every() -> list[Any]:
            users = [self.stores[place % len(self.stores)] for place in range(len(calls))]
            works = (
                each(user) if callable(each) else _done(user, *each) for user, each in zip(users, calls, strict=True)
            )
            return await asyncio.gather(*works, return_exceptions=True)

        return self._loop.run(every())

    def close(self) -> None:
        for store in self.stores:
            self._loop.run(store.close())


async def _done(store: Any, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    result = getattr(store, name)(*given, **named)
    if name == "dump":
        return [row async for row in result]
    return await result


class Place(Protocol):
    """A store that lasts for one test."""

    def open(self, *, max_age: float = DAY, max_size: int = PLENTY) -> Users:
        """The users of the store, with these bounds; called once. A lease of theirs outlasts every test."""
        ...

    def join_briefly(self, member: Member) -> None:
        """Let a member join whose heartbeat is overdue in a moment."""
        ...

    def shift(self, member: str, *, beat: float = 0.0, since: float = 0.0) -> None:
        """Move the latest beat of a member, and the first of those without a break, by so many seconds."""
        ...

    def other(self) -> Users:
        """Users of another store of the same kind, which is empty."""
        ...


def wait_until(condition: Callable[[], Any]) -> Any:
    """What a condition gives, as soon as it is true."""
    deadline = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.01)
    return found
