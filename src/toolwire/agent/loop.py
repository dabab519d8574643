"""The turn loop: ask, run the tools while the stream goes on, append their results, ask again, until nothing is left.

Whatever happens to a stream, the history stays whole: finished items are kept, every call gets its result, and results
stand in the order of the calls.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from toolwire.agent import events as happened
from toolwire.agent.approval import Approvals, Policy
from toolwire.agent.call import LOCAL_SHELL, Fatal, ToolCall
from toolwire.agent.events import Tokens
from toolwire.agent.feed import Feed
from toolwire.agent.history import read_items
from toolwire.agent.items import LocalShellCallItem, output_item, read_item
from toolwire.agent.limits import Limits, limits_from_usage, limits_in
from toolwire.agent.model import Model, Turn
from toolwire.agent.registry import Context, Registry
from toolwire.agent.retry import pause
from toolwire.agent.router import declared, heard
from toolwire.agent.runtime import Finished, Runtime
from toolwire.agent.session import Session
from toolwire.core import events
from toolwire.core.errors import BackendFault, Failure, ToolwireError
from toolwire.core.events import CallArgs, CallEnded, CallStarted, Event, Reason, Told, TurnEnded, TurnFailed, Usage
from toolwire.dialects.responses import compaction

FOREVER = float("inf")
LOOK_EVERY = 60.0
"""Seconds between two looks at the usage of an account."""


class Setup(msgspec.Struct, frozen=True):
    """How an agent works."""

    instructions: str = ""
    effort: str = ""
    limits: Limits = Limits()
    retries: int = 5
    longest_wait: float = 600.0
    """The longest pause that a server may ask for."""
    context_window: int = 0
    """Tokens that the model can be given; 0: unknown, and nothing is compacted."""
    compact_at: float = 0.9
    """The share of it at which the history is summarised."""
    approve: Policy = "never"
    """When somebody is asked before a call runs."""
    read_only: bool = False
    """Nothing may be changed."""


class LimitReached(Exception):
    """A bound of the task."""


class Loop:
    """One task: from a prompt in the history to the end of the model's work."""

    def __init__(
        self,
        model: Model,
        session: Session,
        registry: Registry,
        setup: Setup,
        approvals: Approvals,
        context: Callable[[ToolCall, Callable[[str], None]], Context],
        feed: Feed,
    ) -> None:
        self._model = model
        self._session = session
        self._registry = registry
        self._setup = setup
        self._approvals = approvals
        self._make_context = context
        self._feed = feed
        self._began = time.monotonic()
        self._rounds = 0
        self._spent = Tokens()
        self._last = Tokens()
        self._limits: tuple[happened.RateLimit, ...] = ()
        self._text = ""
        self._reason: Reason = "stop"
        self._looked = 0.0

    async def work(self) -> None:
        """Work until the task is over, and say how it ended."""
        error = ""
        try:
            reason = await self._work()
        except asyncio.CancelledError:
            reason = "cancelled"
        except LimitReached as limit:
            reason = str(limit)
        except (Fatal, ToolwireError) as fault:
            reason, error = "failed", str(fault)
        self._feed.put(happened.TaskEnded(reason, self._text, self._spent, error))

    async def _work(self) -> str:
        while True:
            limit = self._setup.limits.reached(self._rounds, self._spent, time.monotonic() - self._began)
            if limit:
                raise LimitReached(limit)
            await self._compact_if_due()
            self._rounds += 1
            self._feed.put(happened.TurnStarted(self._rounds))
            calls = await self._turn()
            self._feed.put(happened.TurnEnded(self._rounds, calls))
            if not calls:
                return self._reason if self._reason in ("length", "filter") else "done"

    async def _turn(self) -> int:
        """One turn, asked for again when its stream fails; the number of its calls."""
        attempt = 0
        while True:
            step = Step(self)
            try:
                calls = await step.take(self._model.turn(self._fields()))
            except BackendFault as broken:
                attempt += 1
                seconds = pause(broken.failure, attempt, self._setup.longest_wait)
                if seconds is None or attempt > self._setup.retries:
                    raise
                reason = broken.failure.message
                self._feed.put(happened.Retrying(attempt, self._setup.retries, round(seconds, 3), reason))
                await asyncio.sleep(seconds)
            else:
                self._reason = step.reason
                return calls

    def _fields(self) -> dict[str, Any]:
        """What is asked, as a body of the Responses API."""
        fields: dict[str, Any] = {"input": self._session.history.raw}
        if self._setup.instructions:
            fields["instructions"] = self._setup.instructions
        if self._setup.effort:
            fields["reasoning"] = {"effort": self._setup.effort, "summary": "auto"}
        self._registry.refresh()
        tools = [declared(tool) for tool in self._registry]
        if tools:
            fields["tools"] = tools
        return fields

    # What a step tells

    def put(self, event: happened.AgentEvent) -> None:
        self._feed.put(event)

    async def room(self) -> None:
        await self._feed.room()

    def runtime(self) -> Runtime:
        return Runtime(
            self._registry,
            lambda call: self._make_context(call, partial(self._output, call.call_id)),
            lambda call: self._feed.put(happened.ToolStarted(call.call_id, call.name)),
            self._call_ended,
            self._approvals.why_not,
        )

    def _output(self, call_id: str, text: str) -> None:
        self._feed.put(happened.ToolOutput(call_id, text))

    def _call_ended(self, done: Finished) -> None:
        seconds = round(done.seconds, 3)
        result = done.result
        self._feed.put(happened.CallEnded(done.call.call_id, done.call.name, result.text, result.failed, seconds))

    def heard(self, call: CallStarted, text: str) -> ToolCall:
        return heard(call, text, self._registry)

    def said(self, text: str) -> None:
        self._text = text

    def spend(self, usage: Usage) -> None:
        self._last = usage
        self._spent = self._spent.plus(usage)
        self._session.spend(usage)
        self._feed.put(happened.UsageUpdated(usage, self._session.usage))

    def saw_limits(self, limits: tuple[happened.RateLimit, ...]) -> None:
        if limits and limits != self._limits:
            self._limits = limits
            self._feed.put(happened.LimitsUpdated(limits))

    async def look_at_usage(self) -> None:
        """Ask, now and then, what the account has used."""
        now = time.monotonic()
        if self._looked and now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        told = await self._model.usage()
        if told:
            self.saw_limits(limits_from_usage(told))

    def keep(self, items: list[Any]) -> None:
        self._session.add(items)

    # Compaction

    async def _compact_if_due(self) -> None:
        window = self._setup.context_window
        if not window or self._last.total < window * self._setup.compact_at:
            return
        before = len(self._session.history)
        tail = self._session.history.tail()
        summary = await self._summary()
        whole = sum(len(bytes(item.raw)) for item in tail) // 4 < window // 5
        self._session.replace([*summary, *(tail if whole else tail[:1])])
        self._last = Tokens()
        self._feed.put(happened.Compacted(before, len(self._session.history)))

    async def _summary(self) -> list[Any]:
        """The history as one item, made by the model."""
        fields = {**self._fields(), "input": [*self._session.history.raw, {"type": "compaction_trigger"}]}
        policies: tuple[Callable[[], Any], ...] = ()
        request = self._model.request(fields)
        if not self._model.compacts:
            request = compaction.summarising(request)
            policies = (partial(compaction.IntoCompaction, f"cmp_{time.time_ns():x}"),)
        turn = self._model.run(request, policies)
        try:
            while not turn.run.finished:
                for event in await turn.run.read(FOREVER):
                    if isinstance(event, TurnFailed):
                        raise BackendFault(event.failure)
                    if isinstance(event, Usage):
                        self.spend(event)
                    turn.encoder.feed(event)
        finally:
            turn.run.close()
        made = [item for item in read_items(turn.encoder.output) if getattr(item, "type", "") == "compaction"]
        if not made:
            raise BackendFault(Failure(502, "no_summary", "The model gave no summary of the conversation."))
        return [*made]


