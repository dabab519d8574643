"""One turn being taken in: deltas go to whoever watches, calls are started while the stream goes on, items are kept.

Whatever happens to the stream, the history stays whole: finished items are kept, every call gets its result, and
results stand in the order of the calls.
"""

import asyncio
from collections.abc import Iterable
from itertools import takewhile

import msgspec

from toolwire.agent import events as happened
from toolwire.agent.call import ToolCall
from toolwire.agent.items import CALLS, AnyItem, LocalShellCallItem, call_of, output_item, read_item
from toolwire.agent.limits import limits_in
from toolwire.agent.model import Turn
from toolwire.agent.router import heard
from toolwire.agent.task import Task
from toolwire.core import events
from toolwire.core.backend import ContextWindow
from toolwire.core.errors import BackendFault, Failure, ToolwireError
from toolwire.core.events import CallArgs, CallEnded, CallStarted, Event, Reason, Told, TurnEnded, TurnFailed, Usage
from toolwire.dialects.responses.items import DONE, CallItem, MessageItem, OtherItem, OutputItem

FOREVER = float("inf")
GAP = "arguments_gap"
CALL = "function_call"
SHELL_CALL = "local_shell_call"


class Step:
    """One request of a task, from its first event to the last result."""

    def __init__(self, task: Task, turn: Turn) -> None:
        self._task = task
        self._run = turn.run
        self._encoder = turn.encoder
        self._runtime = task.runtime()
        self._call: CallStarted | None = None
        self._pieces: list[str] = []
        self._said: list[str] = []
        self._commands: set[str] = set()
        self._kept = 0
        self._begun = 0  # items of which was told
        self._open: list[OutputItem] = []  # those of them that are not complete
        self._item = ""  # the id of the one that text or reasoning belongs to
        self.calls = 0
        self.reason: Reason = "stop"
        self.response_id = ""
        self.context_window = ContextWindow()

    async def take(self) -> None:
        """Take the whole turn in. Whatever its end is, the history is whole when this returns or raises."""
        try:
            broken = await self._read()
        except ToolwireError as error:
            broken = error.failure
        except BaseException:
            self._runtime.cancel()
            await self._settle()
            raise
        finally:
            self._run.close()
        await self._settle()
        broken = broken or self._lost()
        if broken is not None:
            raise BackendFault(broken)
        if self._said:
            self._task.text = "".join(self._said)

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
                    self._encoder.feed(event)
                    self._see_items()
                    self._see(event)
            if is_first or run.finished:  # a worker tells of its limits at the end
                self._task.saw_limits(limits_in(run.headers))
                is_first = False
            await self._task.room()
        for note in run.assembly.tally.notes:
            self._task.put(happened.Noted(note.code, note.subject))
        self.context_window = run.conversation.context_window
        if failure is None:
            await run.finish()
            await self._task.look_at_usage()
        return failure

    def _lost(self) -> Failure | None:
        """The failure of a turn whose only calls have lost a frame: a model that is asked again makes them again."""
        if self.calls or GAP not in self._run.assembly.tally.counts:
            return None
        return Failure(502, GAP, "A frame was lost inside the arguments of a call.", retryable=True)

    async def _settle(self) -> None:
        """Wait for what was started, and keep the last items and all results."""
        results = await self._runtime.results()
        # An item that still grows is no part of it: a model that is asked again says it again.
        items = _as_kept(self._encoder.items[self._kept :])
        self._task.keep([*items, *(output_item(each.call, each.result) for each in results)])
        if self._runtime.was_cancelled:
            raise asyncio.CancelledError
        if self._runtime.fatal is not None:
            raise self._runtime.fatal

    def _see(self, event: Event) -> None:
        if isinstance(event, events.TextDelta | events.RefusalDelta):
            self._said.append(event.text)
            self._task.put(happened.TextDelta(event.text, self._item, event.part))
        elif isinstance(event, events.ReasoningDelta):
            self._task.put(happened.ReasoningDelta(event.text, self._item, event.kind, event.part))
        elif isinstance(event, CallArgs):
            self._pieces.append(event.text)
        elif isinstance(event, CallStarted):
            self._call, self._pieces = event, []
        elif isinstance(event, CallEnded):
            call, self._call = self._call, None
            if call is not None and event.complete:
                self._start(heard(call, "".join(self._pieces), self._task.registry))
        elif isinstance(event, events.TurnStarted):
            self.response_id = event.id or self._encoder.response.id
            self._task.put(happened.ResponseCreated(self.response_id, event.model))
        elif isinstance(event, Usage):
            self._task.spend(event)
        elif isinstance(event, TurnEnded):
            self.reason = event.reason
        elif isinstance(event, Told) and event.type == DONE:
            self._hear_item(event.item)

    def _see_items(self) -> None:
        """Tell of items that have begun or are complete. Calls have events of their own."""
        self._complete_items()
        items = self._encoder.items
        if self._begun == len(items):
            return
        for item in items[self._begun :]:
            if not isinstance(item, OtherItem):
                self._item = item.id
            kind = _kind(item)
            if kind != CALL:
                self._task.put(happened.ItemStarted(item.id, kind))
                self._open.append(item)
        self._begun = len(items)
        self._complete_items()

    def _complete_items(self) -> None:
        for item in [item for item in self._open if _is_finished(item)]:
            self._open.remove(item)
            self._task.put(happened.ItemCompleted(item.id, _kind(item), item.as_told))

    def _hear_item(self, name: str) -> None:
        """An item that there are no events for: perhaps a command for the shell."""
        if name in self._commands:
            return  # some servers say twice that an item is done
        for item in _as_kept(each for each in self._encoder.items if each.name == name):
            if isinstance(item, LocalShellCallItem):
                self._commands.add(name)
                self._start(call_of(item))

    def _start(self, call: ToolCall) -> None:
        """Run a call, which the history knows from here on: a process that is killed must not forget that it ran."""
        finished = [*takewhile(_is_finished, self._encoder.items[self._kept :])]
        self._kept += len(finished)
        self._task.keep(_as_kept(finished))
        self.calls += 1
        self._task.put(happened.CallStarted(call.call_id, call.name, call.text))
        self._runtime.start(call)


def _is_finished(item: OutputItem) -> bool:
    return item.status != "in_progress"


def _kind(item: OutputItem) -> str:
    """The type of an item, as the Responses API calls it; for our purpose all calls are of one."""
    if isinstance(item, OtherItem):
        type = msgspec.json.decode(item.fields.get("type", b'""'), type=str)
        return CALL if type == SHELL_CALL else type
    return CALL if isinstance(item, CallItem) else "message" if isinstance(item, MessageItem) else "reasoning"


def _as_kept(items: Iterable[OutputItem]) -> list[AnyItem]:
    """Finished items as the history has them: as they came. Without calls that were cut, which nobody answers."""
    kept = [_item(each) for each in items if _is_finished(each)]
    return [each for each in kept if not isinstance(each, CALLS) or not each.is_cut]


def _item(item: OutputItem) -> AnyItem:
    read = read_item(item.as_told)
    # A command that came without any id has the one that was given to its item.
    return read if not isinstance(read, LocalShellCallItem) or read.call_id else read_item(item.encoded)
