"""Runs of several model turns, between which the gateway runs its own tools and the model's searches for tools.

To its reader such a run is one turn. A model turn that also calls a tool of the client ends the run: the gateway's
results are kept until the client sends its own.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from toolwire.assembly import Assembly
from toolwire.config.settings import Settings, bytes_of
from toolwire.core.errors import ReplyTooLarge, ToolwireError
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    MessageEnded,
    Note,
    ReasoningDelta,
    ReasoningEnded,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.notes import TurnStats
from toolwire.core.policies import Policies
from toolwire.core.raw import NULL, arguments_text, as_object
from toolwire.core.request import CallEntry, Entry, Message, ReasoningEntry, Request, ResultEntry, TextPart
from toolwire.core.text import count_bytes
from toolwire.gateway.tools.search import Search
from toolwire.turns.attempt import Confirm
from toolwire.turns.source import Listener, TurnSource
from toolwire.turns.tools.call import ToolCall
from toolwire.turns.tools.calls import CallHooks, Finished, TurnCalls
from toolwire.turns.tools.loop import Limits, ToolLoop
from toolwire.turns.tools.registry import Context, Inherit, Registry, Tool, tool_call_from

Begin: TypeAlias = Callable[[Request], TurnSource]
"""Starts one turn of the model for a request."""
Keep: TypeAlias = Callable[[tuple[Entry, ...], Sequence[Entry], Sequence[ResultEntry]], None]
"""Stores a turn that the client must continue: the entries before it, its own entries, and the gateway's results."""
Outcome: TypeAlias = Literal["ok", "failed", "cancelled"]
OnCall: TypeAlias = Callable[[str, Outcome], None]
"""Called once for every call of a gateway tool, with the tool's name and the outcome."""

BLANK_LINE = "\n\n"


class OfferedTools(msgspec.Struct, frozen=True):
    """The gateway tools that a request is offered beside its own."""

    registry: Registry
    names: Set[str]
    max_turns: int
    max_reply: int
    """Maximum bytes of text, reasoning and arguments in all turns of one request."""
    inherit: Inherit
    on_call: OnCall
    keep: Keep | None = None
    """None if there are only searches, all of which the client sees."""
    search: Search | None = None
    """The searches for tools among them."""
    confirm: Confirm | None = None
    """Called before a tool is run; it is not run if this raises."""


class TextSeparator:
    """Puts a blank line between the texts of two turns; in a dialect with several messages, begins a new message.

    Line breaks at the beginning of a later turn become part of that blank line, however they are cut into deltas.
    """

    def __init__(self, *, several_messages: bool) -> None:
        self._has_messages = several_messages
        self._message = ""  # the item id of the last one
        self._tail: str = ""  # the last characters of the text so far
        self._has_text = False
        self._is_due = False

    def begin_turn(self) -> None:
        """Separate the text that follows from the text so far."""
        self._is_due = self._has_text

    def end_text(self) -> Sequence[Event]:
        """End the text so far because something else follows it, so the next text needs no separator."""
        ended = (MessageEnded(self._message),) if self._has_text else ()
        self._has_text, self._tail = False, ""
        return ended

    def feed(self, event: Event) -> Sequence[Event]:
        """The event, preceded by a separator if one is due."""
        if not isinstance(event, TextDelta):
            return (event,)
        separator: Sequence[Event] = ()
        if self._is_due and self._has_messages:
            separator = (MessageEnded(self._message),)
        elif self._is_due:
            text = event.text.lstrip("\n")
            if not text:
                return ()
            breaks = len(self._tail) - len(self._tail.rstrip("\n"))
            event = TextDelta(BLANK_LINE[breaks:] + text, event.item, event.part)
        self._is_due = False
        self._message = event.item
        self._tail = (self._tail + event.text)[-len(BLANK_LINE) :]
        self._has_text = self._has_text or bool(event.text.strip())
        return (*separator, event)


