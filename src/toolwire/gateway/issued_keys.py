"""The issued keys of the store, as this process knows them.

A process holds all keys in memory, and reads what has changed several times per second. A request is decided with keys
that were read less than `MAX_AGE` ago, so a revoked key is refused within that time by every process. A request that
comes later than that waits for the keys; if they cannot be read, it is refused.
"""

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable
from contextlib import suppress

from starlette.types import ASGIApp, Receive, Scope, Send

from toolwire.core.errors import BadRequest, Failure
from toolwire.memory.sql.store import Store
from toolwire.memory.store import IssuedKey, StoreFailed

REFRESH_INTERVAL = 0.4
"""Seconds between two reads."""
MAX_AGE = 0.9
"""Maximum seconds since the start of the read whose keys decide a request."""
READ_TIMEOUT = 2.0
"""Seconds after which a read has failed."""

Stop = Callable[[Failure], None]
"""Ends a turn with a failure."""


class Unauthorized(BadRequest):
    """The key is missing, unknown, revoked or expired."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_api_key", status=401)

    @property
    def failure(self) -> Failure:
        return Failure(self.status, self.code, self.message, "authentication_error")


def hash_secret(secret: bytes) -> bytes:
    """The form in which the secret of a key is stored. Secrets are long and random, so one round is enough."""
    return hashlib.sha256(secret).digest()


class IssuedKeys:
    """Finds keys, and stops the turns of those that are revoked or expire."""

    def __init__(
        self,
        store: Store,
        steady: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._steady = steady
        self._wall = wall
        self._by_name: dict[str, IssuedKey] = {}
        self._by_digest: dict[bytes, IssuedKey] = {}
        self._last = 0  # the number of the last change that was read
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._turns: dict[str, set[Stop]] = {}

    def find(self, secret: bytes) -> IssuedKey | None:
        """The key with this secret.

        Raises `Unauthorized` if it is revoked or expired, and `StoreFailed` if the keys were not read lately.
        """
        digest = hash_secret(secret)
        key = self._by_digest.get(digest)
        if not self._is_fresh:
            raise StoreFailed("unreachable", "the issued keys could not be read")
        if key is None or not hmac.compare_digest(digest, key.digest):
            return None
        self._check(key)
        return key

    def find_by_name(self, name: str) -> IssuedKey | None:
        """The key of this name, for a turn that it began earlier. Raises `Unauthorized` as `find` does."""
        key = self._by_name.get(name)
        if key is not None:
            self._check(key)
        return key

    def find_team(self, name: str) -> str:
        """The team of the key of this name; empty if it has none."""
        key = self._by_name.get(name)
        return key.team if key is not None else ""

    def _check(self, key: IssuedKey) -> None:
        if not key.is_valid(self._wall()):
            raise Unauthorized(f"The key `{key.name}` {'was revoked' if key.revoked else 'has expired'}.")

    @property
    def _is_fresh(self) -> bool:
        return self._steady() - self._read_at < MAX_AGE

    # Turns

    def watch(self, name: str, stop: Stop) -> Callable[[], None]:
        """Call `stop` when the key of this name is no longer valid, until the returned function is called."""
        turns = self._turns.setdefault(name, set())
        turns.add(stop)

        def leave() -> None:
            turns.discard(stop)
            if not turns and self._turns.get(name) is turns:
                del self._turns[name]

        return leave

    def stop_turns(self) -> None:
        """Stop the turns whose keys are no longer valid."""
        for name in tuple(self._turns):
            try:
                self.find_by_name(name)
            except Unauthorized as error:
                for stop in self._turns.pop(name):
                    stop(error.failure)

    # Reading

    def admit(self, app: ASGIApp) -> ASGIApp:
        """An application whose requests find keys that were read lately, unless the store fails."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if not self._is_fresh:
                with suppress(StoreFailed):
                    await self.refresh()
            await app(scope, receive, send)

        return serve

    async def keep_fresh(self) -> None:
        """Read what changes, forever."""
        while True:
            with suppress(StoreFailed):
                await self.refresh()
            self.stop_turns()
            await asyncio.sleep(REFRESH_INTERVAL)

    async def refresh(self) -> None:
        """Read the keys that changed; callers that come meanwhile share the read. Raises `StoreFailed`."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(self._end_read)
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                await asyncio.shield(self._reading)
        except TimeoutError:
            raise StoreFailed("unreachable", "reading the issued keys took too long") from None

    def _end_read(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # retrieved, in case that no caller waits any longer

    async def _read(self) -> None:
        began = self._steady()
        while True:
            changes = await self._store.list_changed_keys(self._last)
            if changes.latest < self._last:  # another store is in the place of the one that was read
                self._by_name, self._by_digest, self._last = {}, {}, 0
                continue
            if not changes.keys:
                break
            for key in changes.keys:
                if (replaced := self._by_name.get(key.name)) is not None:
                    self._by_digest.pop(replaced.digest, None)
                self._by_name[key.name] = self._by_digest[key.digest] = key
            self._last = changes.last
            if self._last == changes.latest:
                break
        self._read_at = began
