"""A run that cannot begin yet: it waits for something, and is silent until then."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolwire.assembly import Assembly
from toolwire.core.events import Event
from toolwire.core.notes import Tally
from toolwire.core.policies import Policies
from toolwire.runs.run import AnyRun


class LateRun:
    """A run that begins when a task is done. Its tally is there from the first, for whoever asks before."""

    def __init__(self, awaited: "asyncio.Task[Any]", begin: Callable[[], AnyRun]) -> None:
        self._awaited = awaited  # which is not ours: others wait for it too
        self._begin = begin
        self._run: AnyRun | None = None
        self.assembly = Assembly(Policies(), Tally(), None)
        self.finished = False

    @property
    def headers(self) -> Mapping[str, str]:
        return self._run.headers if self._run is not None else {}

    async def read(self, until: float) -> Sequence[Event]:
        """The next events, or none if `until` comes first. After the last ones `finished` is set."""
        if self.finished or not await is_done(self._awaited, until):
            return ()
        if self._run is None:
            self._run = self._begin()
            self.assembly.tally.mode = self._run.assembly.tally.mode
        events = await self._run.read(until)
        self.finished = self._run.finished
        return self._counted(events, self._run)

    def commit(self) -> Sequence[Event]:
        return self._counted(self._run.commit(), self._run) if self._run is not None else ()

    def close(self) -> None:
        self.finished = True
        if self._run is not None:
            self._run.close()

    async def finish(self) -> None:
        self.finished = True
        if self._run is not None:
            await self._run.finish()

    def _counted(self, events: Sequence[Event], run: AnyRun) -> Sequence[Event]:
        for event in events:
            self.assembly.tally.feed(event)
        if self.finished:
            take_notes(run, self.assembly.tally)
        return events


async def is_done(task: "asyncio.Task[Any]", until: float) -> bool:
    """Wait for a task; False if `until` came first."""
    if not task.done():
        seconds = None if until == float("inf") else max(0.0, until - asyncio.get_running_loop().time())
        await asyncio.wait((task,), timeout=seconds)
    return task.done()


def take_notes(run: AnyRun, tally: Tally) -> None:
    """Take over what a run has noted. What is said in every round is said once."""
    known = set(tally.notes)
    for note in run.assembly.tally.notes:
        if note not in known:
            tally.note(note)
