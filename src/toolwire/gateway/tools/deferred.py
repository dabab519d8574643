"""A run that cannot begin yet: it waits for a task, and is silent until then."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolwire.assembly import Assembly
from toolwire.core.events import Event
from toolwire.core.notes import TurnStats
from toolwire.core.policies import Policies
from toolwire.turns.source import TurnSource


class DeferredRun:
    """A run that begins when a task is done. Its statistics exist from the start, for readers that ask before."""

    def __init__(self, awaited: "asyncio.Task[Any]", begin: Callable[[], TurnSource]) -> None:
        self._awaited = awaited  # not cancelled here: others wait for it too
        self._begin = begin
        self._run: TurnSource | None = None
        self.assembly = Assembly(Policies(), TurnStats(), None)
        self.finished = False

    @property
    def backend(self) -> str:
        """The name of the backend that is asked, once it is."""
        return self._run.backend if self._run is not None else ""

    @property
    def headers(self) -> Mapping[str, str]:
        """Those of the reply, once there is one."""
        return self._run.headers if self._run is not None else {}

    async def read(self, until: float) -> Sequence[Event]:
        """The next events, or none if `until` comes first. After the last ones `finished` is set."""
        if self.finished or not await is_done(self._awaited, until):
            return ()
        if self._run is None:
            self._run = self._begin()
            self.assembly.stats.mode = self._run.assembly.stats.mode
        events = await self._run.read(until)
        self.finished = self._run.finished
        return self._counted(events, self._run)

    def commit(self) -> Sequence[Event]:
        """The client has an answer: no new attempt is made from here on."""
        return self._counted(self._run.commit(), self._run) if self._run is not None else ()

    def close(self) -> None:
        """Stop at once."""
        self.finished = True
        if self._run is not None:
            self._run.close()

    async def finish(self) -> None:
        """Read the last bytes of a reply whose turn is over."""
        self.finished = True
        if self._run is not None:
            await self._run.finish()

    def _counted(self, events: Sequence[Event], run: TurnSource) -> Sequence[Event]:
        for event in events:
            self.assembly.stats.feed(event)
        if self.finished:
            take_notes(run, self.assembly.stats)
        return events


async def is_done(task: "asyncio.Task[Any]", until: float) -> bool:
    """Wait for a task; False if `until` came first."""
    if not task.done():
        seconds = None if until == float("inf") else max(0.0, until - asyncio.get_running_loop().time())
        await asyncio.wait((task,), timeout=seconds)
    return task.done()


def take_notes(run: TurnSource, stats: TurnStats) -> None:
    """Add the notes of a run to these statistics; a note that every turn of the model leaves is added once."""
    known = set(stats.notes)
    for note in run.assembly.stats.notes:
        if note not in known:
            stats.note(note)
