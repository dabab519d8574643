"""What an agent does, in a terminal: text as it comes, a line for every tool that runs, and the sums at the end."""

import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.text import Text

from toolwire.agent import events
from toolwire.agent.events import AgentEvent, RateLimit, Tokens

LONGEST = 100
"""Letters of a call or a result that one line shows."""


class View:
    """Shows one task. Whole lines are printed for good; what still changes stands below them."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._line = ""  # of the answer, not whole yet
        self._thinking = False
        self._running: dict[str, tuple[str, float, str, Spinner]] = {}
        self._calls: dict[str, str] = {}
        self._total = Tokens()
        self._limits: tuple[RateLimit, ...] = ()
        self._live: Live | None = None

    def __enter__(self) -> "View":
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._moving, refresh_per_second=10, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, event: AgentEvent) -> None:
        match event:
            case events.TextDelta(text):
                self._say(text)
            case events.ReasoningDelta():
                self._thinking = True
            case events.CallStarted(id, name, arguments):
                self._calls[id] = f"{name} {_short(arguments)}"
            case events.ToolStarted(id, name):
                self._running[id] = (self._calls.get(id, name), self._clock(), "", Spinner("dots"))
            case events.ToolOutput(id, text):
                self._put_out(id, text)
            case events.CallEnded():
                self._end_call(event)
            case events.Retrying(attempt, most, seconds, reason):
                self._note(f"asking again, {attempt} of {most}, in {seconds:.1f} s: {reason}")
            case events.Compacted(before, after):
                self._note(f"the conversation was summarised: {before} items are {after} now")
            case events.UsageUpdated(_, total):
                self._total = total
            case events.LimitsUpdated(limits):
                self._limits = limits
            case events.TaskEnded():
                self._end(event)
            case _:
                pass

    # What is printed for good

    def _say(self, text: str) -> None:
        self._thinking = False
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._console.print(Text(line))

    def _finish_line(self) -> None:
        if self._line:
            self._console.print(Text(self._line))
            self._line = ""

    def _note(self, text: str) -> None:
        self._finish_line()
        self._console.print(f"[yellow]· {escape(text)}[/]")

    def _end_call(self, event: events.CallEnded) -> None:
        self._finish_line()
        shown, *_ = self._running.pop(event.call_id, (self._calls.get(event.call_id, event.name),))
        mark = "[red]✗[/]" if event.failed else "[green]✓[/]"
        self._console.print(f"{mark} {escape(shown)} [dim]{event.seconds:.1f} s · {escape(_short(event.result))}[/]")

    def _end(self, event: events.TaskEnded) -> None:
        self._finish_line()
        if event.reason == "failed":
            self._console.print(f"[red]failed:[/] {escape(event.error)}")
        elif event.reason != "done":
            self._console.print(f"[yellow]stopped: {escape(event.reason)}[/]")
        self._console.print(f"[dim]{escape(self._sums())}[/]")

    def _sums(self) -> str:
        total = self._total
        parts = [f"{total.input:,} tokens in ({total.cached:,} cached), {total.output:,} out"]
        for limit in self._limits:
            windows = [window for window in (limit.primary, limit.secondary) if window is not None]
            parts += [f"{limit.name} {_window(window.window_minutes)}: {window.used_percent:g}%" for window in windows]
        return " · ".join(parts)

    # What still changes

    def _put_out(self, id: str, text: str) -> None:
        if id in self._running:
            name, began, _, spinner = self._running[id]
            last = [line for line in text.splitlines() if line.strip()]
            self._running[id] = (name, began, last[-1] if last else "", spinner)

    def _moving(self) -> RenderableType:
        now = self._clock()
        rows: list[RenderableType] = [Text(self._line)] if self._line else []
        for name, began, output, spinner in self._running.values():
            spinner.update(text=Text.assemble(name, (f" {now - began:.1f} s {_short(output)}", "dim")))
            rows.append(spinner)
        if self._thinking and not rows:
            rows.append(Text("thinking …", style="dim"))
        return Group(*rows)


def _short(text: str) -> str:
    """The text on one short line."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _window(minutes: float | None) -> str:
    if not minutes:
        return "limit"
    return (
        f"{minutes / 1440:g} d" if minutes >= 1440 else f"{minutes / 60:g} h" if minutes >= 60 else f"{minutes:g} min"
    )
