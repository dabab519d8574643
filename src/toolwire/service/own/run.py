"""Runs in which the gateway's own tools are run, between two turns of the model.

A turn that calls tools of both is the client's: our results wait until the client brings its own.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from toolwire.agent.call import ToolCall
from toolwire.agent.registry import Context, Inherit, Registry
from toolwire.agent.repeats import Repeats
from toolwire.agent.router import heard
from toolwire.agent.runtime import Finished, Runtime
from toolwire.assembly import Assembly
from toolwire.core.errors import ReplyTooLarge
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Dialect,
    Event,
    Note,
    ReasoningDelta,
    ReasoningEnded,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.notes import Tally
from toolwire.core.policies import Policies
from toolwire.core.request import CallEntry, Entry, Message, ReasoningEntry, Request, ResultEntry, TextPart
from toolwire.runs.run import AnyRun, Run
from toolwire.service.own.apart import Apart
from toolwire.service.own.late import is_done, take_notes

Begin: TypeAlias = Callable[[Request], Run]
Keep: TypeAlias = Callable[[tuple[Entry, ...], Sequence[Entry], Sequence[ResultEntry]], None]
"""Takes a turn that the client must go on with: what happened before it, the turn, and our results."""
Outcome: TypeAlias = Literal["ok", "failed", "cancelled"]
Ran: TypeAlias = Callable[[str, Outcome], None]
"""Hears of every call of ours what became of it."""


class Joined(msgspec.Struct, frozen=True):
    """Our tools beside those of a request, and who hears of them. `dialect` is the client's."""

    registry: Registry
    names: Set[str]
    rounds: int
    dialect: Dialect
    keep: Keep
    ran: Ran
    inherit: Inherit
    max_reply: int
    """Bytes of the turns of one request that may be held for its next round."""


class _Turn:
    """What happened in one turn: its entries for the history, our calls under way, and whose calls were made."""

    def __init__(self, tools: Joined, repeats: Repeats) -> None:
        self._tools = tools
        repeats.next_turn()
        context = partial(_context, tools.inherit)
        self._runtime = Runtime(tools.registry, context, _nothing, self._count, judge=repeats.judged)
        self._under_way: dict[str, str] = {}  # names by the ids of calls
        self._entries: list[Entry] = []
        self._said: list[str] = []  # words that are not among them yet
        self.ours: list[CallEntry] = []
        self.theirs: list[CallEntry] = []
        self._call: CallStarted | None = None
        self._pieces: list[str] = []
        self.held = 0
        """Bytes, more or less, of its words, thoughts and arguments."""
        self._thought: dict[int, list[str]] = {}

    @property
    def entries(self) -> list[Entry]:
        if self._said:
            self._entries.append(Message("assistant", (TextPart("".join(self._said)),)))
            self._said = []
        return self._entries

    def hides(self, event: Event) -> bool:
        """Take the event in; whether it is our own affair."""
        if isinstance(event, CallStarted):
            self._call, self._pieces = event, []
            return self._is_ours(event)
        if isinstance(event, CallArgs):
            self._pieces.append(event.text)
            self.held += len(event.text)
            return self._call is not None and self._is_ours(self._call)
        if isinstance(event, CallEnded):
            return self._end_call(event)
        if isinstance(event, TextDelta):
            self._said.append(event.text)
            self.held += len(event.text)
        elif isinstance(event, ReasoningDelta):
            self.held += len(event.text)
            self._thought.setdefault(event.part, []).append(event.text)
        elif isinstance(event, ReasoningEnded):
            shown = tuple("".join(pieces) for _, pieces in sorted(self._thought.items()))
            self._thought = {}
            self.entries.append(ReasoningEntry(event.id, shown, (), event.seal, event.issuer, event.redacted))
        return False

    async def results(self) -> list[Finished]:
        """Our results, in the order of the calls."""
        return await self._runtime.results()

    def cancel(self) -> None:
        """Stop what runs. It is counted now: who stops us does not wait for it."""
        for name in self._under_way.values():
            self._tools.ran(name, "cancelled")
        self._under_way.clear()
        self._runtime.cancel()

    def _count(self, done: Finished) -> None:
        name = self._under_way.pop(done.call.call_id, None)
        if name is not None:
            self._tools.ran(name, "failed" if done.result.failed else "ok")

    def _is_ours(self, call: CallStarted) -> bool:
        return call.name in self._tools.names and not call.namespace

    def _end_call(self, event: CallEnded) -> bool:
        call, self._call = self._call, None
        if call is None:
            return False
        entry = CallEntry(call.id, call.name, "".join(self._pieces), call.kind, call.namespace, seal=call.seal)
        if not self._is_ours(call):
            self.entries.append(entry)
            self.theirs.append(entry)
            return False
        if not event.complete:
            return True
        self.entries.append(entry)
        self.ours.append(entry)
        self._under_way[entry.id] = entry.name
        self._runtime.start(heard(call, entry.arguments, self._tools.registry))
        return True


