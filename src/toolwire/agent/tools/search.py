"""Glob and Grep: files by their names, and by what is in them. Both see the files that `walk` gives."""

import asyncio
import os
import re
import signal
import time
from contextlib import suppress
from heapq import nsmallest
from pathlib import Path

import msgspec

from toolwire.agent.call import CustomPayload, ToolCall, ToolError
from toolwire.agent.registry import Context, Result, as_result, tool
from toolwire.agent.tools import ripgrep
from toolwire.agent.tools.confine import Place, confined, read_whole, shown, telling
from toolwire.agent.tools.ripgrep import Event, Question
from toolwire.agent.tools.walk import Names, walk, wanted
from toolwire.core.events import CallKind

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
    place = _folder(path, folder, context)
    until = time.monotonic() + SECONDS
    found: list[tuple[float, str]] = []
    is_late = False
    for parts in walk(place.path):
        if is_late := time.monotonic() > until:
            break
        if names(parts):
            with suppress(OSError):
                whole = place.path.joinpath(*parts)
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
    """The tool. It is a class because `context` is a word of the model's here."""

    name = "Grep"
    description = (
        "Search the contents of files for a regular expression. Gives path:line:text. Leaves out what .gitignore names."
    )
    kind: CallKind = "function"
    parallel = True
    writes = False
    parameters: msgspec.Raw | None = msgspec.Raw(
        msgspec.json.encode(msgspec.json.schema_components([Question])[1]["Question"])
    )
    format: msgspec.Raw | None = None

    async def run(self, call: ToolCall, context: Context) -> Result:
        question = _question(call)
        place, names, command = await asyncio.to_thread(_prepared, question, context)
        answer = Answer(question, place, names, context)
        await _ask(command, context.inherit(), answer)
        return as_result(answer.told())


grep = Grep()


def _question(call: ToolCall) -> Question:
    if isinstance(call.payload, CustomPayload):
        raise ToolError("Grep takes arguments, not free text")
    try:
        question = msgspec.json.decode(call.text, type=Question)
    except msgspec.ValidationError as error:
        raise ToolError(f"invalid arguments for Grep: {error}") from None
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise ToolError(f"failed to parse function arguments: {error}") from None
    if "\n" in question.pattern or re.search(r"(?<!\\)(?:\\\\)*\\n", question.pattern):
        raise ToolError("a match is within one line, so the pattern cannot hold a line break")
    if "\0" in question.pattern or len(question.pattern) > 10_000:
        raise ToolError("the pattern is too long, or holds a NUL")
    return question


def _prepared(question: Question, context: Context) -> tuple[Place, Names, list[str]]:
    """Where to search, which files, and the command that does it."""
    folder, names = wanted(question.glob or "**")
    place = confined(question.path, context)
    if place.path.is_file():
        if read_whole(place, context).is_binary:
            raise ToolError(f"{place.name} is a binary file")
    else:
        place = _folder(question.path, folder, context)
    return place, names, ripgrep.command(question, place.path)


def _folder(path: str, inner: str, context: Context) -> Place:
    """A folder that can be read. What a pattern begins with belongs to the path, or replaces it."""
    name = os.path.join("" if path == "." else path, inner) if inner else path
    place = confined(name, context)
    with telling(place, context):
        os.scandir(place.path).close()
    return place


async def _ask(command: list[str], environment: dict[str, str], answer: "Answer") -> None:
    """Run a search until it ends, or enough is known."""
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
            while not answer.is_full and (line := await process.stdout.readline()):
                answer.feed(line)
    except TimeoutError:
        answer.is_late = True
    except ValueError:
        raise ToolError("a line that matches is too long to show; narrow the glob or the path") from None
    finally:
        if not process.stdout.at_eof():
            # Not `process.kill`: it reaps the process, behind the back of asyncio, which then complains.
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        while await process.stdout.read(_PIECE):
            pass
        await process.wait()


class Answer:
    """What a search has found, as the model will read it."""

    def __init__(self, question: Question, place: Place, names: Names, context: Context) -> None:
        self._question, self._place, self._names, self._context = question, place, names, context
        self._said: list[str] = []
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
        if not line.startswith(b"{"):
            self._errors.append(line.decode(errors="replace").strip())
            return
        event = msgspec.json.decode(line, type=Event)
        match event.type:
            case "begin":
                self._begin(str(event.data.path))
            case "match" | "context":
                self._add(event)
            case "end" if event.data.binary_offset is None:
                self._keep()
            case _:
                self._path = None  # a binary file after all, or the sum of it all

    def told(self) -> str:
        self._keep()
        question = self._question
        if self._errors and not self._said:
            said = [line.removeprefix("error: ") for line in self._errors if line.startswith("error: ")]
            raise ToolError(f"the pattern {question.pattern!r} cannot be used: {(said or self._errors)[-1]}")
        lines = list(self._said)
        if self.is_late:
            lines.append(f"[stopped after {SECONDS:.0f} seconds; narrow the glob or the path]")
        elif self.is_full:
            what = "lines" if question.mode == "lines" else "files"
            lines.append(f"[there is more behind the first {self._done} {what}; narrow the search, or raise the limit]")
        return "\n".join(lines) or f"No matches for {question.pattern}."

    def _begin(self, path: str) -> None:
        self._file, self._matches, self._last = [], 0, 0
        whole = Path(path)
        is_wanted = whole == self._place.path or self._names(whole.relative_to(self._place.path).parts)
        self._path = _printable(shown(whole, self._context)) if is_wanted else None

    def _add(self, event: Event) -> None:
        if self._path is None:
            return
        by_line = self._question.mode == "lines"
        if event.type == "match":
            known = self._done + (self._matches if by_line else 0)
            if known == self._question.limit and (by_line or not self._matches):
                self.is_full = True
                return
            self._matches += 1
        if not by_line:
            return
        number = event.data.line_number
        if self._last and number > self._last + 1 and self._question.context:
            self._file.append("--")
        mark = ":" if event.type == "match" else "-"
        text = _short(_printable(str(event.data.lines).removesuffix("\n").removesuffix("\r")))
        self._file.append(f"{self._path}{mark}{number}{mark}{text}")
        self._last = number
        self._length += len(self._file[-1])
        self.is_full = self._length > MAX_TEXT

    def _keep(self) -> None:
        """Take over what a file has brought."""
        if self._path is None or not self._matches:
            return
        match self._question.mode:
            case "lines":
                self._said += ["--"] if self._said and self._question.context else []
                self._said += self._file
                self._done += self._matches
            case "files":
                self._said.append(self._path)
                self._done += 1
            case "count":
                self._said.append(f"{self._path}:{self._matches}")
                self._done += 1
        self._path = None


def _short(line: str) -> str:
    left = len(line) - MAX_COLUMNS
    return line if left <= 0 else f"{line[:MAX_COLUMNS]}… [{left} more characters]"


def _printable(text: str) -> str:
    return text.encode(errors="surrogateescape").decode(errors="replace")
