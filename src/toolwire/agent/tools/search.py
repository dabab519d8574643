"""Glob and Grep: find files by name and by content. Both see the files that `walk` yields."""

import asyncio
import os
import re
import signal
import time
from contextlib import suppress
from heapq import nsmallest
from pathlib import Path

import msgspec

from toolwire.agent.tools import ripgrep
from toolwire.agent.tools.confine import ConfinedPath, confined, explaining, read_whole, shown
from toolwire.agent.tools.ripgrep import GrepArguments, RipgrepEvent
from toolwire.agent.tools.walk import Names, walk, wanted
from toolwire.core.events import CallKind
from toolwire.turns.tools.call import ToolCall, ToolError, read_arguments
from toolwire.turns.tools.registry import Context, Result, as_result, tool

MAX_FILES = 200
MAX_TEXT = 100_000
MAX_COLUMNS = 400
SECONDS = 30.0
MAX_LINE = 16 * 1024 * 1024
_PIECE = 64 * 1024


@tool(name="Glob", parallel=True)
def glob(pattern: str, path: str = ".", *, context: Context) -> str:
    """Find files by name, newest first. Leaves out what .gitignore names.

    Args:
        pattern: Such as *.py (at any depth), src/**/*.{ts,tsx} or docs/*.md. Knows *, **, ?, [a-z] and {a,b}.
        path: The directory to search, absolute or from the working directory.
    """
    folder, names = wanted(pattern)
    target = _folder(path, folder, context)
    until = time.monotonic() + SECONDS
    found: list[tuple[float, str]] = []
    is_late = False
    for parts in walk(target.path):
        if is_late := time.monotonic() > until:
            break
        if names(parts):
            with suppress(OSError):
                whole = target.path.joinpath(*parts)
                found.append((-whole.lstat().st_mtime, shown(whole, context)))
    if not found and not is_late:
        return f"No files match {pattern}."
    lines = [_printable(each) for _, each in nsmallest(MAX_FILES, found)]
    if is_late:
        lines.append(f"[stopped after {SECONDS:.0f} seconds; narrow the path]")
    elif len(found) > MAX_FILES:
        lines.append(f"[the newest {MAX_FILES} of {len(found)} files; narrow the pattern or the path]")
    return "\n".join(lines)


class Grep:
    """The Grep tool; a class, because the model has an argument `context` here."""

    name = "Grep"
    description = (
        "Search the contents of files for a regular expression. Gives path:line:text. Leaves out what .gitignore names."
    )
    kind: CallKind = "function"
    parallel = True
    writes = False
    parameters: msgspec.Raw | None = msgspec.Raw(
        msgspec.json.encode(msgspec.json.schema_components([GrepArguments])[1]["GrepArguments"])
    )
    format: msgspec.Raw | None = None

    async def run(self, call: ToolCall, context: Context) -> Result:
        """Search, and return the matches."""
        arguments = read_arguments(call, GrepArguments)
        _check_pattern(arguments.pattern)
        target, names, command = await asyncio.to_thread(_prepared, arguments, context)
        results = SearchResults(arguments, target, names, context)
        await _search(command, context.inherit(), results)
        return as_result(results.text())


grep = Grep()


def _check_pattern(pattern: str) -> None:
    """Raise `ToolError` for a pattern that cannot be looked for."""
    if "\n" in pattern or re.search(r"(?<!\\)(?:\\\\)*\\n", pattern):
        raise ToolError("a match is within one line, so the pattern cannot hold a line break")
    if "\0" in pattern or len(pattern) > 10_000:
        raise ToolError("the pattern is too long, or holds a NUL")


def _prepared(arguments: GrepArguments, context: Context) -> tuple[ConfinedPath, Names, list[str]]:
    """Where to search, which files, and the command that does it."""
    folder, names = wanted(arguments.glob or "**")
    target = confined(arguments.path, context)
    if target.path.is_file():
        if read_whole(target, context).is_binary:
            raise ToolError(f"{target.name} is a binary file")
    else:
        target = _folder(arguments.path, folder, context)
    return target, names, ripgrep.command(arguments, target.path)


def _folder(path: str, inner: str, context: Context) -> ConfinedPath:
    """A directory that can be read; the fixed beginning of a pattern is appended to the path."""
    name = os.path.join("" if path == "." else path, inner) if inner else path
    target = confined(name, context)
    with explaining(target, context):
        os.scandir(target.path).close()
    return target


