"""Tools of the gateway's own: what the operator declares runs here, between two turns, and the client sees none of it
but the answer. The client's own tools still go to the client.

A turn that calls both is the client's: our results wait until the client brings its own.
"""

import asyncio
import importlib
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from toolwire.agent.call import ToolCall
from toolwire.agent.mcp import Server, Servers, read_config
from toolwire.agent.registry import Context, Registry, Tool, tool
from toolwire.agent.router import heard
from toolwire.agent.runtime import Finished, Runtime
from toolwire.assembly import Assembly
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
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
from toolwire.core.request import CallEntry, Entry, Message, OtherEntry, ReasoningEntry, Request, ResultEntry, TextPart
from toolwire.core.request import Tool as Declared
from toolwire.core.text import canonical, is_blank
from toolwire.dialects.responses import compaction
from toolwire.runs.run import AnyRun, Run
from toolwire.runs.settings import Own, SettingsError
from toolwire.runs.thoughts import Kept

ENTRY_POINTS = "toolwire.tools"
"""The group in which installed packages name tools for the gateway."""
KEPT = 1024
"""Calls of clients that our results wait for."""


class _Declared(Declared, frozen=True):
    """A tool of ours in a request."""


def _declared(tool: Tool) -> _Declared:
    return _Declared(tool.name, tool.description, tool.parameters, kind=tool.kind, format=tool.format)


class OwnTools:
    """The gateway's tools, and results that wait for those of clients."""

    def __init__(self, settings: Own, say: Callable[[str, str], None]) -> None:
        try:
            self.registry = Registry(map(found_tool, settings.tools))
        except ValueError as error:
            raise SettingsError(f"own.tools: {error}") from None
        self.rounds = settings.rounds
        self._servers = Servers(found_servers(settings.mcp), say) if settings.mcp else None
        self._waiting: Kept[_Key, _Beside] = Kept(KEPT)

    async def open(self) -> None:
        if self._servers is not None:
            await self._servers.__aenter__()
            self.registry.follow(self._servers.update)

    async def close(self) -> None:
        if self._servers is not None:
            await self._servers.__aexit__(None, None, None)

    def added_to(self, request: Request, owner: str) -> Request | None:
        """The request with our tools, and with results that waited; None if it wants no other tools than its own."""
        self.registry.refresh()
        theirs = {each.name for each in request.tools}
        ours = tuple(_declared(each) for each in self.registry if each.name not in theirs)
        choice = request.tool_choice
        if not ours or request.choices > 1 or (choice is not None and (choice.mode == "none" or choice.limited)):
            return None
        if _is_about_compaction(request):
            return None
        entries = self._with_waiting(request.entries, owner)
        return msgspec.structs.replace(request, tools=(*request.tools, *ours), entries=entries, dialect="")

    def run(self, owner: str, request: Request, begin: Callable[[Request], Run]) -> "OwnRun":
        return OwnRun(self, owner, request, begin)

    def keep(
        self, owner: str, earlier: tuple[Entry, ...], turn: Sequence[Entry], answers: Sequence[ResultEntry]
    ) -> None:
        """A turn that the client must go on with: our calls and results of it, and what happened before it."""
        ours = {answer.call_id: answer for answer in answers}
        theirs = [entry for entry in turn if isinstance(entry, CallEntry) and entry.id not in ours]
        for number, call in enumerate(theirs):
            start = turn.index(theirs[number - 1]) + 1 if number else 0
            place = turn.index(call)
            before = _calls(turn[start:place])
            after = _calls(turn[place + 1 :]) if call is theirs[-1] else ()
            results = tuple(ours[each.id] for each in (*before, *after))
            told = (*earlier, *turn[:place]) if earlier and not number else ()
            self._waiting.put(_key(owner, call), _Beside(before, after, results, told))

    def _with_waiting(self, entries: tuple[Entry, ...], owner: str) -> tuple[Entry, ...]:
        """The history with our calls and results beside the client's of the same turn."""
        if not self._waiting:
            return entries
        out: list[Entry] = []
        late: list[Entry] = []
        known: set[_Key] = set()
        for entry in entries:
            if late and _ends_a_turn(entry):
                out += late
                late = []
            key = _key(owner, entry) if isinstance(entry, CallEntry) else None
            kept = self._waiting.get(key) if key is not None and key not in known else None
            if key is None or kept is None:
                out.append(entry)
                continue
            known.add(key)
            if not _told_again(kept.told, out):
                out += kept.before
            out += (entry, *kept.after)
            late += kept.results
        return (*out, *late)


class _Beside(msgspec.Struct, frozen=True):
    """Our calls around one of the client's, and their results."""

    before: tuple[CallEntry, ...]
    after: tuple[CallEntry, ...]
    results: tuple[ResultEntry, ...]
    told: tuple[Entry, ...]
    """All that happened before the client's call, if there was an earlier round."""


def _calls(entries: Sequence[Entry]) -> tuple[CallEntry, ...]:
    return tuple(entry for entry in entries if isinstance(entry, CallEntry))


def _told_again(told: tuple[Entry, ...], out: list[Entry]) -> bool:
    """Put what really happened in place of what the client saw of it. Not if the client has other words for it."""
    start = len(out)
    while start and not isinstance(out[start - 1], CallEntry | OtherEntry) and not _ends_a_turn(out[start - 1]):
        start -= 1
    if not told or _words(out[start:]) != _words(told):
        return False
    out[start:] = told
    return True


def _words(entries: Sequence[Entry]) -> list[str]:
    """What the model said."""
    parts = [part for entry in entries if isinstance(entry, Message) for part in entry.parts]
    return "".join(part.text for part in parts if isinstance(part, TextPart)).split()


