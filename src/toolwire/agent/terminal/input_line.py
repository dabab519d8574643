"""The input line of an interactive session, with what changes above it, by prompt_toolkit.

The line can be edited all the time, also while a task runs and while a question is asked. What is printed for good goes
above it: the rows are removed, the text is written, and the rows are drawn again, at most as often as the view says.
"""

import asyncio
import io
import sys
import time
from collections.abc import Callable, Sequence

from prompt_toolkit.application import Application
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer, ThreadedCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_completions, has_focus, is_searching
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText, FormattedText
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import (
    ConditionalContainer,
    Dimension,
    Float,
    FloatContainer,
    FormattedTextControl,
    HSplit,
    Layout,
    VerticalAlign,
    Window,
)
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from prompt_toolkit.widgets import SearchToolbar, TextArea
from rich.console import Console, ConsoleRenderable

from toolwire.agent.terminal.canvas import print_lines
from toolwire.core.terminal import clean

MARK = "> "
MENU_ROWS = 8
MAX_INPUT_ROWS = 10
MAX_QUEUED_ROWS = 3
HASTE = 0.4
"""Seconds after a question appears in which Enter is no answer: it may belong to what was typed before."""

STYLE = Style.from_dict(
    {
        "mark": "ansicyan bold",
        "question": "ansiyellow bold",
        "queued": "ansibrightblack",
        "status": "ansibrightblack",
        "auto-suggestion": "ansibrightblack",
    }
)


