"""Glob and Grep: find files by name and by content. Both cover the files that `walk` yields."""

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
from toolwire.agent.tools.file_access import ConfinedPath, confine, display_path, explain_errors, read_target
from toolwire.agent.tools.ripgrep import GrepArguments, RipgrepEvent
from toolwire.agent.tools.walk import PathFilter, compile_glob, walk
from toolwire.core.events import CallKind
from toolwire.turns.tools.call import ToolCall, ToolError, read_arguments
from toolwire.turns.tools.registry import Context, Result, as_result, tool

MAX_GLOB_FILES = 200
MAX_PATTERN_CHARS = 10_000
MAX_RESULT_CHARS = 100_000
MAX_LINE_CHARS = 400
"""Maximum characters that are shown of a matching line."""
SEARCH_TIMEOUT = 30.0
MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Maximum bytes of a line that the search command writes."""


@tool(name="Glob", parallel=True)
def glob(pattern: str, path: str = ".", *, context: Context) -> str:
    """Find files by name, newest first. Leaves out what .gitignore names.

    Args:
        pattern: Such as *.py (at any depth), src/**/*.{ts,tsx} or docs/*.md. Knows *, **, ?, [a-z] and {a,b}.
        path: The directory to search, absolute or from the working directory.
    """
    folder, is_wanted = compile_glob(pattern)
    target = _confine_folder(path, folder, context)
    deadline = time.monotonic() + SEARCH_TIMEOUT
    found: list[tuple[float, str]] = []
    is_late = False
    for parts in walk(target.path):
        if is_late := time.monotonic() > deadline:
            break
        if is_wanted(parts):
            with suppress(OSError):
                whole = target.path.joinpath(*parts)
                found.append((-whole.lstat().st_mtime, display_path(whole, context)))
    if not found and not is_late:
        return f"No files match {pattern}."
    lines = [_printable(each) for _, each in nsmallest(MAX_GLOB_FILES, found)]
    if is_late:
        lines.append(f"[stopped after {SEARCH_TIMEOUT:.0f} seconds; narrow the path]")
    elif len(found) > MAX_GLOB_FILES:
        lines.append(f"[the newest {MAX_GLOB_FILES} of {len(found)} files; narrow the pattern or the path]")
    return "\n".join(lines)


class Grep:
    """The Grep tool; a class, because one of the model's arguments is named `context`."""

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
        """Search, and return the matches. Raises `ToolError` for a pattern that cannot be used."""
        arguments = read_arguments(call, GrepArguments)
        if "\n" in arguments.pattern or re.search(r"(?<!\\)(?:\\\\)*\\n", arguments.pattern):
            raise ToolError("a match is within one line, so the pattern cannot hold a line break")
        if "\0" in arguments.pattern or len(arguments.pattern) > MAX_PATTERN_CHARS:
            raise ToolError("the pattern is too long, or holds a NUL")
        target, is_wanted = await asyncio.to_thread(_find_grep_target, arguments, context)
        search = Search(arguments, target, is_wanted, context)
        await search.run()
        return as_result(search.text())


grep = Grep()


def _find_grep_target(arguments: GrepArguments, context: Context) -> tuple[ConfinedPath, PathFilter]:
    """The file or directory to search, and a filter for the files in it."""
    folder, is_wanted = compile_glob(arguments.glob or "**")
    target = confine(arguments.path, context)
    if target.path.is_file():
        if read_target(target, context).is_binary:
            raise ToolError(f"{target.name} is a binary file")
        return target, is_wanted
    return _confine_folder(arguments.path, folder, context), is_wanted


def _confine_folder(path: str, inner: str, context: Context) -> ConfinedPath:
    """The directory to search: the path and the fixed start of a pattern. Raises `ToolError` if unreadable."""
    name = os.path.join("" if path == "." else path, inner) if inner else path
    target = confine(name, context)
    with explain_errors(target, context):
        os.scandir(target.path).close()
    return target


class Search:
    """A search of contents, and its results as the model reads them."""

    def __init__(self, arguments: GrepArguments, target: ConfinedPath, is_wanted: PathFilter, context: Context) -> None:
        self._arguments, self._target, self._is_wanted, self._context = arguments, target, is_wanted, context
        self._lines: list[str] = []
        self._length = 0
        self._count = 0  # of lines or files in `_lines`, as the mode says
        self._path: str | None = None  # of the current file, if it is wanted
        self._file: list[str] = []  # its lines
        self._matches = 0
        self._last_number = 0
        self._errors: list[str] = []
        self._is_full = False
        self._is_late = False

    async def run(self) -> None:
        """Run the search command until it ends, times out, or the results are full. Raises `ToolError`."""
        try:
            process = await asyncio.create_subprocess_exec(
                *ripgrep.command(self._arguments, self._target.path),
                env=self._context.inherit(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=MAX_EVENT_BYTES,
            )
        except OSError as error:
            raise ToolError(f"the search could not be started: {error}") from None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(SEARCH_TIMEOUT):
                while not self._is_full and (line := await process.stdout.readline()):
                    self._feed(line)
        except TimeoutError:
            self._is_late = True
        except ValueError:
            raise ToolError("a line that matches is too long to show; narrow the glob or the path") from None
        finally:
            if not process.stdout.at_eof():
                # Not `process.kill`: it reaps the process, and asyncio then logs an error.
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            while await process.stdout.read(1 << 16):
                pass
            await process.wait()

    def text(self) -> str:
        """The results as text. Raises `ToolError` for a bad pattern."""
        self._end_file()
        arguments = self._arguments
        if self._errors and not self._lines:
            messages = [line.removeprefix("error: ") for line in self._errors if line.startswith("error: ")]
            raise ToolError(f"the pattern {arguments.pattern!r} cannot be used: {(messages or self._errors)[-1]}")
        lines = list(self._lines)
        if self._is_late:
            lines.append(f"[stopped after {SEARCH_TIMEOUT:.0f} seconds; narrow the glob or the path]")
        elif self._is_full:
            what = "lines" if arguments.mode == "lines" else "files"
            lines.append(f"[more results follow the first {self._count} {what}; narrow the search, or raise the limit]")
        return "\n".join(lines) or f"No matches for {arguments.pattern}."

    def _feed(self, line: bytes) -> None:
        """Take a line of the search command."""
        if not line.startswith(b"{"):
            self._errors.append(line.decode(errors="replace").strip())
            return
        event = msgspec.json.decode(line, type=RipgrepEvent)
        match event.type:
            case "begin":
                whole = Path(str(event.data.path))
                parts = whole.relative_to(self._target.path).parts
                self._path = _printable(display_path(whole, self._context))
                if parts and not self._is_wanted(parts):  # the glob does not apply to a file named directly
                    self._path = None
                self._file, self._matches, self._last_number = [], 0, 0
            case "match" | "context" if self._path is not None:
                self._add(event, self._path)
            case "end" if event.data.binary_offset is None:
                self._end_file()
            case _:
                self._path = None  # a binary file after all, or the summary

    def _add(self, event: RipgrepEvent, path: str) -> None:
        by_line = self._arguments.mode == "lines"
        if event.type == "match":
            known = self._count + (self._matches if by_line else 0)
            if known == self._arguments.limit and (by_line or not self._matches):
                self._is_full = True
                return
            self._matches += 1
        if not by_line:
            return
        number = event.data.line_number
        if self._last_number and number > self._last_number + 1 and self._arguments.context:
            self._file.append("--")
        mark = ":" if event.type == "match" else "-"
        text = _printable(str(event.data.lines).removesuffix("\n").removesuffix("\r"))
        left = len(text) - MAX_LINE_CHARS
        text = text if left <= 0 else f"{text[:MAX_LINE_CHARS]}… [{left} more characters]"
        self._file.append(f"{path}{mark}{number}{mark}{text}")
        self._last_number = number
        self._length += len(self._file[-1])
        self._is_full = self._length > MAX_RESULT_CHARS

    def _end_file(self) -> None:
        """Add the matches of the current file to the results."""
        if self._path is None or not self._matches:
            return
        if self._arguments.mode == "lines":
            self._lines += ["--"] if self._lines and self._arguments.context else []
            self._lines += self._file
            self._count += self._matches
        else:
            suffix = f":{self._matches}" if self._arguments.mode == "count" else ""
            self._lines.append(self._path + suffix)
            self._count += 1
        self._path = None


def _printable(text: str) -> str:
    return text.encode(errors="surrogateescape").decode(errors="replace")
