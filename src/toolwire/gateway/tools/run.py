"""Runs in which the model's calls of the gateway's tools, and of its searches, are answered here, in several turns.

A turn that also calls a tool of the client ends the run: the gateway's results wait until the client brings its own.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from toolwire.assembly import Assembly
from toolwire.config.settings import Settings, bytes_of
from toolwire.core.errors import ReplyTooLarge, ToolwireError
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
from toolwire.core.notes import TurnStats
from toolwire.core.policies import Policies
from toolwire.core.raw import NULL
from toolwire.core.request import CallEntry, Entry, Message, ReasoningEntry, Request, ResultEntry, TextPart
from toolwire.core.text import arguments_text, as_object
from toolwire.gateway.tools.deferred import is_done, take_notes
from toolwire.gateway.tools.search import Search, Show
from toolwire.gateway.tools.separator import TextSeparator
from toolwire.turns.attempt import Confirm
from toolwire.turns.source import TurnSource
from toolwire.turns.tools.call import ToolCall
from toolwire.turns.tools.calls import CallHooks, Finished, TurnCalls
from toolwire.turns.tools.loop import Limits, ToolLoop
from toolwire.turns.tools.registry import Context, Inherit, Registry, Tool, tool_call_from

Begin: TypeAlias = Callable[[Request], TurnSource]
"""Asks the model: starts one turn for a request."""
Keep: TypeAlias = Callable[[tuple[Entry, ...], Sequence[Entry], Sequence[ResultEntry]], None]
"""Keeps a turn that the client must continue: what happened before it, the turn, and the gateway's results."""
Outcome: TypeAlias = Literal["ok", "failed", "cancelled"]
Ran: TypeAlias = Callable[[str, Outcome], None]
"""Called once for every call of a gateway tool, with the tool's name and the outcome."""


class OfferedTools(msgspec.Struct, frozen=True):
    """The gateway tools that a request is offered beside its own."""

    registry: Registry
    names: Set[str]
    max_turns: int
    keep: Keep
    ran: Ran
    inherit: Inherit
    max_reply: int
    """Bytes that the turns of one request may hold together until they are sent back to the model."""
    show: Show | None = None
    """Writes searches for tools for the client, if any are run here."""
    confirm: Confirm | None = None
    """Called before a tool is run; it is not run if this raises."""


class _ModelTurn:
    """One turn of the model: its entries for the history, and its calls of gateway tools and of the client's."""

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
        """The turn so far, as the history has it."""
        if self._text:
            self._entries.append(Message("assistant", (TextPart("".join(self._text)),)))
            self._text = []
        return self._entries

    def hides(self, event: Event) -> bool:
        """Take an event in, and return whether it is about a gateway tool: the client does not see those."""
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
        return False

    def _take_call(self, event: CallStarted | CallArgs | CallEnded) -> bool:
        started = event if isinstance(event, CallStarted) else self.calls.assembler.open
        is_ours = started is not None and started.name in self._tools.names and not started.namespace
        call = self.calls.assembler.feed(event)
        if call is None or (is_ours and not call.complete):
            return is_ours
        arguments = call.arguments if call.kind != "search" else arguments_text(as_object(call.arguments) or NULL)
        entry = CallEntry(call.id, call.name, arguments, call.kind, call.namespace, signature=call.signature)
        self.entries.append(entry)
        if is_ours:
            self.gateway_calls.append(entry)
            self.calls.start(tool_call_from(call, self._tools.registry))
        else:
            self.client_calls.append(entry)
        return is_ours


