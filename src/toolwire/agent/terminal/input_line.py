"""The input line of an interactive session, with the changing rows above it, by prompt_toolkit.

The line can always be edited, even while a task runs or a question is asked. To print permanent lines, the rows are
erased, the lines are written, and the rows are drawn again.
"""

import asyncio
import io
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from prompt_toolkit.application import Application
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer, ThreadedCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_focus, is_searching
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText
from prompt_toolkit.history import History
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import (
    ConditionalContainer,
    Dimension,
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

from toolwire.agent.terminal.view import print_lines
from toolwire.core.display import clean
from toolwire.memory.private_files import find_state_folder, make_folders, open_private

ENTER = KeyPress(Keys.ControlM, "\r")
MARK = "> "
MENU_ROWS = 8
MAX_INPUT_ROWS = 10
MAX_QUEUED_ROWS = 3
MIN_ANSWER_SECONDS = 0.4
"""Enter is ignored this long after a question appears: it may belong to earlier input."""

MAX_HISTORY_BYTES = 1024 * 1024
"""Size of the file of prompts above which its older half is dropped."""

STYLE = Style.from_dict(
    {
        "mark": "ansicyan bold",
        "question": "ansiyellow bold",
        "queued": "ansibrightblack",
        "status": "ansibrightblack",
        "auto-suggestion": "ansibrightblack",
    }
)


class PromptHistory(History):
    """The prompts of earlier sessions, for the arrow keys: a private file with one JSON string per line.

    A file that cannot be read or written is ignored.
    """

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self._path = path or find_state_folder() / "prompts.jsonl"

    def load_history_strings(self) -> Iterable[str]:
        """The prompts, newest first."""
        for line in reversed(self._lines()):
            with suppress(msgspec.DecodeError):
                yield msgspec.json.decode(line, type=str)

    def store_string(self, string: str) -> None:
        """Add a prompt."""
        with suppress(OSError, UnicodeEncodeError):
            make_folders(self._path.parent)
            with suppress(FileNotFoundError):
                if self._path.stat().st_size > MAX_HISTORY_BYTES:
                    lines = self._lines()
                    with open_private(self._path, "w") as file:
                        file.write(b"".join(line + b"\n" for line in lines[len(lines) // 2 :]))
            with open_private(self._path, "a") as file:
                file.write(msgspec.json.encode(string) + b"\n")

    def _lines(self) -> list[bytes]:
        with suppress(OSError), self._path.open("rb") as file:
            return file.read(2 * MAX_HISTORY_BYTES).splitlines()
        return []


class _Question:
    """An open question, and the draft that was in the line before."""

    def __init__(self, text: str, draft: Document) -> None:
        self.text = text
        self.draft = draft
        self.asked = time.monotonic()
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class InputLine:
    """A `Canvas` with an input line below its rows.

    `on_line` is called with every line that is entered, `on_interrupt` on Ctrl-C if the line is empty
    or a question is open.    `queued` returns the waiting lines, and `status` the text of the last row.
    """

    def __init__(
        self,
        completer: Completer,
        history: History,
        *,
        on_line: Callable[[str], None],
        on_interrupt: Callable[[], None],
        queued: Callable[[], Sequence[str]],
        status: Callable[[], str],
    ) -> None:
        self.console = Console(file=io.StringIO(), force_terminal=True, force_interactive=True, highlight=False)
        self.moves = True
        self._on_line = on_line
        self._on_interrupt = on_interrupt
        self._queued = queued
        self._status = status
        self._rows: ConsoleRenderable | None = None
        self._drawn = ("", 0)  # the rows as drawn last, and their number
        self._question: _Question | None = None
        self._search = SearchToolbar()
        self._input = TextArea(
            completer=ThreadedCompleter(completer),
            history=history,
            auto_suggest=AutoSuggestFromHistory(),
            height=lambda: Dimension(min=1, max=MAX_INPUT_ROWS),
            dont_extend_height=True,
            get_line_prefix=lambda line, wrapped: [("class:mark", "  " if line or wrapped else MARK)],
            search_field=self._search,
        )
        self._completing: Document | None = None  # the line in which the first completion is awaited
        self._input.buffer.on_completions_changed += self._choose_first
        output = Vt100_Output.from_pty(sys.stdout)
        output.enable_cpr = False  # the answer to a query of the cursor's position could be taken for typed keys
        self._app: Application[None] = Application(
            layout=Layout(self._container(), focused_element=self._input),
            key_bindings=self._bindings(),
            style=STYLE,
            erase_when_done=True,
            output=output,
        )

    async def run(self) -> None:
        """Read lines until `exit` is called or the input ends."""
        try:
            with self._app.input.raw_mode():
                # Until now the terminal has turned Enter into Ctrl-J.
                typed = [ENTER if key.key == "c-j" else key for key in self._app.input.read_keys()]
                store_typeahead(self._app.input, typed)
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
        """The content of the line."""
        return self._input.text

    def put(self, text: str) -> None:
        """Replace the content of the line, with the cursor at its end."""
        self._input.buffer.document = Document(text)

    async def ask(self, question: str) -> str:
        """Ask a question, and return the line that answers it. The draft in the line is restored afterwards."""
        self._question = asked = _Question(question, self._input.buffer.document)
        self._input.buffer.reset()
        self._app.invalidate()
        try:
            return await asked.answer
        finally:
            self._end_question()

    def _end_question(self) -> None:
        """Restore the draft."""
        if self._question is not None:
            self._input.buffer.document = self._question.draft
            self._question = None
            self._app.invalidate()

    # The canvas

    @property
    def room(self) -> int:
        return max(1, self.console.height - MAX_INPUT_ROWS - MAX_QUEUED_ROWS - 3)

    def start(self, rows: ConsoleRenderable | None) -> None:
        self._rows = rows

    def stop(self) -> None:
        self._rows, self._drawn = None, ("", 0)

    def start_question(self) -> None:
        """The rows stay: the question is asked below them."""

    def draw(self, lines: Sequence[ConsoleRenderable]) -> None:
        text = self._render(lambda: print_lines(self.console, lines))
        if self._rows is not None:
            rows = self._rows
            drawn = self._render(lambda: self.console.print(rows, end=""))
            self._drawn = (drawn.removesuffix("\n"), drawn.count("\n"))
        if text and self._app.is_running:
            self._app.renderer.erase()
        if text:
            self._app.output.write_raw(text.replace("\n", "\r\n"))
            self._app.output.flush()
        self._app.invalidate()

    def _render(self, write: Callable[[], None]) -> str:
        file = io.StringIO()
        self.console.file = file
        write()
        return file.getvalue()

    # Layout

    def _container(self) -> HSplit:
        def queued_lines() -> AnyFormattedText:
            shown = [" ".join(clean(line).split()) for line in self._queued()][:MAX_QUEUED_ROWS]
            return [("class:queued", "\n".join(f"  queued: {line}" for line in shown))]

        def question() -> AnyFormattedText:
            return [("class:question", self._question.text if self._question is not None else "")]

        has_question = Condition(lambda: self._question is not None)
        return HSplit(
            [
                _text_window(lambda: ANSI(self._drawn[0]), lambda: self._drawn[1]),
                _text_window(queued_lines, lambda: min(len(self._queued()), MAX_QUEUED_ROWS)),
                ConditionalContainer(_text_window(question, lambda: None), has_question),
                self._input,
                self._search,
                CompletionsMenu(max_height=MENU_ROWS, scroll_offset=1),
                _text_window(lambda: [("class:status", clean(self._status()))], lambda: 1),
            ],
            align=VerticalAlign.TOP,
        )

    # Keys

    def _bindings(self) -> KeyBindings:
        def insert_line(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        def leave(_: KeyPressEvent) -> None:
            self.exit()

        def suspend(_: KeyPressEvent) -> None:
            self._app.suspend_to_background()

        def clear(_: KeyPressEvent) -> None:
            self._app.renderer.clear()

        keys = KeyBindings()
        is_typing = has_focus(self._input) & ~is_searching
        is_empty = Condition(lambda: not self._input.text)
        keys.add("enter", filter=is_typing)(self._enter)
        keys.add("c-i", filter=is_typing)(self._complete)
        keys.add("c-j", filter=is_typing)(insert_line)
        keys.add("escape", "enter", filter=is_typing)(insert_line)
        keys.add("c-c", filter=is_typing)(self._interrupt)
        keys.add("c-d", filter=is_typing & is_empty)(leave)
        keys.add("c-z", filter=is_typing)(suspend)
        keys.add("c-l")(clear)
        return keys

    def _enter(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None  # accepts the completion, and leaves the line for more typing
        elif buffer.document.current_line_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        elif self._question is not None:
            answer = self._question.answer
            if time.monotonic() - self._question.asked > MIN_ANSWER_SECONDS and not answer.done():
                answer.set_result(buffer.text)
                self._end_question()  # at once: what is typed next is not part of the answer
        elif buffer.text.strip():
            text = buffer.text
            buffer.reset(append_to_history=True)
            self._on_line(text)

    def _complete(self, event: KeyPressEvent) -> None:
        """Choose the next completion; the first one as soon as it is found."""
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.completions:
            buffer.complete_next()
        else:
            self._completing = buffer.document
            buffer.start_completion()

    def _choose_first(self, buffer: Buffer) -> None:
        state = buffer.complete_state
        if state is not None and state.completions and buffer.document == self._completing:
            self._completing = None
            buffer.complete_next()

    def _interrupt(self, event: KeyPressEvent) -> None:
        if event.current_buffer.text and not self._question:
            event.current_buffer.reset()
        else:
            self._on_interrupt()


def _text_window(text: Callable[[], AnyFormattedText], rows: Callable[[], int | None]) -> Window:
    """Rows of text that shrink where there is too little room."""

    def height() -> Dimension:
        count = rows()
        return Dimension(min=0) if count is None else Dimension(min=0, preferred=count, max=count)

    return Window(FormattedTextControl(text), height=height, dont_extend_height=True, wrap_lines=True)