async def _search(command: list[str], environment: dict[str, str], results: "SearchResults") -> None:
    """Run a search until it ends or the results are full."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=MAX_LINE,
        )
    except OSError as error:
        raise ToolError(f"the search could not be started: {error}") from None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SECONDS):
            while not results.is_full and (line := await process.stdout.readline()):
                results.feed(line)
    except TimeoutError:
        results.is_late = True
    except ValueError:
        raise ToolError("a line that matches is too long to show; narrow the glob or the path") from None
    finally:
        if not process.stdout.at_eof():
            # Not `process.kill`: it reaps the process, and asyncio then logs an error.
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        while await process.stdout.read(_PIECE):
            pass
        await process.wait()


class SearchResults:
    """The results of a search, as the model will read them."""

    def __init__(self, arguments: GrepArguments, target: ConfinedPath, names: Names, context: Context) -> None:
        self._arguments, self._place, self._names, self._context = arguments, target, names, context
        self._lines: list[str] = []
        self._length = 0
        self._done = 0
        self._path: str | None = None
        self._file: list[str] = []
        self._matches = 0
        self._last = 0
        self._errors: list[str] = []
        self.is_full = False
        self.is_late = False

    def feed(self, line: bytes) -> None:
        """Take a line of the search command."""
        if not line.startswith(b"{"):
            self._errors.append(line.decode(errors="replace").strip())
            return
        event = msgspec.json.decode(line, type=RipgrepEvent)
        match event.type:
            case "begin":
                self._begin(str(event.data.path))
            case "match" | "context":
                self._add(event)
            case "end" if event.data.binary_offset is None:
                self._keep()
            case _:
                self._path = None  # a binary file after all, or the summary

    def text(self) -> str:
        """The results as text. Raises `ToolError` for a bad pattern."""
        self._keep()
        arguments = self._arguments
        if self._errors and not self._lines:
            messages = [line.removeprefix("error: ") for line in self._errors if line.startswith("error: ")]
            raise ToolError(f"the pattern {arguments.pattern!r} cannot be used: {(messages or self._errors)[-1]}")
        lines = list(self._lines)
        if self.is_late:
            lines.append(f"[stopped after {SECONDS:.0f} seconds; narrow the glob or the path]")
        elif self.is_full:
            what = "lines" if arguments.mode == "lines" else "files"
            lines.append(f"[there is more behind the first {self._done} {what}; narrow the search, or raise the limit]")
        return "\n".join(lines) or f"No matches for {arguments.pattern}."

    def _begin(self, path: str) -> None:
        self._file, self._matches, self._last = [], 0, 0
        whole = Path(path)
        is_wanted = whole == self._place.path or self._names(whole.relative_to(self._place.path).parts)
        self._path = _printable(shown(whole, self._context)) if is_wanted else None

    def _add(self, event: RipgrepEvent) -> None:
        if self._path is None:
            return
        by_line = self._arguments.mode == "lines"
        if event.type == "match":
            known = self._done + (self._matches if by_line else 0)
            if known == self._arguments.limit and (by_line or not self._matches):
                self.is_full = True
                return
            self._matches += 1
        if not by_line:
            return
        number = event.data.line_number
        if self._last and number > self._last + 1 and self._arguments.context:
            self._file.append("--")
        mark = ":" if event.type == "match" else "-"
        text = _short(_printable(str(event.data.lines).removesuffix("\n").removesuffix("\r")))
        self._file.append(f"{self._path}{mark}{number}{mark}{text}")
        self._last = number
        self._length += len(self._file[-1])
        self.is_full = self._length > MAX_TEXT

    def _keep(self) -> None:
        """Add the matches of a file to the results."""
        if self._path is None or not self._matches:
            return
        if self._arguments.mode == "lines":
            self._lines += ["--"] if self._lines and self._arguments.context else []
            self._lines += self._file
            self._done += self._matches
        else:
            count = f":{self._matches}" if self._arguments.mode == "count" else ""
            self._lines.append(self._path + count)
            self._done += 1
        self._path = None


def _short(line: str) -> str:
    left = len(line) - MAX_COLUMNS
    return line if left <= 0 else f"{line[:MAX_COLUMNS]}… [{left} more characters]"


def _printable(text: str) -> str:
    return text.encode(errors="surrogateescape").decode(errors="replace")
