"""Makes text of models and tools safe and short for a terminal: without control characters and hidden text."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec
from rich.cells import cell_len, chop_cells
from rich.text import Text

from toolwire.agent.approval import DENIED, DENIED_BECAUSE, NO_USER, READ_ONLY
from toolwire.core.display import clean, escape_invisible
from toolwire.turns.tools.call import CustomPayload, ToolCall

MAX_CHARS = 100
"""Characters of a call or a result in a file; a terminal shows as much as fits into one row."""
MAX_ERROR_CHARS = 300
"""Characters shown of a failed result."""
MAX_SPACES = 40
"""Runs of this many spaces or more are replaced by their number: they could push text out of sight."""
MAX_EQUAL = 3
"""Equal consecutive lines that are shown; further ones are counted."""

_REFUSED = {DENIED: "refused", NO_USER: "refused: no user is present to allow it"}
"""The results of refused calls, with the short text that the user sees."""


class Tail:
    """The last line of a text that arrives in pieces."""

    def __init__(self) -> None:
        self.line = ""
        self._open = ""

    def add(self, text: str) -> None:
        """Add a piece of text."""
        *whole, self._open = re.split(r"[\r\n]+", self._open + text)
        self._open = self._open[:MAX_ERROR_CHARS]
        cleaned = (clean(line).strip() for line in (self._open, *reversed(whole)))
        self.line = next(filter(None, cleaned), self.line)


class CallRow(msgspec.Struct):
    """The row of one call."""

    name: str
    arguments: str
    began: float | None = None
    output: Tail = msgspec.field(default_factory=Tail)
    is_asked: bool = False

    def row(self, mark: tuple[str, str], time: str, rest: str, style: str, width: int) -> Text:
        """A mark, the call, its duration and its outcome in one row; errors may take more.

        `width` is 0 for a file.
        """
        limit = max(MAX_CHARS, width)
        rest = shorten_line(rest, limit) if style == "dim" else rest
        head = Text(" ").join(Text(part, kind) for part, kind in ((self.name, "bold"), (self.arguments, "")) if part)
        head.plain = shorten_line(head.plain, limit)
        tail = Text.assemble((f" {time}" if time else "", "dim"), (f" · {rest}" if rest else "", style))
        if width:
            head.truncate(max(width // 2, width - 2 - cell_len(tail.plain)), overflow="ellipsis")
        row = Text.assemble(mark, " ", head, tail)
        if width and style == "dim":
            row.truncate(width, overflow="ellipsis")
        return row


def rows_of(call: ToolCall, width: int) -> Iterator[str]:
    """The full content of a call as terminal rows, for an approval question.

    Every row is indented, so that none looks like our question. Invisible characters are escaped, and padding is
    counted.
    """
    fields = call.text if isinstance(call.payload, CustomPayload) else _fields(call.text)
    text = fields if isinstance(fields, str) else "\n".join(_field(key, value) for key, value in fields.items())
    for line in collapse_padding(escape_invisible(text).expandtabs().split("\n")):
        for row in chop_cells(line, max(width - 2, 2)) or [""]:
            yield f"  {row}"


def collapse_padding(lines: Iterable[str]) -> Iterator[str]:
    """The lines, with long runs of spaces and of equal lines replaced by their number."""
    for line, equal in groupby(lines):
        times = sum(1 for _ in equal)
        short_line = _PADDING.sub(lambda spaces: f"⟨{len(spaces[0]):,} spaces⟩", line)
        yield from [short_line] * min(times, MAX_EQUAL)
        if times > MAX_EQUAL:
            yield f"⟨the same line {times - MAX_EQUAL:,} more times⟩"


_PADDING = re.compile(f" {{{MAX_SPACES},}}")
_PLAIN_KEY = re.compile(r"[\w.-]+", re.ASCII)


def _field(key: str, value: str) -> str:
    name = key if _PLAIN_KEY.fullmatch(key) else msgspec.json.encode(key).decode()
    return f"{name}: {value}" if "\n" not in value else f"{name}:\n  " + value.removesuffix("\n").replace("\n", "\n  ")


def _fields(arguments: str) -> str | dict[str, str]:
    """The fields of a call's arguments as text; free text as it is."""
    try:
        read = msgspec.json.decode(arguments, type=dict[str, Any])
        # Values as text, without JSON escapes.
        texts = (value if isinstance(value, str) else msgspec.json.encode(value).decode() for value in read.values())
        return dict(zip(read, texts, strict=True))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return arguments


def argument_summary(arguments: str) -> str:
    """The arguments on one line, the first one without its name."""
    fields = _fields(arguments)
    if isinstance(fields, str):
        return shorten_line(fields, MAX_ERROR_CHARS)
    parts = [f"{key}={value}" if index else value for index, (key, value) in enumerate(fields.items())]
    return shorten_line(" ".join(parts), MAX_ERROR_CHARS)


_COMMAND = re.compile(
    r"(?:Chunk ID: .*\n)?(?P<failure>Exit code: .*\n|Timed out .*\n)?Wall time: .*\n"
    r"(?P<process>Process .*\n)?(?:Original token count: .*\n)?Output:(?:\n|$)"
)
"""The header before the output of a command, as `shell.py` writes it."""


def describe_outcome(result: str, last: str = "") -> str:
    """The outcome of a call; for a command its output, and its exit state unless that is success.

    `last` is the last line of its output, shown instead of all of it.
    """
    head = _COMMAND.match(result)
    output = result[head.end() :] if head is not None else result
    shown = last if last and last in clean(output) else output  # else it only reported progress
    if head is None:
        return shown
    state = (head["failure"] or head["process"] or "").strip()
    if state.startswith("Process running"):
        return shown if shown.strip() else state
    return shown if state in ("", "Process exited with code 0") else f"{state} {shown}"


def describe_refusal(name: str, result: str) -> str:
    """Why a call was refused, for the user; empty if it ran."""
    if result.startswith(DENIED_BECAUSE):
        return f"refused: {shorten_line(result.removeprefix(DENIED_BECAUSE), MAX_ERROR_CHARS)}"
    return "refused: read-only" if result == READ_ONLY.format(name) else _REFUSED.get(result, "")


def shorten_line(text: str, limit: int) -> str:
    """The text on one line of at most this many characters."""
    line = " ".join(clean(text[: 10 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def describe_window(minutes: float | None) -> str:
    """The length of a rate limit window."""
    for unit, size in (("d", 1440), ("h", 60), ("min", 1)):
        if minutes and minutes >= size:
            return f"{minutes / size:g} {unit}"
    return f"{minutes:g} min" if minutes else "limit"