class _ModelTurn:
    """One turn of the model: its entries for the history, and its calls of gateway tools and of client tools."""

    def __init__(self, tools: OfferedTools, calls: TurnCalls) -> None:
        self._tools = tools
        self.calls = calls
        self.gateway_calls: list[CallEntry] = []
        self.client_calls: list[CallEntry] = []
        self._entries: list[Entry] = []
        self._text: list[str] = []  # not among the entries yet
        self._reasoning: dict[int, list[str]] = {}

    @property
    def entries(self) -> list[Entry]:
        """The turn so far, as entries of the history."""
        if self._text:
            self._entries.append(Message("assistant", (TextPart("".join(self._text)),)))
            self._text = []
        return self._entries

    def take(self, event: Event) -> bool:
        """Record an event; returns whether the client sees it too. Calls of gateway tools are hidden."""
        if isinstance(event, CallStarted | CallArgs | CallEnded):
            return self._take_call(event)
        if isinstance(event, TextDelta):
            self._text.append(event.text)
        elif isinstance(event, ReasoningDelta):
            self._reasoning.setdefault(event.part, []).append(event.text)
        elif isinstance(event, ReasoningEnded):
            parts = tuple("".join(fragments) for _, fragments in sorted(self._reasoning.items()))
            self._reasoning = {}
            self.entries.append(ReasoningEntry(event.id, parts, (), event.signature, event.origin, event.redacted))
        return True

    def _take_call(self, event: CallStarted | CallArgs | CallEnded) -> bool:
        started = event if isinstance(event, CallStarted) else self.calls.assembler.open
        is_ours = started is not None and started.name in self._tools.names and not started.namespace
        call = self.calls.assembler.feed(event)
        if call is None or (is_ours and not call.complete):
            return not is_ours
        arguments = call.arguments if call.kind != "search" else arguments_text(as_object(call.arguments) or NULL)
        entry = CallEntry(call.id, call.name, arguments, call.kind, call.namespace, signature=call.signature)
        self.entries.append(entry)
        if is_ours:
            self.gateway_calls.append(entry)
            self.calls.start(tool_call_from(call, self._tools.registry))
        else:
            self.client_calls.append(entry)
        return not is_ours


