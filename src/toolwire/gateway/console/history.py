"""Recorded turns in the store, so that they survive a restart and every machine of a fleet shows all of them.

Turns are written in the background, after they have ended. The first process of each machine adds those of others to
its ring, without content. Content is read when it is needed, and held for a while.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from toolwire.gateway.console.http import run_in_thread
from toolwire.gateway.console.ring import RecordedTurn, Ring
from toolwire.gateway.console.rows import CONTENT, TurnRow
from toolwire.gateway.log import Log
from toolwire.memory.sql.store import Store
from toolwire.memory.store import KeptTurn, StoreFailed, TurnBounds

INTERVAL = 1.0
"""Seconds between two rounds of writing and reading."""
MAX_WAITING = 4096
"""Maximum number of turns that wait to be written; the ring bounds their bytes."""
MAX_BATCH, MAX_BATCH_SIZE = 64, 256 * 1024
"""Maximum number of turns in one write, and the bytes after which it is sent."""
LAST_WRITE_TIMEOUT = 5.0
"""Seconds for writing what is left when the process ends."""
MAX_LISTED = 20_000
"""Maximum number of turns that are listed at once."""
OVERLAP = 256
"""Number of turns that are read again, because turns are not always committed in the order of their numbers."""
MAX_LOADED_SIZE = 16 * 1024 * 1024
"""Maximum bytes of content that was read from the store and is held."""

if TYPE_CHECKING:
    from toolwire.gateway.console.recorder import TurnRecorder

_decode = msgspec.msgpack.Decoder(TurnRow).decode


class TurnHistory:
    """Writes the turns of one process, and reads those of all."""

    def __init__(self, store: Store, bounds: TurnBounds, log: Log, count_dropped: Callable[[int], None]) -> None:
        self._store = store
        self._bounds = bounds
        self._log = log
        self._count_dropped = count_dropped
        self._waiting: deque[RecordedTurn] = deque()
        self._loaded: deque[tuple[RecordedTurn, int]] = deque()
        self._loaded_size = 0
        self._seen = 0  # the number of the latest turn that was listed

    def add(self, turns: Sequence[RecordedTurn]) -> None:
        """Write these turns later; those that find no room are dropped."""
        room = MAX_WAITING - len(self._waiting)
        self._waiting += turns[:room]
        if len(turns) > room:
            self._count_dropped(len(turns) - room)

    @asynccontextmanager
    async def keep(self, recorder: "TurnRecorder", *, lists: bool) -> AsyncGenerator[None]:
        """Write the turns of a recorder, and with `lists` list those of others. At the end, write what is left."""
        task = asyncio.get_running_loop().create_task(self._run(recorder, lists=lists))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))
            with suppress(StoreFailed, TimeoutError):
                async with asyncio.timeout(LAST_WRITE_TIMEOUT):
                    await self.write(recorder)

    async def _run(self, recorder: "TurnRecorder", *, lists: bool) -> None:
        while True:
            try:
                await self.write(recorder)
                if lists:
                    await self.list_new(recorder.ring)
            except StoreFailed:
                pass  # reported by the store
            except Exception as error:  # noqa: BLE001 - the next round may succeed
                self._log.crash("console", error)
            await asyncio.sleep(INTERVAL)

    async def write(self, recorder: "TurnRecorder") -> None:
        """Write all finished turns. Those that the ring has dropped meanwhile are lost, as is a batch that fails."""
        len(recorder.ring)  # makes the rows of finished turns
        while self._waiting:
            batch: list[KeptTurn] = []
            size = 0
            while self._waiting and len(batch) < MAX_BATCH and size < MAX_BATCH_SIZE:
                turn = self._waiting.popleft()
                await recorder.prepare(turn)
                if turn.row.kept in CONTENT and not turn.packed:
                    self._count_dropped(1)
                    continue
                batch.append(KeptTurn(turn.row.id, turn.owner, msgspec.msgpack.encode(turn.row), turn.packed))
                size += len(turn.packed) + turn.row.size
            try:
                await self._store.put_turns(batch)
            except StoreFailed:
                self._count_dropped(len(batch))
                raise

    async def list_new(self, ring: Ring) -> None:
        """List the turns that were written since the last time."""
        found = await self._store.recent_turns(self._bounds, MAX_LISTED, max(0, self._seen - OVERLAP))

        def read() -> list[RecordedTurn]:
            turns: list[RecordedTurn] = []
            for kept, _ in reversed(found):
                with suppress(msgspec.DecodeError):  # written by another version
                    row = _decode(kept.facts)
                    row.pinned = False
                    turns.append(RecordedTurn(row, kept.owner, is_stored=True))
            return turns

        turns = await run_in_thread(read)
        self._seen = max((number for _, number in found), default=self._seen)
        for start in range(0, len(turns), MAX_BATCH):
            ring.add(turn for turn in turns[start : start + MAX_BATCH] if ring.get(turn.row.id) is None)
            await asyncio.sleep(0)

    async def load(self, turn: RecordedTurn) -> None:
        """Read the content of a stored turn. Without it the turn has only metadata."""
        try:
            content = await self._store.turn_content(turn.owner, turn.row.id)
        except StoreFailed:
            return
        if content is None:  # expired
            turn.is_stored, turn.row.kept = False, "metadata"
            return
        turn.packed = content
        self._loaded.append((turn, len(content)))
        self._loaded_size += len(content)
        while self._loaded_size > MAX_LOADED_SIZE and len(self._loaded) > 1:
            old, size = self._loaded.popleft()
            self._loaded_size -= size
            old.packed = b""