class Step:
    """One turn being taken in: deltas go to the watcher, calls are started, items are kept."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._runtime = loop.runtime()
        self._call: CallStarted | None = None
        self._pieces: list[str] = []
        self._said: list[str] = []
        self._notes = 0
        self._calls = 0
        self.reason: Reason = "stop"

    async def take(self, turn: Turn) -> int:
        """Take the whole turn in. Whatever its end is, the history is whole when this returns or raises."""
        broken: Failure | None = None
        try:
            broken = await self._read(turn)
        except asyncio.CancelledError:
            self._runtime.cancel()
            await self._settle(turn)
            raise
        except ToolwireError as error:
            broken = error.failure
        finally:
            turn.run.close()
        await self._settle(turn)
        if broken is not None:
            raise BackendFault(broken)
        if self._said:
            self._loop.said("".join(self._said))
        return self._calls

    async def _read(self, turn: Turn) -> Failure | None:
        """Read to the end; why it failed, if it did."""
        run, seen = turn.run, False
        while not run.finished:
            for event in await run.read(FOREVER):
                if isinstance(event, TurnFailed):
                    self._tell_notes(turn)
                    return event.failure
                turn.encoder.feed(event)
                self._see(event)
            if not seen:
                seen = True
                self._loop.saw_limits(limits_in(run.headers))
            await self._loop.room()
        self._loop.saw_limits(limits_in(run.headers))  # a worker tells of them at the end
        self._tell_notes(turn)
        await run.finish()
        await self._loop.look_at_usage()
        return None

    async def _settle(self, turn: Turn) -> None:
        """Wait for what was started, and keep items and results."""
        results = await self._runtime.results()
        # An item that is still open is no part of it: a model that is asked again says it again.
        self._loop.keep([*read_items(turn.encoder.output), *(output_item(each.call, each.result) for each in results)])
        if self._runtime.was_cancelled:
            raise asyncio.CancelledError
        if self._runtime.fatal is not None:
            raise self._runtime.fatal

    def _see(self, event: Event) -> None:
        if isinstance(event, events.TextDelta | events.RefusalDelta):
            self._said.append(event.text)
            self._loop.put(happened.TextDelta(event.text))
        elif isinstance(event, events.ReasoningDelta):
            self._loop.put(happened.ReasoningDelta(event.text))
        elif isinstance(event, CallArgs):
            self._pieces.append(event.text)
        elif isinstance(event, CallStarted):
            self._call, self._pieces = event, []
        elif isinstance(event, CallEnded):
            self._end_call(event)
        elif isinstance(event, Usage):
            self._loop.spend(event)
        elif isinstance(event, TurnEnded):
            self.reason = event.reason
        elif isinstance(event, Told) and event.type == "response.output_item.done":
            self._hear_item(event)

    def _end_call(self, event: CallEnded) -> None:
        call, self._call = self._call, None
        if call is None or not event.complete:
            return
        self._start(self._loop.heard(call, "".join(self._pieces)))

    def _hear_item(self, event: Told) -> None:
        """An item that there are no events for: perhaps a command for the shell."""
        fields = msgspec.json.decode(event.data, type=dict[str, msgspec.Raw])
        item = read_item(fields.get("item", b"{}"))
        if isinstance(item, LocalShellCallItem):
            self._start(ToolCall(LOCAL_SHELL, item.call_id, item.action))

    def _start(self, call: ToolCall) -> None:
        self._calls += 1
        self._loop.put(happened.CallStarted(call.call_id, call.name, call.text))
        self._runtime.start(call)

    def _tell_notes(self, turn: Turn) -> None:
        for note in turn.run.assembly.tally.notes[self._notes :]:
            self._notes += 1
            self._loop.put(happened.Noted(note.code, note.subject))