class RunWithTools:
    """A run that asks the model again as long as it calls only gateway tools."""

    def __init__(self, tools: OfferedTools, request: Request, begin: Begin) -> None:
        self._tools = tools
        self._request = request
        self._initial_length = len(request.entries)
        self._begin = begin
        approve = partial(_find_refusal, tools.confirm) if tools.confirm is not None else None
        hooks = CallHooks(
            lambda _: Context(Path.cwd(), inherit=tools.inherit),
            finished=lambda done: self._report_outcome(
                done.call.call_id, done.call.name, "failed" if done.result.failed else "ok"
            ),
            approve=approve,
        )
        self._loop = ToolLoop(tools.registry, hooks, Limits(max_turns=tools.max_turns))
        self._separator = TextSeparator(several_messages=request.several_messages)
        self._size = 0  # bytes of the text, reasoning and arguments of all turns
        self._held: list[Event] = []  # until there is something to show
        self._headers: Mapping[str, str] = {}  # of the last turn
        self._ending = TurnEnded()
        self._working: asyncio.Task[list[Finished]] | None = None
        self._begin_turn()
        self.assembly = Assembly(Policies(), TurnStats(self._run.assembly.stats.mode), None)
        self.finished = False

    def _begin_turn(self) -> None:
        self._loop.begin_turn()
        self._turn = _ModelTurn(self._tools, self._loop.calls())
        self._reported: set[str] = set()  # calls whose outcome was reported
        self._run = self._begin(self._request)

    @property
    def backend(self) -> str:
        """The name of the backend that is asked."""
        return self._run.backend

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the current reply, or else of the last one."""
        return self._run.headers or self._headers

    async def read(self, until: float, listener: Listener | None = None) -> Sequence[Event]:
        """The next events, or none if `until` comes first. Sets `finished` with the last."""
        while not self.finished:
            if self._working is not None:
                if not await wait_until(self._working, until):
                    return ()
                events = self._continue(self._working.result())
            else:
                events = await self._run.read(until)
                if not events and not self._run.finished:
                    return ()
                events = [shown for event in events for shown in self._feed(event)]
            if events:
                return self._emit(events)
        return ()

    def commit(self) -> Sequence[Event]:
        """Make no new attempt, because the answer has begun; returns the events that were held until now."""
        return self._emit([shown for event in self._run.commit() for shown in self._feed(event)])

    def close(self) -> None:
        """Stop at once, the tools too."""
        self._stop_tools()
        self._run.close()

    async def finish(self) -> None:
        """End the run: stop the tools, and read the last bytes of the reply."""
        self._stop_tools()
        await self._run.finish()

    def _stop_tools(self) -> None:
        self.finished = True
        for call in self._turn.gateway_calls:  # reported now, because their results are not awaited
            self._report_outcome(call.id, call.name, "cancelled")
        self._turn.calls.cancel()
        if self._working is not None:
            self._working.cancel()

    def _report_outcome(self, id: str, tool: str, outcome: Outcome) -> None:
        if id not in self._reported:
            self._reported.add(id)
            self._tools.on_call(tool, outcome)

    def _emit(self, events: Sequence[Event]) -> Sequence[Event]:
        """Count events for the reader and return them, after those that were held back."""
        events = [*self._held, *events]
        self._held = []
        for event in events:
            self.assembly.stats.feed(event)
        return [event for event in events if not isinstance(event, Note)]

    def _feed(self, event: Event) -> Sequence[Event]:
        """Process an event of the model's turn; returns what the reader sees of it."""
        match event:
            case TurnStarted():
                if self._loop.turns == 1:
                    self._held.append(event)
                return ()
            case Usage():
                self._loop.spend(event)
                return ()
            case TurnFailed():
                return self._end(event)
            case TurnEnded():
                self._ending = event
                is_cut = event.reason in ("length", "filter") and not self._turn.client_calls
                if is_cut or not self._turn.gateway_calls:
                    self._keep_for_client(())
                    return self._end(event)
                self._headers = self._run.headers
                self._working = asyncio.get_running_loop().create_task(self._work())
                return ()
            case TextDelta() | ReasoningDelta() | CallArgs():
                self._size += count_bytes(event.text)
                if self._size > self._tools.max_reply:
                    raise ReplyTooLarge(self._tools.max_reply)
            case _:
                pass
        return self._separator.feed(event) if self._turn.take(event) else ()

    async def _work(self) -> list[Finished]:
        """Wait for the tools, and meanwhile read the reply's last bytes, so that its connection can be used again."""
        await self._run.finish()
        return await self._turn.calls.results()

    def _continue(self, finished: list[Finished]) -> Sequence[Event]:
        """After the tools, ask the model again, or leave the rest to the client. Returns the searches to show."""
        self._working = None
        turn = self._turn
        results = tuple(
            ResultEntry(call.id, done.result.parts, call.kind, failed=done.result.failed)
            for call, done in zip(turn.gateway_calls, finished, strict=True)
        )
        shown: list[Event] = []
        search = self._tools.search
        if search is not None:
            for call, result in zip(turn.gateway_calls, results, strict=True):
                if call.kind == "search":
                    shown += [*self._separator.end_text(), *search.show(call, result)]
        if turn.client_calls:
            self._keep_for_client(results)
            return [*shown, *self._end(self._ending)]
        if self._loop.stop_reason:
            given_up = self._loop.repeats.given_up
            note = Note("repeated_calls", given_up.name) if given_up is not None else Note("max_turns_reached")
            # The model had not finished, and `length` is the only reason that tells a client so.
            return [*shown, note, *self._end(TurnEnded("length"))]
        copy_notes(self._run, self.assembly.stats)
        self._separator.begin_turn()
        entries = (*self._request.entries, *turn.entries, *results)
        self._request = msgspec.structs.replace(self._request, entries=entries, notes=())
        self._begin_turn()
        return shown

    def _keep_for_client(self, results: tuple[ResultEntry, ...]) -> None:
        """Store the hidden part of a turn that the client must continue. Searches are shown, and come back."""
        earlier = self._request.entries[self._initial_length :]
        seen = [index for index, entry in enumerate(earlier, 1) if _is_search(entry)]
        earlier = earlier[seen[-1] :] if seen else earlier
        results = tuple(result for result in results if result.kind != "search")
        if self._tools.keep is not None and self._turn.client_calls and (results or earlier):
            self._tools.keep(earlier, [entry for entry in self._turn.entries if not _is_search(entry)], results)

    def _end(self, event: TurnEnded | TurnFailed) -> Sequence[Event]:
        copy_notes(self._run, self.assembly.stats)
        self.finished = True
        usage = self._loop.usage
        return (usage, event) if usage is not None and isinstance(event, TurnEnded) else (event,)


