"""One turn of the model being read: deltas become agent events, calls are started while the stream goes on, items are
added to the session.

However the stream ends, the history stays whole: finished items are kept, every call gets its result, and results stand
in the order of the calls.
"""

import asyncio
from collections.abc import Iterable
from itertools import takewhile
from typing import TypeGuard

import msgspec

from toolwire.agent import events as happened
from toolwire.agent.history import AnyItem, ToolCallItem, output_item, read_item
from toolwire.agent.limits import limits_in
from toolwire.agent.model import Turn
from toolwire.agent.task import Task
from toolwire.core import events
from toolwire.core.backend import ContextWindow
from toolwire.core.errors import BackendFault, BadRequest, Failure, InternalError
from toolwire.core.events import Event, RawFrame, Reason, TurnEnded, TurnFailed, Usage
from toolwire.dialects.responses.items import DONE, CallItem, MessageItem, OtherItem, OutputItem
from toolwire.turns.tools.call import LocalShellPayload, ToolCall
from toolwire.turns.tools.router import tool_call_from

FOREVER = float("inf")
LOST = {
    "arguments_gap": "A frame was lost inside the arguments of a call.",
    "arguments_differ": "The backend sent a call with two different sets of arguments.",
}
"""Notes about calls that cannot run, and what they mean."""
CALL = "function_call"
SHELL_CALL = "local_shell_call"


