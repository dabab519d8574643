"""What an agent does, in a terminal: text as it comes, a line for every tool that runs, and the sums at the end.

Whole lines are printed for good, and those of the answer are left to the terminal to wrap, so that they can be copied;
what still changes stands below them. Where nothing can be moved about, such as in a file, only the former is written,
and the answer as it comes. Nothing that a model or a tool says steers the terminal.
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
from toolwire.agent.events import AgentEvent, RateLimit, Tokens
from toolwire.agent.words import LONGEST_ERROR, Call, Tail, outcome, refusal, short, span, told
from toolwire.core.terminal import clean

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPINS = 10
"""Pictures a second."""
SOON = 0.5
"""Seconds of silence that need no explanation."""


class View:
    """Shows one task. `refresh` is to be called some times a second."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self._clock = clock
        self._line = ""  # of the answer, not whole yet
        self._blank = ""
        self._model = "the model"
        self._waits_for: tuple[str, float] | None = None
        self._thoughts = Tail()
        self._thought = ("", "", 0)  # the part of it that goes on
        self._calls: dict[str, Call] = {}
        self._noted: set[str] = set()
        self._total = Tokens()
        self._is_resumed = False
        self._is_cancelling = False
        self._has_said = False  # something, in the last turn
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
        """Take away what still changes, and leave the terminal as it was."""
        self._is_closed = True
        try:
            self._finish_line()
        finally:
            self._stop()

    def _start(self) -> None:
        if self.console.is_interactive and not self._is_closed:
            # What others write to stderr stands above what still changes, unless it goes elsewhere.
            redirects, moving = bool(sys.stderr and sys.stderr.isatty()), _Moving(self._rows)
            self._live = Live(
                moving, console=self.console, auto_refresh=False, transient=True, redirect_stderr=redirects
            )
            self._live.start()

    def _stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def refresh(self) -> None:
        if self._live is not None:
            self._live.refresh()

    @contextmanager
    def asking(self, call_id: str) -> Generator[None]:
        """Leave the terminal to a question about a call. Nothing is to be shown meanwhile."""
        self._finish_line()
        self._stop()
        try:
            yield
        finally:
            self._start()
            self._answered.add(call_id)  # of which we may not have heard yet
            call = self._calls.get(call_id)
            if call is not None and call.began is not None:
                call.began, call.is_asked = self._clock(), False

    def wait_for(self, what: str) -> None:
        """Say, as long as nothing else is to be said, what is being waited for."""
        if not self._is_cancelling:
            self._waits_for = (f"waiting for {what}", self._clock())

    def resume(self, total: Tokens) -> None:
        """The session has had these tokens before."""
        self._total, self._is_resumed = total, True

    def cancelling(self) -> None:
        """Say of whatever still runs that it is to end."""
        self._is_cancelling = True
        self._waits_for = ("cancelling", self._clock())
        self.refresh()

    def show(self, event: AgentEvent) -> None:
        match event:
            case events.TextDelta(text):
                self._has_said = self._has_said or bool(text.strip())
                self.wait_for(self._model)
                self._say(text)
            case events.ReasoningDelta():
                self._think(event)
            case events.CallStarted(id, name, arguments):
                self._calls[id] = Call(name, told(arguments))
            case events.ToolStarted(id, name):
                self._calls.setdefault(id, Call(name, "")).began = self._clock()
            case events.ApprovalAsked(id):
                self._calls.setdefault(id, Call(event.name, "")).is_asked = id not in self._answered
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
                self._has_said = False
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

    # What is printed for good

    def note(self, text: str) -> None:
        """Something that is not of the model."""
        self._print(Text(f"· {clean(text)}", "yellow"))

    def _print(self, text: Text) -> None:
        self._finish_line()
        self.console.print(text, soft_wrap=not self.console.is_interactive)

    def _say(self, text: str) -> None:
        if self.console.is_interactive:
            self._say_in_rows(clean(text))
            return
        text = clean(text)
        self.console.file.write(text)
        self.console.file.flush()
        self._line = (self._line + text).rpartition("\n")[2]

    def _say_in_rows(self, text: str) -> None:
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

    def _think(self, event: events.ReasoningDelta) -> None:
        part = (event.item_id, event.kind, event.index)
        self._thoughts.add(event.text if part == self._thought else f"\n{event.text}")
        self._thought = part
        if self._waits_for is not None and not self._is_cancelling:
            self._waits_for = ("thinking", self._waits_for[1])

    def _end_call(self, event: events.CallEnded) -> None:
        self.wait_for(self._model)
        call = self._calls.pop(event.call_id, Call(event.name, ""))
        time = f"{event.seconds:.1f} s" if event.seconds is not None else ""
        refused = refusal(event.name, event.result) if event.failed else ""
        if refused:
            self._print(self._row(("✗", "red"), call, "", refused, "yellow"))
        elif event.failed:
            self._print(self._row(("✗", "red"), call, time, short(outcome(event.result), LONGEST_ERROR), ""))
        else:
            self._print(self._row(("✓", "green"), call, time, outcome(event.result, call.output.line), "dim"))

    def _end(self, event: events.TaskEnded) -> None:
        self._waits_for = None
        self._calls.clear()
        if event.reason == "failed":
            self._print(Text.assemble(("failed:", "red"), " ", clean(event.error) or "nobody knows why"))
        elif event.reason != "done":
            why = f": {clean(event.error)}" if event.error else ""
            self._print(Text(f"stopped: {event.reason}{why}", "yellow"))
        elif not self._has_said:
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

    # What still changes

    def _rows(self) -> Iterator[Text]:
        if self._live is None:
            return
        below = [*self._rows_of_calls()]
        yield from self._open_rows(self.console.height - len(below))
        yield from below

    def _open_rows(self, most: int) -> Iterator[Text]:
        """The last rows of a line that is not whole yet, as the terminal will wrap it."""
        width = self.console.width
        start = max(0, len(self._line) - width * self.console.height) // width * width
        for row in chop_cells(self._line[start:], width)[-max(1, most) :]:
            yield Text(row)

    def _rows_of_calls(self) -> Iterator[Text]:
        now = self._clock()
        spinner = (SPINNER[int(now * SPINS) % len(SPINNER)], "cyan")
        for call in self._calls.values():
            if call.is_asked:
                yield self._row(("?", "yellow"), call, "", "", "dim")
            elif call.began is None:
                yield self._row(("·", "dim"), call, "", "", "dim")
            else:
                said = "cancelling" if self._is_cancelling else call.output.line
                yield self._row(spinner, call, f"{now - call.began:.1f} s", said, "dim")
        what, began = self._waits_for or ("", now)
        is_quiet = now - began > SOON and not self._line
        if what and not self._calls and (is_quiet or self._is_cancelling):
            thought = self._thoughts.line if what == "thinking" else ""
            yield self._row(spinner, Call("", what), f"{now - began:.1f} s", thought, "dim")

    def _row(self, mark: tuple[str, str], call: Call, time: str, rest: str, style: str) -> Text:
        return call.row(mark, time, rest, style, self.console.width if self.console.is_interactive else 0)


class _Moving:
    """Rows that are made anew each time they are drawn."""

    def __init__(self, rows: Callable[[], Iterator[Text]]) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from self._rows()
