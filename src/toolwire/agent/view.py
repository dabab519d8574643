"""Shows the events of an agent in a terminal: text as it arrives, a row for each running tool, token counts at the end.

Complete lines are printed permanently, and the terminal wraps those of the answer, so that they can be copied; changing
rows are drawn below them. In a file only permanent lines are written. Control characters from models and tools are
removed.
"""

import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from rich.cells import chop_cells
from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.text import Text

from toolwire.agent import events
from toolwire.agent.display import MAX_ERROR_CHARS, CallRow, Tail, argument_summary, outcome, refusal, short, span
from toolwire.agent.events import AgentEvent, RateLimit, Tokens
from toolwire.core.terminal import clean

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPINS = 10
"""Spinner frames per second."""
SOON = 0.5
"""Seconds of silence after which the view shows what it waits for."""


class View:
    """Shows one task; `refresh` must be called several times a second."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self._clock = clock
        self._line = ""  # an unfinished line of the answer
        self._blank = ""
        self._model = "the model"
        self._waits_for: tuple[str, float] | None = None
        self._reasoning = Tail()
        self._reasoning_part = ("", "", 0)  # the part that the last delta belonged to
        self._calls: dict[str, CallRow] = {}
        self._noted: set[str] = set()
        self._total = Tokens()
        self._is_resumed = False
        self._is_cancelling = False
        self._has_text = False  # in the last turn
        self._limits: tuple[RateLimit, ...] = ()
        self._answered: set[str] = set()
        self._live: Live | None = None
        self._is_closed = False

    def __enter__(self) -> "View":
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the changing rows and restore the terminal."""
        self._is_closed = True
        try:
            self._finish_line()
        finally:
            self._stop()

    def _start(self) -> None:
        if self.console.is_interactive and not self._is_closed:
            # What others write to stderr stands above what still changes, unless it goes elsewhere.
            redirects = bool(sys.stderr and sys.stderr.isatty())
            self._live = Live(self, console=self.console, auto_refresh=False, transient=True, redirect_stderr=redirects)
            self._live.start()

    def _stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def refresh(self) -> None:
        """Draw the changing rows again."""
        if self._live is not None:
            self._live.refresh()

    @contextmanager
    def asking(self, call_id: str) -> Generator[None]:
        """Pause drawing while the user is asked about a call."""
        self._finish_line()
        self._stop()
        try:
            yield
        finally:
            self._start()
            self._answered.add(call_id)  # its event may not have arrived yet
            call = self._calls.get(call_id)
            if call is not None and call.began is not None:
                call.began, call.is_asked = self._clock(), False

    def wait_for(self, what: str) -> None:
        """Show what is being waited for while nothing else is shown."""
        if not self._is_cancelling:
            self._waits_for = (f"waiting for {what}", self._clock())

    def resume(self, total: Tokens) -> None:
        """Show a resumed session that has used these tokens."""
        self._total, self._is_resumed = total, True

    def cancelling(self) -> None:
        """Show that everything is being cancelled."""
        self._is_cancelling = True
        self._waits_for = ("cancelling", self._clock())
        self.refresh()

    def show(self, event: AgentEvent) -> None:
        """Show an event."""
        match event:
            case events.TextDelta(text):
                self._has_text = self._has_text or bool(text.strip())
                self.wait_for(self._model)
                self._write_text(text)
            case events.ReasoningDelta():
                self._add_reasoning(event)
            case events.CallStarted(id, name, arguments):
                self._calls[id] = CallRow(name, argument_summary(arguments))
            case events.ToolStarted(id, name):
                self._calls.setdefault(id, CallRow(name, "")).began = self._clock()
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
        self.refresh()

    def _show_progress(self, event: AgentEvent) -> None:
        match event:
            case events.TaskStarted(_, model):
                self._model = model
            case events.TurnStarted():
                self._has_text = False
                self.wait_for(self._model)
            case events.TurnEnded():
                self.wait_for(self._model)
            case events.Retrying(attempt, most, seconds, reason):
                self.note(f"asking again, {attempt} of {most}, in {seconds:.1f} s: {reason}")
                self.wait_for(self._model)
            case events.Compacted(before, after):
                self.note(f"the conversation was summarised: {before} items are {after} now")
            case events.Noted(code, subject) if code not in self._noted:  # most come with every turn
                self._noted.add(code)
                self.note(f"note: {code} {subject}".rstrip())
            case _:
                pass

    # Permanent lines

    def note(self, text: str) -> None:
        """Print a remark that does not come from the model."""
        self._print(Text(f"· {clean(text)}", "yellow"))

    def _print(self, text: Text) -> None:
        self._finish_line()
        self.console.print(text, soft_wrap=not self.console.is_interactive)

    def _write_text(self, text: str) -> None:
        if self.console.is_interactive:
            self._print_lines(clean(text))
            return
        text = clean(text)
        self.console.file.write(text)
        self.console.file.flush()
        self._line = (self._line + text).rpartition("\n")[2]

    def _print_lines(self, text: str) -> None:
        *lines, last = (self._blank + self._line + text).expandtabs().split("\n")
        self._line = self._blank = ""
        while lines and not lines[-1] and not last:  # blank lines wait for what comes after them
            lines.pop()
            self._blank += "\n"
        for line in lines:
            self.console.print(Text(line), soft_wrap=True)
        self._line = last

    def _finish_line(self) -> None:
        line, self._line = self._line, ""
        self._blank = ""
        if line and self.console.is_interactive:
            self.console.print(Text(line), soft_wrap=True)
        elif line:
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
        refused = refusal(event.name, event.result) if event.failed else ""
        if refused:
            self._print(self._row(("✗", "red"), call, "", refused, "yellow"))
        elif event.failed:
            self._print(self._row(("✗", "red"), call, time, short(outcome(event.result), MAX_ERROR_CHARS), ""))
        else:
            self._print(self._row(("✓", "green"), call, time, outcome(event.result, call.output.line), "dim"))

    def _end(self, event: events.TaskEnded) -> None:
        self._waits_for = None
        self._calls.clear()
        if event.reason == "failed":
            self._print(Text.assemble(("failed:", "red"), " ", clean(event.error) or "nobody knows why"))
        elif event.reason != "done":
            reason = f": {clean(event.error)}" if event.error else ""
            self._print(Text(f"stopped: {event.reason}{reason}", "yellow"))
        elif not self._has_text:
            self._print(Text("(no answer)", "dim"))
        self._print(Text(clean(self._sums()), "dim"))

    def _sums(self) -> str:
        total = self._total
        whole = " in the whole session" if self._is_resumed else ""
        parts = [f"{total.input:,} tokens in ({total.cached:,} cached), {total.output:,} out{whole}"]
        for limit in self._limits:
            windows = [window for window in (limit.primary, limit.secondary) if window is not None]
            parts += [f"{limit.name} {span(window.window_minutes)}: {window.used_percent:g}%" for window in windows]
        return " · ".join(parts)

    # Changing rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """The rows, computed each time they are drawn."""
        if self._live is None:
            return
        below = [*self._rows_of_calls()]
        yield from self._open_rows(self.console.height - len(below))
        yield from below

    def _open_rows(self, most: int) -> Iterator[Text]:
        """The last rows of an unfinished line, as the terminal will wrap it."""
        width = self.console.width
        start = max(0, len(self._line) - width * self.console.height) // width * width
        for row in chop_cells(self._line[start:], width)[-max(1, most) :]:
            yield Text(row)

    def _rows_of_calls(self) -> Iterator[Text]:
        now = self._clock()
        spinner = (SPINNER[int(now * SPINS) % len(SPINNER)], "cyan")
        for call in self._calls.values():
            if call.is_asked or call.began is None:
                mark = ("?", "yellow") if call.is_asked else ("·", "dim")
                yield self._row(mark, call, "", "", "dim")
            else:
                status = "cancelling" if self._is_cancelling else call.output.line
                yield self._row(spinner, call, f"{now - call.began:.1f} s", status, "dim")
        what, began = self._waits_for or ("", now)
        is_quiet = now - began > SOON and not self._line
        if what and not self._calls and (is_quiet or self._is_cancelling):
            rest = self._reasoning.line if what == "thinking" else ""
            yield self._row(spinner, CallRow("", what), f"{now - began:.1f} s", rest, "dim")

    def _row(self, mark: tuple[str, str], call: CallRow, time: str, rest: str, style: str) -> Text:
        return call.row(mark, time, rest, style, self.console.width if self.console.is_interactive else 0)