_Key: TypeAlias = tuple[str, str, str, bytes]


def _key(owner: str, call: CallEntry) -> _Key:
    """What a client's call is known by. Some servers count their calls, so an id alone is not enough."""
    return owner, call.id, call.name, b"{}" if is_blank(call.arguments) else canonical(call.arguments)


def _ends_a_turn(entry: Entry) -> bool:
    return isinstance(entry, ResultEntry) or (isinstance(entry, Message) and entry.role != "assistant")


def _is_about_compaction(request: Request) -> bool:
    """Whether the request asks for a compaction, or for the summary that we make one of."""
    last = request.entries[-1] if request.entries else None
    return compaction.is_asked(request) or (isinstance(last, Message) and last.parts == (TextPart(compaction.ASK),))


def found_tool(name: str) -> Tool:
    """A tool by the name of an entry point, or as `module:object`. A plain function is made into one."""
    try:
        if ":" in name:
            module, _, path = name.partition(":")
            found: Any = importlib.import_module(module)
            for step in path.split("."):
                found = getattr(found, step)
        else:
            [point] = importlib.metadata.entry_points(group=ENTRY_POINTS, name=name)
            found = point.load()
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise SettingsError(f"own.tools: {name!r} cannot be found: {error}") from None
    try:
        return found if hasattr(found, "run") else tool(found)
    except (TypeError, AttributeError, NameError) as error:
        raise SettingsError(f"own.tools: {name!r} is no tool: {error}") from None


def found_servers(path: str) -> tuple[Server, ...]:
    try:
        return read_config(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"own.mcp: {path}: {error}") from None


class _Turn:
    """What happened in one turn: its entries for the history, our calls under way, and whose calls were made."""

    def __init__(self, registry: Registry, names: Set[str]) -> None:
        self._registry = registry
        self._names = names
        self._runtime = Runtime(registry, _context, _nothing, _nothing)
        self.entries: list[Entry] = []
        self.ours: list[CallEntry] = []
        self.theirs: list[CallEntry] = []
        self._call: CallStarted | None = None
        self._pieces: list[str] = []
        self._thought: dict[int, list[str]] = {}

    def hides(self, event: Event) -> bool:
        """Take the event in; whether it is our own affair."""
        if isinstance(event, CallStarted):
            self._call, self._pieces = event, []
            return self._is_ours(event)
        if isinstance(event, CallArgs):
            self._pieces.append(event.text)
            return self._call is not None and self._is_ours(self._call)
        if isinstance(event, CallEnded):
            return self._end_call(event)
        if isinstance(event, TextDelta):
            self._say(event.text)
        elif isinstance(event, ReasoningDelta):
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
        self._runtime.cancel()

    def _is_ours(self, call: CallStarted) -> bool:
        return call.name in self._names and not call.namespace

    def _say(self, text: str) -> None:
        last = self.entries[-1] if self.entries else None
        if isinstance(last, Message):
            said = last.parts[0]
            assert isinstance(said, TextPart)
            self.entries[-1] = Message("assistant", (TextPart(said.text + text),))
        else:
            self.entries.append(Message("assistant", (TextPart(text),)))

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
        self._runtime.start(heard(call, entry.arguments, self._registry))
        return True


class OwnRun:
    """A run that goes on by itself while only our tools were called. To whoever reads it, it is one turn."""

    def __init__(self, own: OwnTools, owner: str, request: Request, begin: Callable[[Request], Run]) -> None:
        self._own = own
        self._owner = owner
        self._request = request
        self._asked = len(request.entries)
        self._begin = begin
        self._run: AnyRun = begin(request)
        self._names = {each.name for each in request.tools if isinstance(each, _Declared)}
        self._turn = _Turn(own.registry, self._names)
        self._rounds = 1
        self._started = False
        self._held: list[Event] = []  # until there is something to show
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
                if not await _is_done(self._working, until):
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
        return () if self._turn.hides(event) else (event,)

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
        if self._rounds >= self._own.rounds:
            return [Note("rounds_reached"), *self._over(TurnEnded())]
        self._take_notes()
        self._rounds += 1
        self._request = msgspec.structs.replace(
            self._request, entries=(*self._request.entries, *turn.entries, *answers), notes=(), tool_choice=None
        )
        self._turn = _Turn(self._own.registry, self._names)
        self._run = self._begin(self._request)
        return ()

    def _leave_to_the_client(self, answers: tuple[ResultEntry, ...]) -> None:
        earlier = self._request.entries[self._asked :]
        if self._turn.theirs and (answers or earlier):
            self._own.keep(self._owner, earlier, self._turn.entries, answers)

    def _over(self, event: TurnEnded | TurnFailed) -> Sequence[Event]:
        self._take_notes()
        self.finished = True
        return (self._used, event) if self._used is not None and isinstance(event, TurnEnded) else (event,)

    def _take_notes(self) -> None:
        """What was said about the request is said again in every round, and once is enough."""
        known = set(self.assembly.tally.notes)
        for note in self._run.assembly.tally.notes:
            if note not in known:
                self.assembly.tally.note(note)


async def _is_done(working: "asyncio.Task[list[Finished]]", until: float) -> bool:
    """Wait for our tools; False if `until` came first."""
    seconds = None if until == float("inf") else max(0.0, until - asyncio.get_running_loop().time())
    await asyncio.wait((working,), timeout=seconds)
    return working.done()


def _answer(call: CallEntry, done: Finished) -> ResultEntry:
    return ResultEntry(call.id, done.result.parts, call.kind, failed=done.result.failed)


def _context(call: ToolCall) -> Context:
    return Context(Path.cwd(), _nothing)


def _nothing(_: object) -> None:
    pass
