"""Runs that the application owns: they go on when the client is gone, and can be polled, followed and cancelled."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from toolwire.core import sse
from toolwire.core.errors import Failure, InternalError, ToolwireError
from toolwire.core.events import TurnFailed
from toolwire.core.notes import Tally
from toolwire.dialects.responses.response import ResponseObject
from toolwire.runs.run import AnyRun, Plan, Run
from toolwire.service.delivery import upstream_request_id
from toolwire.service.exchange import Shared
from toolwire.service.responses.journal import Journal
from toolwire.transport.alarm import Alarm

if TYPE_CHECKING:
    from toolwire.service.responses.exchange import ResponsesBound


_GOING_ON = {"status": "in_progress", "completed_at": None, "error": None, "incomplete_details": None, "usage": None}


class BackgroundRun:
    """One response being produced, whoever listens."""

    def __init__(self, shared: Shared, bound: "ResponsesBound", plan: Plan, facts: dict[str, Any]) -> None:
        self._shared = shared
        self._bound = bound
        self._plan = plan
        self._facts = facts
        self._began = time.perf_counter()
        self._cancelled = False
        self.journal = Journal()
        self.response: ResponseObject = bound.stream().response
        self.response.status = "queued"
        self.task: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self.response.id

    async def is_over(self) -> bool:
        """Whether the turn has ended. Then this waits until it is kept: nobody may hear of it before."""
        if self.response.status in ("queued", "in_progress") or self.task is None:
            return False
        await asyncio.wait((self.task,))
        return True

    def snapshot(self) -> bytes:
        """The response as it is now. That it has ended is not said before it is kept."""
        now = self.response.encoded(self._bound.stream().output)
        if self.response.status in ("queued", "in_progress"):
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
                await self._bound.keep_frames(self.journal, pieces)
            self.journal.add(pieces)

    async def _end(self, failure: Failure) -> None:
        pieces = self._bound.stream().feed(TurnFailed(failure))
        if self._cancelled:
            self._bound.stream().cancel()
        await self._keep(pieces)

    async def _keep(self, pieces: Sequence[bytes]) -> None:
        """Keep the turn with its last events, then tell them."""
        await self._bound.keep_frames(self.journal, pieces)
        self.journal.add(pieces)

    def _report(self, run: AnyRun | None) -> None:
        tally = run.assembly.tally if run is not None else Tally()
        if run is not None and (id := upstream_request_id(run.headers)):
            self._facts["upstream_request_id"] = id
        seconds = time.perf_counter() - self._began
        self._facts |= {"status": 200, "background": True, "outcome": self.response.status}
        self._shared.log.turn(self._facts, tally, seconds)
        self._shared.metrics.turn(self._facts, tally, seconds)


class Background:
    """All background runs of this process."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], BackgroundRun] = {}

    def start(self, owner: str, run: BackgroundRun) -> None:
        key = (owner, run.id)
        self._runs[key] = run
        run.task = asyncio.create_task(run.run())
        run.task.add_done_callback(lambda _: self._runs.pop(key, None))

    def get(self, owner: str, id: str) -> BackgroundRun | None:
        return self._runs.get((owner, id))

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
        frames = journal.frames[sent:]
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