def run_with_search(search: Search, settings: Settings, begin: Begin, on_call: OnCall) -> TurnSource:
    """The run of a request for which the gateway runs searches for tools, and no other tools."""
    tools = OfferedTools(
        Registry(search.tools),
        {each.name for each in search.tools},
        settings.gateway_tools.max_turns,
        bytes_of(settings.server.max_reply),
        dict[str, str],
        on_call,
        search=search,
    )
    return RunWithTools(tools, search.request, begin)


async def _find_refusal(confirm: Confirm, tool: Tool, call: ToolCall) -> str:
    """The reason why a tool may not run; empty if it may."""
    try:
        await confirm()
    except ToolwireError as error:
        return f"{tool.name} was not run: {error.failure.message}"
    return ""


def _is_search(entry: Entry) -> bool:
    return isinstance(entry, CallEntry | ResultEntry) and entry.kind == "search"


class DeferredRun:
    """A run that begins when a task is done, and is silent until then. Its statistics exist from the start."""

    def __init__(self, awaited: "asyncio.Task[Any]", begin: Callable[[], TurnSource]) -> None:
        self._awaited = awaited  # never cancelled here: other runs wait for it too
        self._begin = begin
        self._run: TurnSource | None = None
        self.assembly = Assembly(Policies(), TurnStats(), None)
        self.finished = False

    @property
    def backend(self) -> str:
        """The name of the backend, once it is asked."""
        return self._run.backend if self._run is not None else ""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the reply, once there is one."""
        return self._run.headers if self._run is not None else {}

    async def read(self, until: float, listener: Listener | None = None) -> Sequence[Event]:
        """The next events, or none if `until` comes first. Sets `finished` with the last."""
        if self.finished or not await wait_until(self._awaited, until):
            return ()
        if self._run is None:
            self._run = self._begin()
            self.assembly.stats.mode = self._run.assembly.stats.mode
        events = await self._run.read(until)
        self.finished = self._run.finished
        return self._count(events, self._run)

    def commit(self) -> Sequence[Event]:
        """Make no new attempt, because the answer has begun."""
        return self._count(self._run.commit(), self._run) if self._run is not None else ()

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

    def _count(self, events: Sequence[Event], run: TurnSource) -> Sequence[Event]:
        for event in events:
            self.assembly.stats.feed(event)
        if self.finished:
            copy_notes(run, self.assembly.stats)
        return events


async def wait_until(task: "asyncio.Task[Any]", until: float) -> bool:
    """Wait for a task; False if `until`, a time of the event loop, comes first."""
    if not task.done():
        seconds = None if until == float("inf") else max(0.0, until - asyncio.get_running_loop().time())
        await asyncio.wait((task,), timeout=seconds)
    return task.done()


def copy_notes(run: TurnSource, stats: TurnStats) -> None:
    """Add the notes of a run to these statistics; a note that every turn of the model leaves is added once."""
    known = set(stats.notes)
    for note in run.assembly.stats.notes:
        if note not in known:
            stats.add_note(note)
