"""Runs that the application owns: they go on when the client is gone, and can be polled, followed and cancelled."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from toolwire.core import sse
from toolwire.core.errors import Failure, ReplyTooLarge
from toolwire.core.events import TurnFailed
from toolwire.core.shares import Shares
from toolwire.gateway.answer import Answer
from toolwire.gateway.flight import Claim
from toolwire.gateway.http import slices
from toolwire.gateway.responses.answer import ResponsesAnswer
from toolwire.gateway.responses.event_log import EventLog, StoredEventLog
from toolwire.gateway.sinks import upstream_request_id
from toolwire.turns.source import TurnSource

_GOING_ON = {"status": "in_progress", "completed_at": None, "error": None, "incomplete_details": None, "usage": None}


class LogSink:
    """Takes a turn to an event log, whoever reads that."""

    def __init__(self, answer: ResponsesAnswer, claim: Claim, max_reply: int) -> None:
        self.answer = answer
        self._claim = claim
        self._max = max_reply
        self.log = EventLog()
        self.headers: list[tuple[bytes, bytes]] = []
        self.status = 200
        self.upstream_id = ""
        self.committed = True
        self._ended = False
        self.is_cancelled = False
        self.is_lost = False
        """The turn is over and could not be stored: what is known of it is here."""

    @property
    def facts(self) -> dict[str, Any]:
        """What the application's log says of it."""
        return {"status": self.status, "outcome": self.answer.response.status}

    async def plain(self, run: TurnSource, answer: Answer, hold: Callable[[int], None]) -> None:
        """The same as a stream: a reader may ask for either."""
        await self.stream(run, answer)

    async def stream(self, run: TurnSource, answer: Answer) -> None:
        """Write the turn's events into the log as they come."""
        self.log.add(self.answer.encoder(run).begin())
        while not run.finished:
            events = await run.read(float("inf"))
            self.upstream_id = self.upstream_id or upstream_request_id(run.headers)
            feed = self.answer.encoder(run).feed
            pieces = [piece for event in events for piece in feed(event)]
            if run.finished:
                await self._end_with(pieces)
                return
            before = self.log.size
            self.log.add(pieces)
            self.answer.check()
            self._claim.grow(self.log.size - before)
            if self.log.size > self._max:
                raise ReplyTooLarge(self._max)

    async def fail(self, failure: Failure, run: TurnSource | None) -> None:
        """End the response as failed, or as cancelled if that is why."""
        if self._ended:
            return
        if self.is_cancelled:
            failure = Failure(499, "cancelled", "The response was cancelled.")
        encoder = self.answer.encoder(run)
        pieces = encoder.feed(TurnFailed(failure))
        if self.is_cancelled:
            encoder.cancel()
        await self._end_with(pieces)
        if self.is_cancelled:
            encoder.cancel()

    async def give_up(self) -> None:
        """Not even the failure could be encoded."""
        await self._end_with(self.answer.encoder(None).break_off())

    def close(self) -> None:
        """Nothing more comes."""
        self.log.close()

    async def _end_with(self, pieces: Sequence[bytes]) -> None:
        """Keep the turn with its last events, then show them."""
        last = await self.answer.settle_log(self.log.chunks(pieces), pieces)
        self._ended = True
        self.is_lost = last is not pieces
        self.log.add(last)


class BackgroundRun:
    """One response being produced, whoever listens."""

    def __init__(self, sink: LogSink) -> None:
        self._sink = sink
        self.id = sink.answer.id
        self.log = sink.log
        self.task: asyncio.Task[None] | None = None

    @property
    def is_lost(self) -> bool:
        return self._sink.is_lost

    async def is_over(self) -> bool:
        """Whether the turn has ended and is kept. This waits for the second: nobody may hear of the first before."""
        if self._sink.answer.response.status in ("queued", "in_progress") or self.task is None:
            return False
        await asyncio.wait((self.task,))
        return True

    def snapshot(self) -> bytes:
        """The response as it is now. That it has ended is not said before it is kept."""
        response = self._sink.answer.response
        now = response.encoded(self._sink.answer.output)
        if response.status in ("queued", "in_progress") or self.is_lost:
            return bytes(now)
        going_on: dict[str, object] = {**msgspec.json.decode(now, type=dict[str, msgspec.Raw]), **_GOING_ON}
        going_on.pop("required_action", None)
        return msgspec.json.encode(going_on)

    async def run(self, exchange: Coroutine[Any, Any, None]) -> None:
        try:
            await exchange
        finally:
            self._sink.close()

    async def cancel(self) -> None:
        """Stop the run and wait until it is kept as cancelled."""
        self._sink.is_cancelled = True
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait((self.task,))


class LostRun:
    """What is left of a run that has ended and could not be stored."""

    def __init__(self, run: BackgroundRun) -> None:
        self.log = run.log
        self._response = run.snapshot()

    @property
    def size(self) -> int:
        return self.log.size + len(self._response)

    async def is_over(self) -> bool:
        return False  # nothing of it is in the store

    def snapshot(self) -> bytes:
        return self._response

    async def cancel(self) -> None:
        pass


class Background:
    """All background runs of this process; those that could not be stored in at most so many bytes."""

    def __init__(self, most_lost: int) -> None:
        self._runs: dict[tuple[str, str], BackgroundRun] = {}
        self._lost: Shares[tuple[str, str], LostRun] = Shares(most_lost)

    def start(self, owner: str, run: BackgroundRun, exchange: Coroutine[Any, Any, None]) -> None:
        """Begin a run, whose exchange ends it whatever happens."""
        self._runs[owner, run.id] = run
        run.task = asyncio.create_task(run.run(exchange))
        run.task.add_done_callback(lambda _: self._end(owner, run))

    def _end(self, owner: str, run: BackgroundRun) -> None:
        self._runs.pop((owner, run.id), None)
        if run.is_lost:
            lost = LostRun(run)
            self._lost.put(owner, (owner, run.id), lost, lost.size)

    def get(self, owner: str, id: str) -> BackgroundRun | LostRun | None:
        return self._runs.get((owner, id)) or self._lost.get((owner, id))

    def forget(self, owner: str, id: str) -> None:
        self._lost.pop((owner, id))

    async def close(self, patience: float) -> None:
        """Let the runs end by themselves for a while, then stop them."""
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=patience)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)


async def event_log_bytes(log: EventLog | StoredEventLog, after: int, keepalive: float) -> AsyncIterator[bytes]:
    """The bytes of a stream that holds the events after number `after`, and those to come."""
    sent = after + 1
    while True:
        frames = await log.since(sent)
        sent += len(frames)
        for piece in slices(frames):
            yield piece
        if frames:
            continue
        if log.closed:
            break
        else:
            try:
                async with asyncio.timeout(keepalive or None):
                    await log.more()
            except TimeoutError:
                yield sse.write_comment(b"keepalive")
    yield log.comment + sse.DONE
