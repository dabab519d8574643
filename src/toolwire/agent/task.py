"""One task: the work on one prompt, turn by turn, until the model has nothing left to do.

A task retries a stream that fails, and summarises a history that no longer fits into the model's context window.
The shared tool loop (`turns/tools`) handles limits, calls and repeated failures.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import msgspec

from toolwire.agent import events
from toolwire.agent.approval import Policy, refusal_of
from toolwire.agent.events import AgentEvent, RateLimit, TaskEnded, Tokens, ToolOutput
from toolwire.agent.history import AnyItem, OtherItem, newest_items, read_items, size_of, user_message
from toolwire.agent.limits import limits_from_usage
from toolwire.agent.output import FINAL_RESULT
from toolwire.agent.run import CompletedCall
from toolwire.agent.sandbox import SandboxMode
from toolwire.agent.step import Step
from toolwire.backoff import choose_retry_delay
from toolwire.core.errors import CONTEXT_LENGTH_EXCEEDED, BackendFault, Failure, ToolwireError
from toolwire.core.events import TurnFailed, Usage
from toolwire.core.text import join_surrogates
from toolwire.core.tokens import CHARS_PER_TOKEN
from toolwire.dialects.responses import compaction
from toolwire.turns.tools.call import ToolCall
from toolwire.turns.tools.calls import CallHooks, Finished, shorten
from toolwire.turns.tools.concurrency import call_function
from toolwire.turns.tools.loop import REPEATED_CALLS, Limits, ToolLoop
from toolwire.turns.tools.registry import Context, Result, Tool, as_result, declare
from toolwire.upstream.credentials import inherit_environment

if TYPE_CHECKING:
    from toolwire.agent.runner import Runner

Answer = TypeVar("Answer")

MAX_QUEUED_EVENTS = 1600
"""Queued events at which the stream is paused."""
MIN_CONTEXT_WINDOW = 2048
"""Tokens; models that support tools have larger context windows."""
CONTENT_TOO_LARGE = 413
MAX_HALVINGS = 6
"""Maximum number of times that a history is halved because it is too long to be summarised."""
USAGE_INTERVAL_SECONDS = 60.0
"""Seconds between two requests for the usage of an account."""
MAX_RESULT_CHARS = 64_000_000
"""Characters of results that `Task.calls` keeps in full; further results are shortened."""
MAX_SHORTENED_CHARS = 1000


class AgentConfig(msgspec.Struct, frozen=True):
    """How an agent works. Raises `ValueError` for an unknown `approve` and for negative `retries`."""

    instructions: str = ""
    effort: str = ""
    limits: Limits = Limits()
    retries: int = 5
    longest_wait: float = 600.0
    """The longest pause before a retry that a server may ask for, in seconds."""
    idle: float = 0.0
    """Seconds without an event after which a stream counts as broken; 0: the `[timeouts]` of the settings."""
    context_window: int = 0
    """The model's context window in tokens; 0: as its backend's settings or its server say."""
    compact_at: float = 0.9
    """The share of the context window at which the history is summarised."""
    approve: Policy = "on-write"
    """When the user is asked before a call runs."""
    read_only: bool = False
    """Whether calls that may change something are refused."""
    sandbox: SandboxMode = "off"
    """What limits the commands of the built-in tools."""
    network: bool = False
    """Whether commands in a sandbox have a network."""

    def __post_init__(self) -> None:
        if self.approve not in get_args(Policy):
            raise ValueError(f"approve: {self.approve!r} is not one of {', '.join(get_args(Policy))}")
        if self.retries < 0:
            raise ValueError(f"retries: {self.retries} is less than 0")


class EventQueue:
    """The events of one task. A slow reader pauses the stream instead of filling memory."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[AgentEvent] = asyncio.Queue()
        self._taken = asyncio.Event()

    def put(self, event: AgentEvent) -> None:
        """Add an event without waiting; tool output is dropped while the queue is at twice its limit."""
        if not isinstance(event, ToolOutput) or self._events.qsize() < 2 * MAX_QUEUED_EVENTS:
            self._events.put_nowait(event)

    async def wait_for_room(self) -> None:
        """Wait until the queue is below its limit."""
        while self._events.qsize() >= MAX_QUEUED_EVENTS:
            self._taken.clear()
            await self._taken.wait()

    async def __aiter__(self) -> AsyncIterator[AgentEvent]:
        """The events, up to the end of the task."""
        is_over = False
        while not is_over:
            event = await self._events.get()
            self._taken.set()
            is_over = isinstance(event, TaskEnded)
            yield event


