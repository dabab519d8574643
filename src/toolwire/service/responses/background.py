"""Runs that the application owns: they go on when the client is gone, and can be polled, followed and cancelled."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from toolwire.core import sse
from toolwire.core.errors import Failure, InternalError, ReplyTooLarge, ToolwireError
from toolwire.core.events import TurnFailed
from toolwire.core.notes import Tally
from toolwire.core.shares import Shares
from toolwire.dialects.responses.response import ResponseObject
from toolwire.runs.run import AnyRun, Plan, Run
from toolwire.service.delivery import upstream_request_id
from toolwire.service.exchange import Shared
from toolwire.service.flight import Claim
from toolwire.service.responses.journal import Journal
from toolwire.transport.alarm import Alarm

if TYPE_CHECKING:
    from toolwire.service.responses.exchange import ResponsesBound


_GOING_ON = {"status": "in_progress", "completed_at": None, "error": None, "incomplete_details": None, "usage": None}


class BackgroundRun:
    """One response being produced, whoever listens."""

    def __init__(
        self, shared: Shared, bound: "ResponsesBound", plan: Plan, facts: dict[str, Any], claim: Claim
    ) -> None:
        self._shared = shared
        self._bound = bound
        self._plan = plan
        self._facts = facts
        self._claim = claim
        self._began = time.perf_counter()
        self._cancelled = False
        self.is_lost = False
        """The turn is over and could not be stored: what is known of it is here."""
        self.journal = Journal()
        self.response: ResponseObject = bound.stream().response
        self.response.status = "queued"
        self.task: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self.response.id

    async def is_over(self) -> bool:
        """Whether the turn has ended and is kept. This waits for the second: nobody may hear of the first before."""
        if self.response.status in ("queued", "in_progress") or self.task is None:
            return False
        await asyncio.wait((self.task,))
        return True

    def snapshot(self) -> bytes:
        """The response as it is now. That it has ended is not said before it is kept."""
        now = self.response.encoded(self._bound.stream().output)
        if self.response.status in ("queued", "in_progress") or self.is_lost:
            return bytes(now)
        going_on: dict[str, object] = {**msgspec.json.decode(now, type=dict[str, msgspec.Raw]), **_GOING_ON}
        going_on.pop("required_action", None)
        return msgspec.json.encode(going_on)

    async def cancel(self) -> None:
        """Stop the run and wait until it is kept as cancelled."""
        self._cancelled = True
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait((self.task,))

    async def run(self) -> None:
        try:
            await self._serve()
        except Exception as error:  # noqa: BLE001 - not even the failure could be told
            self._shared.log.crashed(self.id, error)
            await self._keep(self._bound.stream().break_off())
        finally:
            run = self._bound.run
            if run is not None:
                await run.finish()
            self.journal.close()
            self._claim.release()
            self._report(run)

    async def _serve(self) -> None:
        """Produce the response, if only one that has failed."""
        task = asyncio.current_task()
        assert task is not None
        try:
            run = self._bound.run = Run(self._plan, self._shared.loop, Alarm(self._shared.ticker, task))
            self.journal.add(self._bound.stream().begin())
            await self._produce(run)
        except asyncio.CancelledError:
            if self._cancelled:
                await self._end(Failure(499, "cancelled", "The response was cancelled."))
            else:
                await self._end(Failure(503, "shutting_down", "The gateway is shutting down."))
        except ToolwireError as error:
            await self._end(error.failure)
        except Exception as error:  # noqa: BLE001 - nobody else is there to catch it
            self._shared.log.crashed(self.id, error)
            await self._end(InternalError().failure)

    async def _produce(self, run: Run) -> None:
        encoder = self._bound.stream()
        while not run.finished:
            events = await run.read(float("inf"))
            encoder.tally = run.assembly.tally
            pieces = [piece for event in events for piece in encoder.feed(event)]
            if run.finished:
                await self._keep(pieces)
                return
            before = self.journal.size
            self.journal.add(pieces)
            self._bound.check()
            self._claim.grow(self.journal.size - before)
            if self.journal.size > self._shared.max_reply:
                raise ReplyTooLarge(self._shared.max_reply)

    async def _end(self, failure: Failure) -> None:
        pieces = self._bound.stream().feed(TurnFailed(failure))
        if self._cancelled:
            self._bound.stream().cancel()
        await self._keep(pieces)
        if self._cancelled:
            self._bound.stream().cancel()

    async def _keep(self, pieces: Sequence[bytes]) -> None:
        """Keep the turn with its last events, then tell them."""
        last = await self._bound.keep_frames(self.journal, pieces)
        self.is_lost = last is not pieces
        self.journal.add(last)

    def _report(self, run: AnyRun | None) -> None:
        tally = run.assembly.tally if run is not None else Tally()
        if run is not None and (id := upstream_request_id(run.headers)):
            self._facts["upstream_request_id"] = id
        seconds = time.perf_counter() - self._began
        self._facts |= {"status": 200, "background": True, "outcome": self.response.status}
        self._shared.log.turn(self._facts, tally, seconds)
        self._shared.metrics.turn(self._facts, tally, seconds)


class LostRun:
    """What is left of a run that has ended and could not be stored."""

    def __init__(self, run: BackgroundRun) -> None:
        self.journal = run.journal
        self._response = run.snapshot()

    @property
    def size(self) -> int:
        return self.journal.size + len(self._response)

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

    def start(self, owner: str, run: BackgroundRun) -> None:
        self._runs[owner, run.id] = run
        run.task = asyncio.create_task(run.run())
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


async def journal_bytes(journal: Journal, after: int, keepalive: float) -> AsyncIterator[bytes]:
    """The bytes of a stream that holds the events after number `after`, and those to come."""
    sent = after + 1
    while True:
        frames = journal.since(sent)
        sent += len(frames)
        if frames:
            yield b"".join(frames)
        elif journal.closed:
            break
        else:
            try:
                async with asyncio.timeout(keepalive or None):
                    await journal.more()
            except TimeoutError:
                yield sse.write_comment(b"keepalive")
    yield journal.comment + sse.DONE