class OwnRun:
    """A run that goes on by itself while only our tools were called. To whoever reads it, it is one turn."""

    def __init__(self, tools: Joined, request: Request, begin: Begin) -> None:
        self._tools = tools
        self._apart = Apart(tools.dialect)
        self._request = request
        self._asked = len(request.entries)
        self._begin = begin
        self._run: AnyRun = begin(request)
        self._repeats = Repeats(tools.registry)
        self._turn = _Turn(tools, self._repeats)
        self._rounds = 1
        self._started = False
        self._held: list[Event] = []  # until there is something to show
        self._held_before = 0  # bytes of earlier rounds
        self._headers: Mapping[str, str] = {}
        self._used: Usage | None = None
        self._ending = TurnEnded()
        self._working: asyncio.Task[list[Finished]] | None = None
        self.assembly = Assembly(Policies(), Tally(self._run.assembly.tally.mode), None)
        self.finished = False

    @property
    def headers(self) -> Mapping[str, str]:
        return self._run.headers or self._headers

    async def read(self, until: float) -> Sequence[Event]:
        """The next events, or none if `until` comes first. After the last ones `finished` is set."""
        while not self.finished:
            if self._working is not None:
                if not await is_done(self._working, until):
                    return ()
                events = self._go_on(self._working.result())
            else:
                events = await self._run.read(until)
                if not events and not self._run.finished:
                    return ()
                events = [passed for event in events for passed in self._pass(event)]
            if events:
                return self._seen(events)
        return ()

    def commit(self) -> Sequence[Event]:
        return self._seen([passed for event in self._run.commit() for passed in self._pass(event)])

    def close(self) -> None:
        """Stop at once, our tools too."""
        self._stop_tools()
        self._run.close()

    async def finish(self) -> None:
        self._stop_tools()
        await self._run.finish()

    def _stop_tools(self) -> None:
        self.finished = True
        self._turn.cancel()
        if self._working is not None:
            self._working.cancel()

    def _seen(self, events: Sequence[Event]) -> Sequence[Event]:
        held, self._held = self._held, []
        events = [*held, *events]
        for event in events:
            self.assembly.tally.feed(event)
        return [event for event in events if not isinstance(event, Note)]

    def _pass(self, event: Event) -> Sequence[Event]:
        """What the reader sees of an event."""
        if isinstance(event, TurnStarted):
            if not self._started:
                self._held.append(event)
            self._started = True
            return ()
        if isinstance(event, Usage):
            self._used = event if self._used is None else self._used.plus(event)
            return ()
        if isinstance(event, TurnFailed):
            return self._over(event)
        if isinstance(event, TurnEnded):
            self._ending = event
            is_cut = event.reason in ("length", "filter") and not self._turn.theirs
            if is_cut or not self._turn.ours:
                self._leave_to_the_client(())
                return self._over(event)
            self._headers = self._run.headers
            self._working = asyncio.get_running_loop().create_task(self._work())
            return ()
        is_hidden = self._turn.hides(event)
        if self._held_before + self._turn.held > self._tools.max_reply:
            raise ReplyTooLarge(self._tools.max_reply)
        return () if is_hidden else self._apart.feed(event)

    async def _work(self) -> list[Finished]:
        """Wait for our tools, and meanwhile read the reply's last bytes, so that its connection can be used again."""
        await self._run.finish()
        return await self._turn.results()

    def _go_on(self, results: list[Finished]) -> Sequence[Event]:
        """Our tools are done: ask again, or leave the rest to the client."""
        self._working = None
        turn = self._turn
        answers = tuple(map(_answer, turn.ours, results))
        if turn.theirs:
            self._leave_to_the_client(answers)
            return self._over(self._ending)
        given_up = self._repeats.given_up
        if given_up is not None or self._rounds >= self._tools.rounds:
            note = Note("repeated_calls", given_up.name) if given_up is not None else Note("rounds_reached")
            # The model had not finished, and a client knows that of no other reason.
            return [note, *self._over(TurnEnded("length"))]
        take_notes(self._run, self.assembly.tally)
        self._rounds += 1
        self._apart.next_round()
        self._request = msgspec.structs.replace(
            self._request, entries=(*self._request.entries, *turn.entries, *answers), notes=()
        )
        self._held_before += turn.held
        self._turn = _Turn(self._tools, self._repeats)
        self._run = self._begin(self._request)
        return ()

    def _leave_to_the_client(self, answers: tuple[ResultEntry, ...]) -> None:
        earlier = self._request.entries[self._asked :]
        if self._turn.theirs and (answers or earlier):
            self._tools.keep(earlier, self._turn.entries, answers)

    def _over(self, event: TurnEnded | TurnFailed) -> Sequence[Event]:
        take_notes(self._run, self.assembly.tally)
        self.finished = True
        return (self._used, event) if self._used is not None and isinstance(event, TurnEnded) else (event,)


def _answer(call: CallEntry, done: Finished) -> ResultEntry:
    return ResultEntry(call.id, done.result.parts, call.kind, failed=done.result.failed)


def _context(inherit: Inherit, call: ToolCall) -> Context:
    return Context(Path.cwd(), _nothing, inherit=inherit)


def _nothing(_: object) -> None:
    pass