class Task:
    """Works on the last prompt of a session, and reports to its queue of events."""

    def __init__(self, runner: "Runner") -> None:
        self.model = runner.model
        self.session = runner.session
        self.output = runner.output
        self.events = EventQueue()
        self.put = self.events.put
        self.text = ""
        """The model's last text."""
        self.calls: list[CompletedCall] = []
        """The calls so far, in the order in which the model made them."""
        self.error: BaseException | None = None
        """Why the task failed, if it did."""
        self.tools = ToolLoop(runner.registry, self._make_hooks(runner), runner.config.limits)
        self._config = runner.config
        self._result_chars = 0  # of `calls`
        self._first_item = len(self.session.history)  # index of the first item that the task adds
        self._was_summarised = False  # by this task, and the window has been full ever since
        self._rate_limits: tuple[RateLimit, ...] = ()
        self._usage_read_at = float("-inf")

    @property
    def items(self) -> tuple[AnyItem, ...]:
        """The items that the task added to the history; once a summary has replaced earlier ones, all items."""
        return tuple(self.session.history.items[self._first_item :])

    # Work

    def close(self, working: "asyncio.Task[None]") -> None:
        """End the queue of events if the work raised an error, or was cancelled before it began."""
        error = None if working.cancelled() else working.exception()
        if working.cancelled() or error is not None:
            self.error = error
            self.put(TaskEnded("cancelled" if error is None else "failed", "", Tokens(), str(error or "")))

    async def run(self, work: Callable[[], Awaitable[str]]) -> None:
        """Run `work` or `compact` to its end, which the last event reports."""
        error = ""
        try:
            async with asyncio.timeout(self._config.limits.seconds or None):
                reason = await work()
        except asyncio.CancelledError:
            reason = "cancelled"
        except TimeoutError:
            reason = "seconds"
        except ToolwireError as fault:
            reason, error = "failed", str(fault)
            self.error = fault
        if reason == REPEATED_CALLS:
            error = self.tools.repeats.reason
        self.put(TaskEnded(reason, self.text, self.tools.usage or Usage(), error))

    async def compact(self) -> str:
        """Replace the whole history with a summary, and return the reason `done`."""
        self._replace_history(await self._summarise())
        return "done"

    async def work(self) -> str:
        """Ask the model until it has answered or a limit is reached, and return the reason for the end."""
        tools = self.tools
        while not (stop_reason := tools.stop_reason):
            if not self._was_summarised and await self._is_window_full():
                await self._compact(keeps_work=True)
            number = tools.begin_turn()
            self.put(events.TurnStarted(number))
            step = await self._take_turn()
            self.put(events.TurnEnded(number, step.calls, step.response_id))
            self.model.learn_window(step.context_window.tokens)
            if self._is_last(step):
                return "filter" if not step.calls and step.reason == "filter" else "done"
            if not step.calls and step.reason != "length":
                continue  # the model has been reminded to give its output
            is_full = step.context_window.is_full or await self._is_window_full()
            if not step.calls and (self._was_summarised or not is_full):
                return "length"
            self._was_summarised = self._was_summarised and is_full
            if not step.calls:
                await self._compact(keeps_work=False)
        return stop_reason

    def _is_last(self, step: Step) -> bool:
        """Whether the model has answered. If it owes a typed output, adds a reminder to the history."""
        output = self.output
        has_answered = not step.calls and step.reason != "length"
        if output is None or (has_answered and step.reason == "filter"):
            return has_answered
        reminder = output.take_text(step.text) if has_answered and not output.outputs else ""
        output.check()
        if reminder:
            self.session.add([user_message(reminder)])
        return bool(output.outputs)

    async def _take_turn(self) -> Step:
        """Take one turn. If the history does not fit into the model's window, it is summarised, once."""
        try:
            return await self._with_retries(self._step)
        except BackendFault as fault:
            history = self.session.history
            is_only_prompt = len(history) <= len(history.tail()[:1])  # which a summary does not replace
            if not _is_overflow(fault) or is_only_prompt:
                raise
        await self._compact(keeps_work=False)
        return await self._with_retries(self._step)

    async def _with_retries(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask the model, and ask again if its stream fails."""
        attempt = 0
        while True:
            try:
                return await ask()
            except BackendFault as fault:
                attempt += 1
                seconds = choose_retry_delay(fault.failure, attempt, self._config.longest_wait)
                if seconds is None or attempt > self._config.retries:
                    raise
                reason = fault.failure.message
                self.put(events.Retrying(attempt, self._config.retries, round(seconds, 3), reason))
                await asyncio.sleep(seconds)

    async def _step(self) -> Step:
        turn = self.model.run(self.model.request(self._fields()), owner=self.session.id)
        step = Step(self, turn)
        await step.take()
        return step

    def _fields(self) -> Mapping[str, object]:
        """The request, as a body of the Responses API."""
        registry = self.tools.registry
        registry.refresh()
        effort = self._config.effort
        fields = {
            "input": self.session.history.raw,
            "instructions": join_surrogates("\n\n".join(filter(None, (self._config.instructions, registry.advice)))),
            "reasoning": {"effort": effort, "summary": "auto"} if effort else None,
            "tools": [declare(tool) for tool in registry],
        }
        return {name: value for name, value in fields.items() if value}

    # Compaction

    async def _is_window_full(self) -> bool:
        """Whether the last turn has nearly filled the model's window. Its size is looked up only if it can matter."""
        used, window = self.session.last.total, self._config.context_window
        if not window and used >= MIN_CONTEXT_WINDOW * self._config.compact_at:
            window = await self.model.context_window()
        return bool(window) and used >= window * self._config.compact_at

    async def _compact(self, *, keeps_work: bool) -> None:
        """Replace the history with a summary, but keep the last prompt, and the work on it if that is small."""
        tail = self.session.history.tail()
        summary = await self._summarise()
        window = self._config.context_window or await self.model.context_window()
        is_small = keeps_work and size_of(tail) // CHARS_PER_TOKEN < window // 5
        self._replace_history([*summary, *(tail if is_small else tail[:1])])
        self._was_summarised = True

    def _replace_history(self, items: Sequence[AnyItem]) -> None:
        before = len(self.session.history)
        self._first_item = 0
        self.session.replace(items)
        self.put(events.Compacted(before, len(items)))

    async def _summarise(self) -> Sequence[AnyItem]:
        """Let the model summarise the history in one item; if it is too long for that, only its newest part."""
        history = self.session.history
        items, chars = list(history.items), size_of(history.items)
        for _ in range(MAX_HALVINGS):
            try:
                return await self._with_retries(partial(self._summarise_items, items))
            except BackendFault as fault:
                if not _is_overflow(fault):
                    raise
            chars //= 2
            items = newest_items(history.items, chars)
        return await self._with_retries(partial(self._summarise_items, items))

    async def _summarise_items(self, items: Sequence[AnyItem]) -> Sequence[AnyItem]:
        fields = {**self._fields(), "input": [*(item.raw for item in items), {"type": "compaction_trigger"}]}
        policies: tuple[Callable[[], Any], ...] = ()
        request = self.model.request(fields)
        if not self.model.compacts:
            request = compaction.make_summary_request(request)
            policies = (partial(compaction.ReplaceWithCompaction, f"cmp_{time.time_ns():x}"),)
        turn = self.model.run(request, policies, owner=self.session.id)
        try:
            async for event in turn:
                if isinstance(event, TurnFailed):
                    raise BackendFault(event.failure)
                if isinstance(event, Usage):
                    self.spend(event)
                turn.feed(event)
        finally:
            turn.run.close()
        output = read_items(turn.encoder.output)
        made = [item for item in output if isinstance(item, OtherItem) and item.type == "compaction"]
        if not made:
            raise BackendFault(Failure(502, "no_summary", "The model gave no summary of the conversation."))
        return made

    # Calls

    def log_calls(self, finished: Iterable[Finished]) -> None:
        """Record finished calls; results beyond `MAX_RESULT_CHARS` are shortened."""
        for each in finished:
            call, text = each.call, each.result.text
            self._result_chars += len(text)
            text = text if self._result_chars <= MAX_RESULT_CHARS else shorten(text, MAX_SHORTENED_CHARS)
            seconds = each.seconds and round(each.seconds, 3)
            self.calls.append(CompletedCall(call.call_id, call.name, call.text, text, each.result.failed, seconds))

    def _make_hooks(self, runner: "Runner") -> CallHooks:
        """The functions around calls: approval, the user's hooks and the reports. The output call has reports only."""
        settings, config, calls = runner.model.settings, runner.config, runner.calls
        exempt = FINAL_RESULT if self.output is not None else ""
        inherit = partial(inherit_environment, settings.secret_variables, settings.agent.inherit)
        shared = Context(
            runner.cwd,
            writable=not config.read_only,
            approved=True,
            inherit=inherit,
            sandbox=runner.sandbox.argv(runner.cwd),
            deps=calls.deps,
            changed=runner.changes.record,
        )

        def make_context(call: ToolCall) -> Context:
            def emit(text: str) -> None:
                self.put(ToolOutput(call.call_id, join_surrogates(text)))

            return msgspec.structs.replace(shared, emit=emit, spend=spend)

        def spend(usage: Tokens) -> None:
            self.tools.spend(usage)
            self.session.spend_elsewhere(usage)

        async def ask(tool: Tool, call: ToolCall) -> bool | str:
            assert calls.approver is not None
            self.put(events.ApprovalAsked(call.call_id, call.name, call.text))
            return await call_function(calls.approver, tool, call)

        async def approve(tool: Tool, call: ToolCall) -> str:
            asking = ask if calls.approver is not None else None
            return "" if call.name == exempt else await refusal_of(call, tool, shared, config.approve, asking)

        async def before(call: ToolCall, context: Context) -> ToolCall | Result:
            if calls.before is None or call.name == exempt:
                return call
            changed = await call_function(calls.before, call, context)
            return call if changed is None else changed if isinstance(changed, ToolCall) else as_result(changed)

        async def after(call: ToolCall, result: Result, context: Context) -> Result:
            if calls.after is None or call.name == exempt:
                return result
            replaced = await call_function(calls.after, call, result, context)
            return result if replaced is None else as_result(replaced)

        def report_start(call: ToolCall) -> None:
            self.put(events.ToolStarted(call.call_id, call.name))

        def report_result(finished: Finished) -> None:
            call, result = finished.call, finished.result
            seconds = finished.seconds and round(finished.seconds, 3)
            self.put(events.CallEnded(call.call_id, call.name, result.text, result.failed, seconds))

        return CallHooks(make_context, report_start, report_result, approve, before, after)

    # Usage

    def spend(self, usage: Tokens) -> None:
        """Count the tokens of a turn, for the task and for its session."""
        self.tools.spend(usage)
        self.session.spend(usage)
        self.put(events.UsageUpdated(usage, self.session.usage))

    def report_limits(self, limits: tuple[RateLimit, ...]) -> None:
        """Report the account's rate limits, if they have changed."""
        if limits and limits != self._rate_limits:
            self._rate_limits = limits
            self.put(events.LimitsUpdated(limits))

    async def check_usage(self) -> None:
        """Ask the server what the account has used, at most once every `USAGE_INTERVAL_SECONDS`."""
        now = time.monotonic()
        if now - self._usage_read_at < USAGE_INTERVAL_SECONDS:
            return
        self._usage_read_at = now
        usage = await self.model.usage()
        if usage:
            self.report_limits(limits_from_usage(usage))


def _is_overflow(fault: BackendFault) -> bool:
    """Whether the request was too long for the model, or too large for its server."""
    return fault.failure.code == CONTEXT_LENGTH_EXCEEDED or fault.failure.status == CONTENT_TOO_LARGE
