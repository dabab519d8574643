"""Shows the events of an agent in a terminal: text as it arrives, a row for each running tool, token counts at the end.

Complete lines are permanent. Rows that change are drawn below them, at a fixed rate and not with every event. If the
answer goes to a pipe, it is written there alone, when it is complete, and everything else is shown here, including text
before a call. Control characters from models and tools are removed.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TextIO

from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderableType
from rich.segment import Segment, Segments
from rich.text import Text

from toolwire.agent import events
from toolwire.agent.events import AgentEvent, RateLimit, Tokens
from toolwire.agent.sandbox import HINT
from toolwire.agent.terminal.display import (
    MAX_ERROR_CHARS,
    CallRow,
    Tail,
    argument_summary,
    describe_outcome,
    describe_refusal,
    describe_window,
    shorten_line,
)
from toolwire.agent.terminal.markdown import MarkdownStream
from toolwire.core.display import clean

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
DRAWS_PER_SECOND = 10
SILENCE_SECONDS = 0.5
"""Seconds without an event after which the view shows what it waits for."""


class Canvas(Protocol):
    """Where a view is drawn: permanent lines, and below them rows that change."""

    console: Console
    moves: bool
    """Whether rows can be redrawn."""

    @property
    def room(self) -> int:
        """The number of rows that can be drawn."""
        ...

    def start(self, rows: ConsoleRenderable | None) -> None:
        """Begin to draw these rows, which are computed each time; None draws none."""
        ...

    def stop(self) -> None:
        """Remove the changing rows, and draw none until `start`."""
        ...

    def draw(self, lines: Sequence[ConsoleRenderable]) -> None:
        """Print permanent lines, and draw the rows below them."""
        ...

    def start_question(self) -> None:
        """Prepare for a question; `start` is called after its answer."""
        ...

    async def ask(self, question: str) -> str:
        """Ask a question, and return the line that answers it."""
        ...


def print_lines(console: Console, lines: Sequence[ConsoleRenderable]) -> None:
    """Print lines without cropping them: the terminal wraps the lines that rich does not."""
    if lines:
        console.print(Group(*lines), end="", crop=False, soft_wrap=not console.is_interactive)


class View:
    """Shows one task after the other; the owner runs `keep_refreshing` meanwhile.

    `answer` is a file for the answer, which is then not shown here. `verbose` shows notes. `quiet` shows only the
    answer and failures. `sums` prints the token counts after each task.
    """

    def __init__(
        self,
        canvas: Canvas,
        clock: Callable[[], float] = time.monotonic,
        *,
        answer: TextIO | None = None,
        verbose: bool = False,
        quiet: bool = False,
        sums: bool = True,
    ) -> None:
        self.canvas = canvas
        self.console = canvas.console
        self._clock = clock
        self._answer = answer
        self._is_verbose = verbose
        self._is_quiet = quiet
        self._prints_sums = sums
        self._markdown = MarkdownStream()
        self._held: list[str] = []  # text that may be the answer, for its own file
        self._line = ""  # the unfinished last line, if the console is a file
        self._pending: list[ConsoleRenderable] = []
        self._model = "the model"
        self._waits_for: tuple[str, float] | None = None
        self._reasoning = Tail()
        self._reasoning_part = ("", "", 0)  # of the last delta
        self._calls: dict[str, CallRow] = {}
        self._noted: set[str] = set()
        self._total = Tokens()
        self._is_resumed = False
        self._is_cancelling = False
        self._has_text = True  # in the last turn
        self._limits: tuple[RateLimit, ...] = ()
        self._answered: set[str] = set()
        self._is_closed = False
        self._lock = asyncio.Lock()  # held while an event is shown or a question is asked

    def __enter__(self) -> "View":
        self._start_canvas()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the changing rows and restore the terminal."""
        self._is_closed = True
        try:
            self._finish_text()
            self._draw()
        finally:
            self.canvas.stop()

    def _start_canvas(self) -> None:
        if not self._is_closed:
            self.canvas.start(None if self._is_quiet else self)

    async def keep_refreshing(self) -> None:
        """Refresh at a fixed rate, until cancelled."""
        while True:
            await asyncio.sleep(1 / DRAWS_PER_SECOND)
            self.refresh()

    def refresh(self) -> None:
        """Print complete lines, and redraw the changing rows."""
        if not self._is_closed:
            self._pending += self._markdown.complete()
            self._draw()

    def _draw(self) -> None:
        lines, self._pending = self._pending, []
        self.canvas.draw(lines)

    @asynccontextmanager
    async def asking(self, call_id: str) -> AsyncGenerator[None]:
        """Show everything so far, and hold back later events until the questions about a call are answered."""
        async with self._lock:
            self._finish_text()
            self.refresh()
            self.canvas.start_question()
            try:
                yield
            finally:
                self._start_canvas()
                self._answered.add(call_id)  # its event may not have arrived yet
                call = self._calls.get(call_id)
                if call is not None:
                    call.is_asked = False
                    call.began = self._clock() if call.began is not None else None

    def wait_for(self, what: str) -> None:
        """Show what the user waits for, while nothing else is shown."""
        if not self._is_cancelling:
            self._waits_for = (f"waiting for {what}", self._clock())

    def resume(self, total: Tokens) -> None:
        """Start from the token counts of a resumed session."""
        self._total, self._is_resumed = total, True

    def show_cancelling(self) -> None:
        """Show that the task is being cancelled."""
        self._is_cancelling = True
        self._waits_for = ("cancelling", self._clock())
        self.refresh()

    async def show_next(self, event: AgentEvent) -> None:
        """Show an event; if a question is being asked, after its answer."""
        async with self._lock:
            self.show(event)

    def show(self, event: AgentEvent) -> None:
        """Show an event."""
        match event:
            case events.TextDelta(text):
                self._has_text = self._has_text or bool(text.strip())
                self.wait_for(self._model)
                self._add_text(text)
            case events.ReasoningDelta():
                self._add_reasoning(event)
            case events.CallStarted(id, name, arguments):
                self._finish_text()
                self._calls[id] = CallRow(name, argument_summary(arguments))
            case events.ToolStarted(id, name):
                call = self._calls.setdefault(id, CallRow(name, ""))
                call.began, call.is_asked = self._clock(), False
            case events.ApprovalAsked(id):
                self._calls.setdefault(id, CallRow(event.name, "")).is_asked = id not in self._answered
            case events.ToolOutput(id, text) if id in self._calls:
                self._calls[id].output.add(text)
            case events.CallEnded():
                self._end_call(event)
            case events.UsageUpdated(_, total):
                self._total = total
            case events.LimitsUpdated(limits):
                self._limits = limits
            case events.TaskEnded():
                self._end(event)
            case _:
                self._show_progress(event)
        if not self.canvas.moves or isinstance(event, events.TaskEnded):
            self.refresh()

    def _show_progress(self, event: AgentEvent) -> None:
        match event:
            case events.TaskStarted(_, model):
                self._model = model
                self._is_cancelling = False
            case events.TurnStarted():
                self._has_text = False
                self.wait_for(self._model)
            case events.TurnEnded():
                self.wait_for(self._model)
            case events.Retrying(attempt, most, seconds, reason):
                self.note(f"retry {attempt} of {most} in {seconds:.1f} s: {reason}")
                self.wait_for(self._model)
            case events.Compacted(before, after):
                self.note(f"the conversation was summarised: {before} items became {after}")
            case events.Noted(code, subject) if self._is_verbose and code not in self._noted:  # most come every turn
                self._noted.add(code)
                self.note(f"note: {code} {subject}".rstrip())
            case _:
                pass

    # Permanent lines

    def note(self, text: str) -> None:
        """Print a remark of the program."""
        self.print(Text(f"· {clean(text)}", "yellow"))

    def print(self, *lines: ConsoleRenderable, matters: bool = False) -> None:
        """Print lines; a quiet view prints only lines that matter."""
        self._finish_text()
        if matters or not self._is_quiet:
            self._pending += lines

    def _add_text(self, text: str) -> None:
        if self._answer is not None:
            self._held.append(text)
        elif self.canvas.moves:
            self._markdown.feed(text)
        else:
            self._write_plain(text)

    def _write_plain(self, text: str) -> None:
        text = clean(text)
        self.console.file.write(text)
        self.console.file.flush()
        self._line = (self._line + text).rpartition("\n")[2]

    def _finish_text(self) -> None:
        """Print the text so far: something else follows, so it is not the answer."""
        held, self._held = "".join(self._held), []
        if held and not self._is_quiet:
            if self.canvas.moves:
                self._markdown.feed(held)
            else:
                self._write_plain(held)
        self._pending += self._markdown.finish()
        line, self._line = self._line, ""
        if line:
            self.console.file.write("\n")

    def _add_reasoning(self, event: events.ReasoningDelta) -> None:
        part = (event.item_id, event.kind, event.index)
        self._reasoning.add(event.text if part == self._reasoning_part else f"\n{event.text}")
        self._reasoning_part = part
        if self._waits_for is not None and not self._is_cancelling:
            self._waits_for = ("thinking", self._waits_for[1])

    def _end_call(self, event: events.CallEnded) -> None:
        self.wait_for(self._model)
        call = self._calls.pop(event.call_id, CallRow(event.name, ""))
        time = f"{event.seconds:.1f} s" if event.seconds is not None else ""
        refusal = describe_refusal(event.name, event.result) if event.failed else ""
        if refusal:
            self.print(self._row(("✗", "red"), call, "", refusal, "yellow"))
        elif event.failed:
            reason = shorten_line(describe_outcome(event.result.removesuffix(HINT)), MAX_ERROR_CHARS)
            self.print(self._row(("✗", "red"), call, time, reason, ""))
            if event.result.endswith(HINT):
                self.note("the sandbox may have refused this; --network and --sandbox off allow more")
        else:
            self.print(self._row(("✓", "green"), call, time, describe_outcome(event.result, call.output.line), "dim"))

    def _end(self, event: events.TaskEnded) -> None:
        self._waits_for = None
        self._calls.clear()
        if self._answer is not None:
            held, self._held = clean("".join(self._held)), []
            if held.strip():
                self._answer.write(held if held.endswith("\n") else f"{held}\n")
                self._answer.flush()
        if event.reason == "failed":
            words = clean(event.error) or "for an unknown reason"
            self.print(Text.assemble(("failed:", "red"), " ", words), matters=True)
        elif event.reason != "done":
            reason = f": {clean(event.error)}" if event.error else ""
            self.print(Text(f"stopped: {event.reason}{reason}", "yellow"), matters=True)
        elif not self._has_text:
            self.print(Text("(no answer)", "dim"))
        if self._prints_sums:
            self.print(Text(clean(self.sums), "dim"))
        self._answered.clear()
        self._has_text, self._is_cancelling = True, False

    @property
    def sums(self) -> str:
        """The token counts so far, and the limits of the account."""
        total = self._total
        whole = " in the whole session" if self._is_resumed else ""
        parts = [f"{total.input:,} tokens in ({total.cached:,} cached), {total.output:,} out{whole}"]
        for limit in self._limits:
            windows = [window for window in (limit.primary, limit.secondary) if window is not None]
            parts += [
                f"{limit.name} {describe_window(each.window_minutes)}: {each.used_percent:g}%" for each in windows
            ]
        return " · ".join(parts)

    # Changing rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """The rows, computed for each drawing: the end of an unfinished text, and the calls below it."""
        below = [*self._call_rows()]
        rest = self._markdown.rest()
        if rest is not None:
            lines = console.render_lines(rest, options.update(height=None), pad=False)
            for line in lines[-max(1, self.canvas.room - len(below)) :]:
                yield Segments([*line, Segment.line()])
        yield from below

    def _call_rows(self) -> Iterator[Text]:
        now = self._clock()
        spinner = (SPINNER[int(now * DRAWS_PER_SECOND) % len(SPINNER)], "cyan")
        for call in self._calls.values():
            if call.is_asked or call.began is None:
                mark = ("?", "yellow") if call.is_asked else ("·", "dim")
                yield self._row(mark, call, "", "", "dim")
            else:
                status = "cancelling" if self._is_cancelling else call.output.line
                yield self._row(spinner, call, f"{now - call.began:.1f} s", status, "dim")
        what, began = self._waits_for or ("", now)
        is_silent = now - began > SILENCE_SECONDS
        if what and not self._calls and (is_silent or self._is_cancelling):
            rest = self._reasoning.line if what == "thinking" else ""
            yield self._row(spinner, CallRow("", what), f"{now - began:.1f} s", rest, "dim")

    def _row(self, mark: tuple[str, str], call: CallRow, time: str, rest: str, style: str) -> Text:
        return call.row(mark, time, rest, style, self.console.width if self.canvas.moves else 0)
