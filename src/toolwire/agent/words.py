"""What models and tools say, as a terminal may show it: nothing in it steers the terminal or hides something."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec
from rich.cells import cell_len, chop_cells
from rich.text import Text

from toolwire.agent.approval import DENIED, NOBODY, READ_ONLY
from toolwire.agent.call import CustomPayload, ToolCall
from toolwire.core.terminal import clean, escaped

LONGEST = 100
"""Letters of a call or a result that one line of a file shows; in a terminal it is one row."""
LONGEST_ERROR = 300
"""Letters of the result of a call that failed."""
MOST_SPACES = 40
"""Spaces in a row that are shown as such before somebody is asked: more could push something out of sight."""
MOST_EQUAL = 3
"""Equal lines, one after the other, that are shown."""

_REFUSED = {DENIED: "refused", NOBODY: "refused: nobody is there to allow it"}
"""What a model reads about a call that did not run, and what a person does."""


class Tail:
    """The last line of a text that comes in pieces."""

    def __init__(self) -> None:
        self.line = ""
        self._open = ""

    def add(self, text: str) -> None:
        *whole, self._open = re.split(r"[\r\n]+", self._open + text)
        self._open = self._open[:LONGEST_ERROR]
        cleaned = (clean(line).strip() for line in (self._open, *reversed(whole)))
        self.line = next(filter(None, cleaned), self.line)


class Call:
    """A call until its end. It waits for others before it begins."""

    def __init__(self, name: str, arguments: str) -> None:
        self.name = name
        self.arguments = arguments
        self.began: float | None = None
        self.output = Tail()
        self.is_asked = False

    def row(self, mark: tuple[str, str], time: str, rest: str, style: str, width: int) -> Text:
        """A mark, what is called, for how long, and what has come of it: in one row, unless it is an error.

        A file has rows of no `width`.
        """
        longest = max(LONGEST, width)
        rest = short(rest, longest) if style == "dim" else rest
        head = Text(" ").join(Text(part, kind) for part, kind in ((self.name, "bold"), (self.arguments, "")) if part)
        head.plain = short(head.plain, longest)
        tail = Text.assemble((f" {time}" if time else "", "dim"), (f" · {rest}" if rest else "", style))
        if width:
            head.truncate(max(width // 2, width - 2 - cell_len(tail.plain)), overflow="ellipsis")
        row = Text.assemble(mark, " ", head, tail)
        if width and style == "dim":
            row.truncate(width, overflow="ellipsis")
        return row


def rows_of(call: ToolCall, width: int) -> Iterator[str]:
    """All that a call carries, as rows of a terminal before somebody is asked about it.

    Every row is indented, also where a line goes on, so that none looks like a question of ours. What cannot be seen is
    escaped, and what would only fill the screen is counted.
    """
    fields = call.text if isinstance(call.payload, CustomPayload) else _fields(call.text)
    shown = fields if isinstance(fields, str) else "\n".join(_field(key, value) for key, value in fields.items())
    for line in _without_padding(escaped(shown).expandtabs().split("\n")):
        for row in chop_cells(line, max(width - 2, 2)) or [""]:
            yield f"  {row}"


def _without_padding(lines: Iterable[str]) -> Iterator[str]:
    for line, equal in groupby(lines):
        times = sum(1 for _ in equal)
        short_line = _PADDING.sub(lambda spaces: f"⟨{len(spaces[0]):,} spaces⟩", line)
        yield from [short_line] * min(times, MOST_EQUAL)
        if times > MOST_EQUAL:
            yield f"⟨the same line {times - MOST_EQUAL:,} times more⟩"


_PADDING = re.compile(f" {{{MOST_SPACES},}}")
_PLAIN_KEY = re.compile(r"[\w.-]+", re.ASCII)


def _field(key: str, value: str) -> str:
    name = key if _PLAIN_KEY.fullmatch(key) else msgspec.json.encode(key).decode()
    return f"{name}: {value}" if "\n" not in value else f"{name}:\n  " + value.removesuffix("\n").replace("\n", "\n  ")


def _fields(arguments: str) -> str | dict[str, str]:
    """The fields of a call's arguments as text; free text as it is."""
    try:
        read = msgspec.json.decode(arguments, type=dict[str, Any])
        return {key: _value(value) for key, value in read.items()}
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return arguments


def _value(value: Any) -> str:
    """A value as it was meant: letters that JSON can also write as escapes are letters."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def told(arguments: str) -> str:
    """Arguments as one reads them: the first one without its name."""
    fields = _fields(arguments)
    if isinstance(fields, str):
        return short(fields, LONGEST_ERROR)
    parts = [f"{key}={value}" if place else value for place, (key, value) in enumerate(fields.items())]
    return short(" ".join(parts), LONGEST_ERROR)


_COMMAND = re.compile(
    r"(?:Chunk ID: .*\n)?(?P<failure>Exit code: .*\n|Timed out .*\n)?Wall time: .*\n"
    r"(?P<process>Process .*\n)?(?:Original token count: .*\n)?Output:(?:\n|$)"
)
"""What stands before the output of a command: `shell.py` and `sessions.py` write it."""


def outcome(result: str, last: str = "") -> str:
    """What came of a call. Of a command that is its output, and how it ended unless all is well.

    `last` is the last line that it put out, which stands for the rest.
    """
    head = _COMMAND.match(result)
    output = result[head.end() :] if head is not None else result
    shown = last if last and last in clean(output) else output  # else it only told of progress
    if head is None:
        return shown
    state = (head["failure"] or head["process"] or "").strip()
    if state.startswith("Process running"):
        return shown if shown.strip() else state
    return shown if state in ("", "Process exited with code 0") else f"{state} {shown}"


def refusal(name: str, result: str) -> str:
    """Why a call did not run, in words for a person; nothing if it did."""
    return "refused: read-only" if result == READ_ONLY.format(name) else _REFUSED.get(result, "")


def short(text: str, longest: int) -> str:
    """The text on one short line."""
    line = " ".join(clean(text[: 10 * longest]).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def span(minutes: float | None) -> str:
    """How long a limit counts."""
    if not minutes:
        return "limit"
    return (
        f"{minutes / 1440:g} d" if minutes >= 1440 else f"{minutes / 60:g} h" if minutes >= 60 else f"{minutes:g} min"
    )
