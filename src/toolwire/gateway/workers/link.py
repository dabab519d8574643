"""A worker's end of the pair: what it tells its supervisor, and what it hears.

Nothing that was counted is shown to anybody before the supervisor has it: a worker may be killed at any time, and what
was shown once must not become less. The system keeps what was written for the supervisor, also when the worker is gone.

One task writes, and finishes what it has begun: a supervisor that did not listen for a while finds whole lines.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from toolwire.gateway.metrics import Metrics
from toolwire.gateway.peers import PeerFailed, PeerGone, Peers, PeerServer
from toolwire.gateway.process import Unanswered
from toolwire.gateway.workers.counters import Snapshot, snapshot_of, text
from toolwire.gateway.workers.messages import (
    AllNumbers,
    Beat,
    Fleet,
    FromSupervisor,
    FromWorker,
    Hello,
    Lines,
    Numbers,
    NumbersWanted,
    TooLong,
    decode_from_supervisor,
    line_of,
)

BEAT = 1.0
"""Seconds between two signs of life."""
PATIENCE = 5.0
"""Seconds that a question for the numbers of all may take, and that of a peer for a report."""
MOST_UNSENT = 64
"""Messages that wait for a supervisor that does not listen."""
_REPORT = "report"


class _Unsent(NamedTuple):
    line: bytes
    sent: "asyncio.Future[None]"


class Link:
    """The other workers and the supervisor, as this worker knows them."""

    def __init__(self, channel: socket.socket, slot: int, folder: Path, incarnation: str, fleet: Fleet) -> None:
        channel.setblocking(False)
        self.slot = slot
        self.peers = Peers(folder, incarnation)
        self.server = PeerServer(folder, incarnation)
        self.server.handle(_REPORT, self._report_for_peer)
        self.metrics: Metrics | None = None
        self._channel = channel
        self._unsent: asyncio.Queue[_Unsent] = asyncio.Queue(MOST_UNSENT)
        self._fleet = fleet
        self._reported: Snapshot = []
        self._questions = count()
        self._asked: dict[int, asyncio.Future[Snapshot]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def count(self) -> int:
        return self._fleet.workers

    @property
    def ready(self) -> int:
        return self._fleet.ready

    @property
    def has_started(self) -> bool:
        """Whether all workers have been ready once."""
        return self._fleet.started

    async def open(self, hear: Callable[[FromSupervisor | None], None]) -> None:
        """Begin to give signs of life. `hear` gets what the supervisor says, and None when it is gone."""
        self._tasks = [asyncio.create_task(self._write())]
        await self.send(Hello(self.server.incarnation))
        await self.server.start()
        self._tasks += [asyncio.create_task(self._beat()), asyncio.create_task(self._listen(hear))]

    async def close(self) -> None:
        """Hand over the last numbers, and be gone."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._report()
        await self.server.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def send(self, message: FromWorker) -> None:
        """Tell the supervisor; returns when the system has it. An OSError says that nobody listens."""
        unsent = _Unsent(line_of(message), asyncio.get_running_loop().create_future())
        try:
            self._unsent.put_nowait(unsent)
        except asyncio.QueueFull:
            raise TimeoutError("the supervisor has not listened for long") from None
        await unsent.sent

    async def numbers(self) -> bytes:
        """The numbers of all workers: each hands over its own, then the supervisor is asked for the sum."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(self._report(), *map(self._have_reported, self.peers.others()))
        question = next(self._questions)
        answer = self._asked[question] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(PATIENCE):
                await self.send(NumbersWanted(question))
                return text(await answer)
        except (OSError, TimeoutError):
            raise Unanswered("The supervisor does not answer.") from None
        finally:
            del self._asked[question]

    async def _have_reported(self, incarnation: str) -> None:
        """Have a peer hand over its numbers. Those of one that does not answer are as it last told them."""
        with suppress(PeerGone, PeerFailed):
            await self.peers.ask_whole(incarnation, _REPORT, b"", 0, patience=PATIENCE / 2)

    async def _report_for_peer(self, payload: bytes) -> AsyncGenerator[bytes]:
        await self._report()
        return
        yield b""

    async def _report(self) -> None:
        if self.metrics is None:
            return
        snapshot = snapshot_of(self.metrics)
        if snapshot != self._reported:
            await self.send(Numbers(self.metrics.running, snapshot))
            self._reported = snapshot

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            unsent = await self._unsent.get()
            try:
                await loop.sock_sendall(self._channel, unsent.line)
            except OSError as error:  # it is gone
                if not unsent.sent.done():
                    unsent.sent.set_exception(error)
            else:
                if not unsent.sent.done():
                    unsent.sent.set_result(None)

    async def _beat(self) -> None:
        while True:
            try:
                await self.send(Beat(self.metrics.running if self.metrics is not None else 0))
                await self._report()
            except TimeoutError:
                pass  # the supervisor may listen again
            except OSError:
                return  # it is gone, and `_listen` hears of it
            await asyncio.sleep(BEAT)

    async def _listen(self, hear: Callable[[FromSupervisor | None], None]) -> None:
        loop, lines = asyncio.get_running_loop(), Lines()
        with suppress(OSError, TooLong):
            while data := await loop.sock_recv(self._channel, 65536):
                for line in lines.feed(data):
                    self._hear(decode_from_supervisor(line), hear)
        hear(None)

    def _hear(self, message: FromSupervisor, hear: Callable[[FromSupervisor | None], None]) -> None:
        if isinstance(message, Fleet):
            self._fleet = message
        if isinstance(message, AllNumbers):
            answer = self._asked.get(message.question)
            if answer is not None and not answer.done():
                answer.set_result(message.snapshot)
            return
        hear(message)