class _Question:
    """A question that waits for its answer, and what stood in the line before."""

    def __init__(self, text: str, draft: Document) -> None:
        self.text = text
        self.draft = draft
        self.asked = time.monotonic()
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class InputLine:
    """A canvas with an input line below its rows."""

    def __init__(self, completer: Completer, history: History) -> None:
        self.console = Console(file=io.StringIO(), force_terminal=True, force_interactive=True, highlight=False)
        self.on_line: Callable[[str], None] = lambda _: None
        """Called with every line that is entered."""
        self.on_interrupt: Callable[[], None] = lambda: None
        """Called when Ctrl-C is pressed and the line is empty or a task runs."""
        self.queued: Callable[[], Sequence[str]] = list
        """Gives the lines that wait."""
        self.status: Callable[[], str] = str
        """Gives the text of the last row."""
        self._rows: ConsoleRenderable | None = None
        self._drawn = ("", 0)  # the rows as they were drawn last, and their number
        self._question: _Question | None = None
        self._search = SearchToolbar()
        self._input = TextArea(
            completer=ThreadedCompleter(completer),
            history=history,
            auto_suggest=AutoSuggestFromHistory(),
            height=lambda: Dimension(min=1, max=MAX_INPUT_ROWS),
            dont_extend_height=True,
            get_line_prefix=_prefix,
            search_field=self._search,
        )
        self._app: Application[None] = Application(
            layout=Layout(self._container(), focused_element=self._input),
            key_bindings=self._bindings(),
            style=STYLE,
            erase_when_done=True,
            output=_output(),
        )

    async def run(self) -> None:
        """Take lines until `exit` is called or the input ends."""
        try:
            await self._app.run_async(handle_sigint=False)
        except EOFError:  # the terminal is gone
            pass
        finally:
            if self._question is not None:
                self._question.answer.cancel()

    def exit(self) -> None:
        """End the input line."""
        if self._app.is_running and not self._app.is_done:
            self._app.exit()

    @property
    def text(self) -> str:
        """What stands in the line."""
        return self._input.text

    def put(self, text: str) -> None:
        """Put a text into the line, with the cursor behind it."""
        self._input.buffer.document = Document(text)

    async def ask(self, question: str) -> str:
        """The line that answers a question. What stood in the line before is put back afterwards."""
        self._question = asked = _Question(question, self._input.buffer.document)
        self._input.buffer.reset()
        self._app.invalidate()
        try:
            return await asked.answer
        finally:
            self._end_question()

    def _end_question(self) -> None:
        if self._question is not None:
            self._input.buffer.document = self._question.draft
            self._question = None
            self._app.invalidate()

    # The canvas

    @property
    def moves(self) -> bool:
        """Rows can be drawn anew."""
        return True

    @property
    def room(self) -> int:
        """Rows for what changes."""
        return max(1, self.console.height - MAX_INPUT_ROWS - MAX_QUEUED_ROWS - 3)

    def start(self, rows: ConsoleRenderable) -> None:
        """Begin to draw these rows."""
        self._rows = rows

    def stop(self) -> None:
        """Draw no rows any more."""
        self._rows, self._drawn = None, ("", 0)

    def draw(self, lines: Sequence[ConsoleRenderable]) -> None:
        """Print lines above the rows, and draw these."""
        text = self._rendered(lambda: print_lines(self.console, lines))
        if self._rows is not None:
            rows = self._rows
            drawn = self._rendered(lambda: self.console.print(rows, end=""))
            self._drawn = (drawn.removesuffix("\n"), drawn.count("\n"))
        if text and self._app.is_running:
            self._app.renderer.erase()
        if text:
            self._app.output.write_raw(text.replace("\n", "\r\n"))
            self._app.output.flush()
        self._app.invalidate()

    def _rendered(self, write: Callable[[], None]) -> str:
        file = io.StringIO()
        self.console.file = file
        write()
        return file.getvalue()

    # Layout

    def _container(self) -> FloatContainer:
        asks = Condition(lambda: self._question is not None)
        rows = HSplit(
            [
                _text_window(lambda: ANSI(self._drawn[0]), lambda: self._drawn[1]),
                _text_window(self._queued_text, lambda: min(len(self.queued()), MAX_QUEUED_ROWS)),
                ConditionalContainer(_text_window(self._question_text, lambda: None), asks),
                self._input,
                self._search,
                _text_window(lambda: [("class:status", clean(self.status()))], lambda: 1),
                ConditionalContainer(Window(height=MENU_ROWS), has_completions),
            ],
            align=VerticalAlign.TOP,
        )
        menu = CompletionsMenu(max_height=MENU_ROWS, scroll_offset=1)
        return FloatContainer(rows, [Float(menu, xcursor=True, ycursor=True)])

    def _queued_text(self) -> FormattedText:
        shown = [" ".join(clean(line).split()) for line in self.queued()][:MAX_QUEUED_ROWS]
        return FormattedText([("class:queued", "\n".join(f"  queued: {line}" for line in shown))])

    def _question_text(self) -> FormattedText:
        return FormattedText([("class:question", self._question.text if self._question is not None else "")])

    # Keys

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()
        is_typing = has_focus(self._input) & ~is_searching
        keys.add("enter", filter=is_typing)(self._enter)
        keys.add("c-j", filter=is_typing)(_new_line)
        keys.add("escape", "enter", filter=is_typing)(_new_line)
        keys.add("c-c", filter=is_typing)(self._interrupt)
        is_empty = Condition(lambda: not self._input.text)
        keys.add("c-d", filter=is_typing & is_empty)(self._leave)
        keys.add("c-z", filter=is_typing)(self._suspend)
        keys.add("c-l")(self._clear)
        return keys

    def _enter(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None  # it is taken, and one may go on typing
            return
        if buffer.document.current_line_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
            return
        if self._question is not None:
            self._reply(buffer)
        elif buffer.text.strip():
            text = buffer.text
            buffer.reset(append_to_history=True)
            self.on_line(text)

    def _leave(self, _: KeyPressEvent) -> None:
        self.exit()

    def _suspend(self, _: KeyPressEvent) -> None:
        self._app.suspend_to_background()

    def _clear(self, _: KeyPressEvent) -> None:
        self._app.renderer.clear()

    def _reply(self, buffer: Buffer) -> None:
        assert self._question is not None
        answer = self._question.answer
        if time.monotonic() - self._question.asked > HASTE and not answer.done():
            answer.set_result(buffer.text)
            self._end_question()  # at once: what is typed next is no part of the answer

    def _interrupt(self, event: KeyPressEvent) -> None:
        if event.current_buffer.text and not self._question:
            event.current_buffer.reset()
        else:
            self.on_interrupt()


def _output() -> Vt100_Output:
    """The terminal. It is not asked where its cursor is: the answer could be taken for typed keys later."""
    output = Vt100_Output.from_pty(sys.stdout)
    output.enable_cpr = False
    return output


def _text_window(text: Callable[[], AnyFormattedText], rows: Callable[[], int | None]) -> Window:
    """Rows of text that give way where there is too little room."""

    def height() -> Dimension:
        count = rows()
        return Dimension(min=0) if count is None else Dimension(min=0, preferred=count, max=count)

    return Window(FormattedTextControl(text), height=height, dont_extend_height=True, wrap_lines=True)


def _prefix(line: int, wrapped: int) -> AnyFormattedText:
    return [("class:mark", MARK if not line and not wrapped else " " * len(MARK))]


def _new_line(event: KeyPressEvent) -> None:
    event.current_buffer.newline(copy_margin=False)
