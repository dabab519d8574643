"""Reads one turn of the model: deltas become agent events, calls start while the stream continues, and items are added
to the session.

However the stream ends, the history stays consistent: completed items are kept, and every call gets its result, in the
order of the calls.
"""

import asyncio
from collections.abc import Iterable
from itertools import takewhile
from typing import TYPE_CHECKING, TypeGuard

import msgspec

from toolwire.agent import events as agent_events
from toolwire.agent.history import AnyItem, ToolCallItem, output_item, read_item
from toolwire.agent.limits import limits_from_headers
from toolwire.agent.model import NO_DEADLINE, ModelTurn
from toolwire.core import events
from toolwire.core.backend import ContextWindow
from toolwire.core.errors import BackendFault, BadRequest, Failure, InternalError
from toolwire.core.events import Event, RawFrame, Reason, TurnEnded, TurnFailed, Usage
from toolwire.dialects.responses.items import ITEM_DONE, CallItem, MessageItem, OtherItem, OutputItem
from toolwire.turns.tools.call import LocalShellPayload, ToolCall
from toolwire.turns.tools.registry import tool_call_from

if TYPE_CHECKING:
    from toolwire.agent.task import Task

DAMAGED_CALLS = {
    "arguments_gap": "A frame was lost inside the arguments of a call.",
    "arguments_differ": "The backend sent a call with two different sets of arguments.",
}
"""Notes about calls that cannot run, and what they mean."""
CALL = "function_call"
SHELL_CALL = "local_shell_call"