class RunWithTools:
    """A run that asks the model again as long as it calls gateway tools only. To its reader it is one turn."""

    def __init__(self, tools: OfferedTools, request: Request, begin: Begin) -> None:
        self._tools = tools
        self._request = request
        self._initial_length = len(request.entries)
        self._begin = begin
        approve = partial(_refusal, tools.confirm) if tools.confirm is not None else None
        hooks = CallHooks(lambda _: Context(Path.cwd(), inherit=tools.inherit), finished=self._report, approve=approve)
        self._loop = ToolLoop(tools.registry, hooks, Limits(max_turns=tools.max_turns))
        self._separator = TextSeparator(several_messages=request.several_messages)
        self._size = 0  # characters of the text, reasoning and arguments of all turns
        self._held: list[Event] = []  # until there is something to show
        self._headers: Mapping[str, str] = {}  # of the last turn
        self._ending = TurnEnded()
        self._working: asyncio.Task[list[Finished]] | None = None
        self._ask()
        self.assembly = Assembly(Policies(), TurnStats(self._run.assembly.stats.mode), None)
        self.finished = False

    def _ask(self) -> None:
        """Begin a turn of the model."""
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
        """The headers of the model's last reply."""
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
                events = [shown for event in events for shown in self._shown(event)]
            if events:
                return self._counted(events)
        return ()

    def commit(self) -> Sequence[Event]:
        """The client has an answer: no new attempt is made from here on. Returns the events that waited for content."""
        return self._counted([shown for event in self._run.commit() for shown in self._shown(event)])

    def close(self) -> None:
        """Stop at once, the tools too."""
        self._stop_tools()
        self._run.close()

    async def finish(self) -> None:
        """The turn is over: stop the tools, and read the reply's last bytes."""
        self._stop_tools()
        await self._run.finish()

    def _stop_tools(self) -> None:
        self.finished = True
        for call in self._turn.gateway_calls:  # reported now: nobody waits for their results
            self._report_outcome(call.id, call.name, "cancelled")
        self._turn.calls.cancel()
        if self._working is not None:
            self._working.cancel()

    def _report(self, done: Finished) -> None:
        self._report_outcome(done.call.call_id, done.call.name, "failed" if done.result.failed else "ok")

    def _report_outcome(self, id: str, tool: str, outcome: Outcome) -> None:
        if id not in self._reported:
            self._reported.add(id)
            self._tools.ran(tool, outcome)

    def _counted(self, events: Sequence[Event]) -> Sequence[Event]:
        held, self._held = self._held, []
        events = [*held, *events]
        for event in events:
            self.assembly.stats.feed(event)
        return [event for event in events if not isinstance(event, Note)]

    def _shown(self, event: Event) -> Sequence[Event]:
        """What the reader sees of an event."""
        if isinstance(event, TurnStarted):
            if self._loop.turns == 1:
                self._held.append(event)
            return ()
        if isinstance(event, Usage):
            self._loop.spend(event)
            return ()
        if isinstance(event, TurnFailed):
            return self._end(event)
        if isinstance(event, TurnEnded):
            self._ending = event
            is_cut = event.reason in ("length", "filter") and not self._turn.client_calls
            if is_cut or not self._turn.gateway_calls:
                self._leave_to_the_client(())
                return self._end(event)
            self._headers = self._run.headers
            self._working = asyncio.get_running_loop().create_task(self._work())
            return ()
        if isinstance(event, TextDelta | ReasoningDelta | CallArgs):
            self._size += len(event.text)
            if self._size > self._tools.max_reply:
                raise ReplyTooLarge(self._tools.max_reply)
        return () if self._turn.hides(event) else self._separator.feed(event)

    async def _work(self) -> list[Finished]:
        """Wait for the tools, and meanwhile read the reply's last bytes, so that its connection can be used again."""
        await self._run.finish()
        return await self._turn.calls.results()

    def _go_on(self, finished: list[Finished]) -> Sequence[Event]:
        """The tools are done: ask the model again, or leave the rest to the client."""
        self._working = None
        turn = self._turn
        results = tuple(map(_result_entry, turn.gateway_calls, finished))
        searches = self._shown_searches(results)
        if turn.client_calls:
            self._leave_to_the_client(results)
            return [*searches, *self._end(self._ending)]
        if self._loop.stop_reason:
            given_up = self._loop.repeats.given_up
            note = Note("repeated_calls", given_up.name) if given_up is not None else Note("max_turns_reached")
            # The model had not finished, and `length` is the only reason that says so to a client.
            return [*searches, note, *self._end(TurnEnded("length"))]
        take_notes(self._run, self.assembly.stats)
        self._separator.next_turn()
        entries = (*self._request.entries, *turn.entries, *results)
        self._request = msgspec.structs.replace(self._request, entries=entries, notes=())
        self._ask()
        return searches

    def _shown_searches(self, results: tuple[ResultEntry, ...]) -> Sequence[Event]:
        """The searches of this turn as the client sees them."""
        show, pairs = self._tools.show, zip(self._turn.gateway_calls, results, strict=True)
        searches = [(call, result) for call, result in pairs if call.kind == "search"]
        if show is None or not searches:
            return ()
        return [*self._separator.end_text(), *(frame for pair in searches for frame in show(*pair))]

    def _leave_to_the_client(self, results: tuple[ResultEntry, ...]) -> None:
        """Keep what the client does not see of a turn that it must continue. Searches it sees, and brings back."""
        earlier = self._request.entries[self._initial_length :]
        seen = [index for index, entry in enumerate(earlier, 1) if _is_search(entry)]
        earlier = earlier[seen[-1] :] if seen else earlier
        results = tuple(result for result in results if result.kind != "search")
        if self._turn.client_calls and (results or earlier):
            self._tools.keep(earlier, [entry for entry in self._turn.entries if not _is_search(entry)], results)

    def _end(self, event: TurnEnded | TurnFailed) -> Sequence[Event]:
        take_notes(self._run, self.assembly.stats)
        self.finished = True
        usage = self._loop.usage
        return (usage, event) if usage is not None and isinstance(event, TurnEnded) else (event,)


def run_with_search(search: Search, settings: Settings, begin: Begin, ran: Ran) -> TurnSource:
    """The run of a request whose searches for tools are run here, where the gateway has no other tools."""
    tools = OfferedTools(
        Registry(search.tools),
        {each.name for each in search.tools},
        settings.gateway_tools.max_turns,
        _keep_nothing,
        ran,
        dict[str, str],
        bytes_of(settings.server.max_reply),
        search.show,
    )
    return RunWithTools(tools, search.request, begin)


def _keep_nothing(earlier: object, turn: object, results: object) -> None:
    """The client sees all of a search."""


async def _refusal(confirm: Confirm, tool: Tool, call: ToolCall) -> str:
    """Why a tool may not be run, or nothing."""
    try:
        await confirm()
    except ToolwireError as error:
        return f"{tool.name} was not run: {error.failure.message}"
    return ""


def _is_search(entry: Entry) -> bool:
    return isinstance(entry, CallEntry | ResultEntry) and entry.kind == "search"


def _result_entry(call: CallEntry, done: Finished) -> ResultEntry:
    return ResultEntry(call.id, done.result.parts, call.kind, failed=done.result.failed)