class Step:
    """One request to the model, from its first event to the last result. A turn that is asked for again is another."""

    def __init__(self, task: Task, turn: Turn) -> None:
        self._task = task
        self._turn = turn
        self._run = turn.run
        self._encoder = turn.encoder
        self._calls = task.tools.calls()
        self._text: list[str] = []
        self._commands: set[str] = set()  # items with a command for the shell that was started
        self._kept = 0  # items that the session has
        self._announced = 0  # items whose start was reported
        self._open: list[OutputItem] = []  # those of them that are not complete
        self._item = ""  # the id of the one that text or reasoning belongs to
        self.calls = 0
        """Calls that were started."""
        self.reason: Reason = "stop"
        """Why the turn ended."""
        self.response_id = ""
        self.context_window = ContextWindow()
        """What the reply said about the model's window."""

    async def take(self) -> None:
        """Read the whole turn. However it ends, the history is whole when this returns or raises."""
        try:
            broken = await self._read()
        except (BadRequest, BackendFault, InternalError) as error:
            broken = error.failure
        except BaseException:
            self._calls.cancel()
            await self._settle()
            raise
        finally:
            self._run.close()
        await self._settle()
        broken = broken or self._lost()
        if broken is not None:
            raise BackendFault(broken)
        if self._text:
            self._task.text = self.text

    @property
    def text(self) -> str:
        """What the model has said in it."""
        return "".join(self._text)

    async def _read(self) -> Failure | None:
        """Read to the end; why it failed, if it did."""
        run = self._run
        failure: Failure | None = None
        is_first = True
        while not run.finished:
            for event in await run.read(FOREVER):
                if isinstance(event, TurnFailed):
                    failure = event.failure
                else:
                    self._turn.feed(event)
                    self._report_items()
                    self._handle(event)
            if is_first or run.finished:  # a codex worker reports its limits at the end
                self._task.saw_limits(limits_in(run.headers))
                is_first = False
            await self._task.room()
        for note in run.assembly.stats.notes:
            self._task.put(happened.Noted(note.code, note.subject))
        self.context_window = run.conversation.context_window
        if failure is None:
            await run.finish()
            await self._task.look_at_usage()
        return failure

    def _lost(self) -> Failure | None:
        """The failure of a turn whose only calls came damaged: a model that is asked again makes them again."""
        code = next((code for code in LOST if code in self._run.assembly.stats.counts), None)
        return Failure(502, code, LOST[code], retryable=True) if code is not None and not self.calls else None

    async def _settle(self) -> None:
        """Wait for what was started, and keep the last items and all results."""
        results = await self._calls.results()
        # An item that still grows is no part of it: a model that is asked again says it again.
        items = _as_kept(self._encoder.items[self._kept :])
        self._task.session.add([*items, *(output_item(each.call, each.result) for each in results)])
        if self._calls.was_cancelled:
            raise asyncio.CancelledError
        if self._calls.fatal is not None:
            raise self._calls.fatal

    def _handle(self, event: Event) -> None:
        if isinstance(event, events.TextDelta | events.RefusalDelta):
            self._text.append(event.text)
            self._task.put(happened.TextDelta(event.text, self._item, event.part))
        elif isinstance(event, events.ReasoningDelta):
            self._task.put(happened.ReasoningDelta(event.text, self._item, event.kind, event.part))
        elif isinstance(event, events.TurnStarted):
            self.response_id = event.id or self._encoder.response.id
            self._task.put(happened.ResponseCreated(self.response_id, event.model))
        elif isinstance(event, Usage):
            self._task.spend(event)
        elif isinstance(event, TurnEnded):
            self.reason = event.reason
        elif isinstance(event, RawFrame):
            if event.type == DONE:
                self._start_command(event.item)
        elif (call := self._calls.assembler.feed(event)) is not None and call.complete:
            self._start(tool_call_from(call, self._task.tools.registry))

    def _report_items(self) -> None:
        """Report items that have begun or are complete. Calls have events of their own."""
        self._complete_items()
        items = self._encoder.items
        if self._announced == len(items):
            return
        for item in items[self._announced :]:
            if not isinstance(item, OtherItem):
                self._item = item.id
            kind = _kind(item)
            if kind != CALL:
                self._task.put(happened.ItemStarted(item.id, kind))
                self._open.append(item)
        self._announced = len(items)
        self._complete_items()

    def _complete_items(self) -> None:
        for item in [item for item in self._open if _is_finished(item)]:
            self._open.remove(item)
            self._task.put(happened.ItemCompleted(item.id, _kind(item), item.as_received))

    def _start_command(self, name: str) -> None:
        """Start the command for the shell in an item of this name, if it is one: there are no events for those."""
        if name in self._commands:
            return  # some servers send twice that an item is done
        for item in _as_kept(each for each in self._encoder.items if each.name == name):
            if _is_command(item):
                self._commands.add(name)
                self._start(item.call)

    def _start(self, call: ToolCall) -> None:
        """Run a call, after it was added to the session: a process that is killed must not forget that it ran."""
        finished = [*takewhile(_is_finished, self._encoder.items[self._kept :])]
        self._kept += len(finished)
        self._task.session.add(_as_kept(finished))
        self.calls += 1
        self._task.put(happened.CallStarted(call.call_id, call.name, call.text))
        self._calls.start(call)


def _is_finished(item: OutputItem) -> bool:
    return item.status != "in_progress"


def _kind(item: OutputItem) -> str:
    """The type of an item, as the Responses API calls it; for our purpose all calls are of one."""
    if isinstance(item, OtherItem):
        type = msgspec.json.decode(item.fields.get("type", b'""'), type=str)
        return CALL if type == SHELL_CALL else type
    return CALL if isinstance(item, CallItem) else "message" if isinstance(item, MessageItem) else "reasoning"


def _as_kept(items: Iterable[OutputItem]) -> list[AnyItem]:
    """Finished items as the history has them, as they came; without calls that were cut, which get no result."""
    kept = [_item(each) for each in items if _is_finished(each)]
    return [each for each in kept if not isinstance(each, ToolCallItem) or not each.is_cut]


def _item(item: OutputItem) -> AnyItem:
    read = read_item(item.as_received)
    # A command that came without any id has the one that was given to its item.
    return read_item(item.encoded) if _is_command(read) and not read.call.call_id else read


def _is_command(item: AnyItem) -> TypeGuard[ToolCallItem]:
    return isinstance(item, ToolCallItem) and isinstance(item.call.payload, LocalShellPayload)