class Step:
    """One request to the model, from its first event to the last result. A retry of a turn is another step."""

    def __init__(self, task: "Task", turn: ModelTurn) -> None:
        self._task = task
        self._turn = turn
        self._run = turn.run
        self._encoder = turn.encoder
        self._calls = task.tools.calls()
        self._text: list[str] = []
        self._commands: set[str] = set()  # names of the items whose shell command was started
        self._stored = 0  # number of items in the session
        self._announced = 0  # number of items whose start was reported
        self._open: list[OutputItem] = []  # announced items that are not complete
        self._item_id = ""  # of the item that text and reasoning belong to
        self.calls = 0
        """Number of calls that were started."""
        self.reason: Reason = "stop"
        """Why the turn ended."""
        self.response_id = ""
        self.context_window = ContextWindow()
        """What the reply says about the model's context window."""

    @property
    def text(self) -> str:
        """The model's text in this turn."""
        return "".join(self._text)

    async def take(self) -> None:
        """Read the whole turn and run its calls. The history is consistent when this returns or raises.

        Raises `BackendFault` if the turn failed, and `FatalToolError` if a tool ends the run.
        """
        try:
            failure = await self._read()
        except (BadRequest, BackendFault, InternalError) as error:
            failure = error.failure
        except BaseException:
            self._calls.cancel()
            await self._settle()
            raise
        finally:
            self._run.close()
        await self._settle()
        if failure is None and not self.calls:
            # If all calls arrived damaged, the model is asked again, and makes them again.
            code = next((code for code in DAMAGED_CALLS if code in self._run.assembly.stats.counts), None)
            failure = Failure(502, code, DAMAGED_CALLS[code], retryable=True) if code is not None else None
        if failure is not None:
            raise BackendFault(failure)
        if self._text:
            self._task.text = self.text

    async def _read(self) -> Failure | None:
        """Read to the end, and return the failure of the turn, if any."""
        run = self._run
        failure: Failure | None = None
        is_first = True
        while not run.finished:
            for event in await run.read(NO_DEADLINE):
                if isinstance(event, TurnFailed):
                    failure = event.failure
                else:
                    self._turn.feed(event)
                    self._report_items()
                    self._handle(event)
            if is_first or run.finished:  # a codex worker reports its limits at the end
                self._task.report_limits(limits_from_headers(run.headers))
                is_first = False
            await self._task.events.wait_for_room()
        for note in run.assembly.stats.notes:
            self._task.put(agent_events.Noted(note.code, note.subject))
        self.context_window = run.conversation.decoder.context_window
        if failure is None:
            await run.finish()
            await self._task.check_usage()
        return failure

    async def _settle(self) -> None:
        """Wait for the calls that were started, and store the last items and all results."""
        results = await self._calls.results()
        self._task.log_calls(results)
        # Incomplete items are left out: the model writes them again when it is asked again.
        items = _history_items(self._encoder.items[self._stored :])
        self._task.session.add([*items, *(output_item(each.call, each.result) for each in results)])
        if self._calls.was_cancelled:
            raise asyncio.CancelledError
        if self._calls.fatal is not None:
            raise self._calls.fatal

    def _handle(self, event: Event) -> None:
        if isinstance(event, events.TextDelta | events.RefusalDelta):
            self._text.append(event.text)
            self._task.put(agent_events.TextDelta(event.text, self._item_id, event.part))
        elif isinstance(event, events.ReasoningDelta):
            self._task.put(agent_events.ReasoningDelta(event.text, self._item_id, event.kind, event.part))
        elif isinstance(event, events.TurnStarted):
            self.response_id = event.id or self._encoder.response.id
            self._task.put(agent_events.ResponseCreated(self.response_id, event.model))
        elif isinstance(event, Usage):
            self._task.spend(event)
        elif isinstance(event, TurnEnded):
            self.reason = event.reason
        elif isinstance(event, RawFrame):
            # No other event announces a shell command. Some servers report the end of an item twice.
            if event.type == ITEM_DONE and event.item not in self._commands:
                for item in _history_items(each for each in self._encoder.items if each.name == event.item):
                    if _is_command(item):
                        self._commands.add(event.item)
                        self._start(item.call)
        elif (call := self._calls.assembler.feed(event)) is not None and call.complete:
            self._start(tool_call_from(call, self._task.tools.registry))

    def _report_items(self) -> None:
        """Report items that have begun or are complete. Calls have events of their own."""
        self._report_completed()
        items = self._encoder.items
        if self._announced == len(items):
            return
        for item in items[self._announced :]:
            if not isinstance(item, OtherItem):
                self._item_id = item.id
            kind = _kind(item)
            if kind != CALL:
                self._task.put(agent_events.ItemStarted(item.id, kind))
                self._open.append(item)
        self._announced = len(items)
        self._report_completed()

    def _report_completed(self) -> None:
        for item in [item for item in self._open if _is_complete(item)]:
            self._open.remove(item)
            self._task.put(agent_events.ItemCompleted(item.id, _kind(item), item.as_received))

    def _start(self, call: ToolCall) -> None:
        """Run a call. It is stored first, so that a process that is killed leaves a record of it."""
        completed = [*takewhile(_is_complete, self._encoder.items[self._stored :])]
        self._stored += len(completed)
        self._task.session.add(_history_items(completed))
        self.calls += 1
        self._task.put(agent_events.CallStarted(call.call_id, call.name, call.text))
        self._calls.start(call)


def _is_complete(item: OutputItem) -> bool:
    return item.status != "in_progress"


def _kind(item: OutputItem) -> str:
    """The type of an item in the Responses API; calls of all kinds count as function calls."""
    if isinstance(item, OtherItem):
        type = msgspec.json.decode(item.fields.get("type", b'""'), type=str)
        return CALL if type == SHELL_CALL else type
    return CALL if isinstance(item, CallItem) else "message" if isinstance(item, MessageItem) else "reasoning"


def _history_items(items: Iterable[OutputItem]) -> list[AnyItem]:
    """Completed items for the history, as received; without truncated calls, which get no result."""
    found: list[AnyItem] = []
    for each in filter(_is_complete, items):
        item = read_item(each.as_received)
        if _is_command(item) and not item.call.call_id:
            item = read_item(each.encoded)  # a command without an id gets the one that its item was given
        if not isinstance(item, ToolCallItem) or not item.is_cut:
            found.append(item)
    return found


def _is_command(item: AnyItem) -> TypeGuard[ToolCallItem]:
    return isinstance(item, ToolCallItem) and isinstance(item.call.payload, LocalShellPayload)
