"""The front's side of a turn that is handed over: a thread of another process, read and written as one of our own.

Nothing is begun twice. A keeper that is known to be gone is not asked. Another says MINE before it sends anything to
the thread; if that does not come in time, the front moves the thread's lease on, after which the keeper cannot begin.
Only then is the history told anew.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec

from toolwire.backends.codex import Profile, read_turn, write_turn
from toolwire.core.backend import Ask, Dialogue, PendingTurn
from toolwire.core.errors import THREAD_GONE, Failure
from toolwire.memory.store import StoreFailed
from toolwire.memory.threads import KeptThreads, WaitingThread
from toolwire.upstream.codex import handover
from toolwire.upstream.codex.handover import Neighbours, Sent, Unreachable
from toolwire.upstream.codex.inbox import Inbox
from toolwire.upstream.reply import Broken, broken

ANSWER = 1.0
"""Seconds that a keeper has to say that it begins. Telling a history anew costs more than a short wait."""
LATE = 60.0
"""Seconds that it has if it may have begun already, and to take what is sent to it."""
NEVER = 86400.0
"""Seconds until the first piece of an answer whose deadline is kept here."""


class RemoteTurn(PendingTurn, frozen=True, kw_only=True):
    """A turn that waits in another process."""

    waiting: WaitingThread


def remote_turn(waiting: WaitingThread) -> RemoteTurn | None:
    turn = read_turn(waiting.turn)
    return RemoteTurn(turn.thread, turn.calls, turn.state, waiting=waiting) if turn is not None else None


class RemoteThread:
    """A thread of another process, as long as it serves a client of this one."""

    def __init__(
        self, waiting: WaitingThread, threads: KeptThreads, neighbours: Neighbours, profile: Profile, dialogue: Dialogue
    ) -> None:
        self._waiting = waiting
        self._threads = threads
        self._neighbours = neighbours
        self._silence = profile.patience + 4 * profile.silence + LATE  # its keeper asks after it more often
        self._turn = waiting.lease
        self._inbox = Inbox(b"")
        self._messages: list[Sent] = []
        self._talking: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[bool] = loop.create_future()
        self._stopped: asyncio.Future[None] = loop.create_future()
        self.headers: Mapping[str, str] = {}
        messages = [handover.sent(each) for each in dialogue.outbox]
        dialogue.outbox.clear()
        self._reading = loop.create_task(self._read(handover.Turn(waiting.lease, dialogue.model, messages)))

    async def open(self) -> None:
        """Wait until the keeper has begun. Raises `thread_gone` if it has not and cannot any more."""
        try:
            is_begun = await self._is_begun()
        except BaseException:
            self._hang_up()
            raise
        if not is_begun:
            self._hang_up()
            raise gone_elsewhere()

    async def _is_begun(self) -> bool:
        begun = self._begun
        await asyncio.wait((begun,), timeout=ANSWER)
        if begun.done():
            return begun.result()
        try:
            if await self._threads.begin(self._waiting.lease) is not None:
                return False  # when its keeper wakes it finds that it may not
        except StoreFailed:
            raise _unclear("and it cannot be seen whether it has begun the turn") from None
        # Somebody has begun the turn. If it is the keeper it will say so.
        await asyncio.wait((begun,), timeout=LATE)
        if not begun.done():
            raise _unclear("and may have begun the turn")
        return begun.result()

    # What its keeper says

    async def _read(self, turn: handover.Turn) -> None:
        reader = handover.MessageReader()
        try:
            async with aclosing(self._ask("turn", turn, first=NEVER, idle=self._silence)) as pieces:
                async for piece in pieces:
                    for kind, body in reader.feed(piece):
                        self._take(kind, body)
        except Unreachable:
            pass
        finally:
            self._end()

    def _take(self, kind: int, body: bytes) -> None:
        if kind == handover.LINES:
            self._inbox.put(body)
        elif kind == handover.MINE:
            self.headers = handover.headers_in(body)
            self._begun.set_result(True)
        elif kind == handover.GONE:
            self._begun.set_result(False)
        elif kind == handover.STOPPED:
            self._stopped.set_result(None)
        elif kind == handover.BROKEN:
            self._inbox.fail(Broken(handover.failure_in(body)))

    def _end(self) -> None:
        """Nothing more comes from the keeper."""
        if not self._begun.done():
            self._begun.set_result(False)  # nothing is sent to the thread before the keeper has said that it begins
        if not self._stopped.done():
            self._stopped.cancel()
        if self._inbox.fault is None:
            message = "The process that has the thread ended in the middle of the turn."
            self._inbox.fail(Broken(Failure(502, "backend_broke_off", message)))

    # For whoever serves a client

    def take(self) -> bytes:
        return self._inbox.take()

    async def arrived(self) -> bytes:
        return await self._inbox.arrived()

    @property
    def is_running(self) -> bool:
        return self._inbox.fault is None

    def ask(self, ask: Ask) -> None:
        self._send(ask)

    def write(self, line: bytes) -> None:
        self._send(line)

    def _send(self, message: Ask | bytes) -> None:
        self._messages.append(handover.sent(message))
        if self._talking is None:
            self._talking = asyncio.get_running_loop().create_task(self._talk())

    async def _talk(self) -> None:
        try:
            while self._messages:
                messages, self._messages = self._messages, []
                await self._tell("say", handover.Say(self._turn, messages))
        except Unreachable:
            self._hang_up()  # the thread waits in vain
        finally:
            self._talking = None

    def release(self, waiting: PendingTurn | None) -> None:
        """The turn is over for the client. The thread waits at its keeper again, or is left."""
        written = write_turn(waiting) if waiting is not None else None
        if written is None or self._inbox.fault is not None:
            self._hang_up()
        else:
            self._threads.promise(self._park(written))

    async def _park(self, waiting: bytes) -> None:
        try:
            if self._talking is not None:
                await asyncio.wait((self._talking,))
            await self._tell("stop", handover.Stop(self._turn))
            async with asyncio.timeout(LATE):
                await self._stopped
            unread = self._inbox.take()
            await self._tell("park", handover.Park(self._turn, waiting, unread))
        except (Unreachable, TimeoutError, Broken, asyncio.CancelledError):
            pass  # its keeper leaves it; whoever brings the results gets a new thread
        finally:
            self._hang_up()

    def _hang_up(self) -> None:
        """Close the stream; the keeper leaves a thread that it has not parked."""
        self._reading.cancel()

    async def _tell(self, verb: handover.Verb, payload: msgspec.Struct) -> None:
        async with aclosing(self._ask(verb, payload, first=LATE, idle=LATE)) as pieces:
            async for _ in pieces:
                pass

    def _ask(self, verb: handover.Verb, payload: msgspec.Struct, *, first: float, idle: float) -> AsyncGenerator[bytes]:
        name = handover.question(verb, self._waiting.backend)
        return self._neighbours.ask(self._waiting.process.socket, name, handover.pack(payload), first=first, idle=idle)


def gone_elsewhere() -> Broken:
    return broken(THREAD_GONE, "The process that had the thread of these calls does not have it any more.")


def _unclear(why: str) -> Broken:
    message = f"The process that has the thread of these calls does not answer, {why}."
    return Broken(Failure(504, "backend_timeout", message))
