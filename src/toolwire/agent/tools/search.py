"""Glob and Grep: files by their names, and by what is in them.

Both see a folder as ripgrep does: hidden files too, but no links, nothing in `.git` and nothing that a `.gitignore` of
the repository names. A folder that is named outright is searched even if it is ignored. What ripgrep would also read is
not read: `.ignore`, `.rgignore`, `.git/info/exclude`, the user's own excludes. Outside of a repository, a `.gitignore`
means nothing. Unlike ripgrep and git, Glob and the Python process take `?` for a letter, not for a byte.

Grep asks ripgrep if there is one, and else a Python process that answers in the same words. Patterns are Python's then:
what both know means the same, but for bytes that are no UTF-8, which `.` matches here. It is a process, not a thread,
because a bad pattern can keep `re` busy for ever, and everybody waiting; a process can be killed.
"""

import asyncio
import base64
import codecs
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from heapq import nsmallest
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from toolwire.agent.call import CustomPayload, ToolCall, ToolError
from toolwire.agent.registry import Context, Result, as_result, tool
from toolwire.agent.tools.confine import MAX_WHOLE, Place, confined, read_whole, shown, telling
from toolwire.core.events import CallKind

GIT = ".git"
MAX_FILES = 200
MAX_TEXT = 100_000
MAX_COLUMNS = 400
SECONDS = 30.0
MAX_LINE = 16 * 1024 * 1024
_PIECE = 64 * 1024

Mode: TypeAlias = Literal["files", "lines", "count"]
Parts: TypeAlias = tuple[str, ...]


@tool(name="Glob", parallel=True)
def glob(pattern: str, path: str = ".", *, context: Context) -> str:
    """Find files by name, newest first. Leaves out what .gitignore names.

    Args:
        pattern: Such as *.py (at any depth), src/**/*.{ts,tsx} or docs/*.md. Knows *, **, ?, [a-z] and {a,b}.
        path: The directory to search, absolute or from the working directory.
    """
    folder, names = _wanted(pattern)
    place = _folder(path, folder, context)
    until = time.monotonic() + SECONDS
    found: list[tuple[float, str]] = []
    is_late = False
    for parts in walk(place.path):
        is_late = time.monotonic() > until
        if is_late:
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


def _said(text: str) -> Any:
    return msgspec.Meta(description=text)


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model asks of Grep."""

    pattern: Annotated[str, _said("A regular expression, matched within one line.")]
    path: Annotated[str, _said("The file or directory to search, absolute or from the working directory.")] = "."
    glob: Annotated[str, _said("Only files like this, such as *.py, src/**/*.ts or !*.min.js.")] = ""
    mode: Annotated[
        Mode, _said("lines: the matching lines; files: the names of files; count: the number of matching lines.")
    ] = "lines"
    ignore_case: bool = False
    context: Annotated[int, msgspec.Meta(ge=0, le=20), _said("Lines to show around each match.")] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000), _said("How many lines or files to give at most.")] = 100


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
        await _ask(command, answer)
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


def _prepared(question: Question, context: Context) -> "tuple[Place, Names, list[str]]":
    """Where to search, which files, and the command that does it."""
    folder, names = _wanted(question.glob or "**")
    place = confined(question.path, context)
    if place.path.is_file():
        if read_whole(place, context).is_binary:
            raise ToolError(f"{place.name} is a binary file")
    else:
        place = _folder(question.path, folder, context)
    program = shutil.which("rg")
    if program is not None:
        return place, names, _ripgrep(program, question, place.path)
    return place, names, _python(question, place.path)


def _folder(path: str, inner: str, context: Context) -> Place:
    """A folder that can be read. What a pattern begins with belongs to the path, or replaces it."""
    name = os.path.join("" if path == "." else path, inner) if inner else path
    place = confined(name, context)
    with telling(place, context):
        os.scandir(place.path).close()
    return place


def _ripgrep(program: str, question: Question, root: Path) -> list[str]:
    command = [program, "--no-config", "--json", "--sort=path", "--no-messages", "--crlf", "--no-mmap", "--hidden"]
    command += ["--no-ignore-dot", "--no-ignore-exclude", "--no-ignore-global", f"--glob=!{GIT}"]
    command += [f"--max-filesize={MAX_WHOLE}", f"--context={question.context if question.mode == 'lines' else 0}"]
    if question.ignore_case:
        command.append("--ignore-case")
    if question.mode == "files":
        command.append("--max-count=1")
    name = question.glob.rpartition("/")[2]
    if name and "**" not in name and not re.search(r"[!:{}\\]", question.glob):
        # A type only narrows, where `--glob` would bring back what is ignored. Which files it is, `Names` decides.
        command += [f"--type-add=wanted:{name}", "--type=wanted"]
    return [*command, f"--regexp={question.pattern}", "--", str(root)]


_CHILD = """
import sys, types
source = sys.argv[1]
sys.path.append(source)
agent = sys.modules["toolwire.agent"] = types.ModuleType("toolwire.agent")  # without the engine
agent.__path__ = [source + "/toolwire/agent"]
from toolwire.agent.tools.search import main
main(*sys.argv[2:])
"""


def _python(question: Question, root: Path) -> list[str]:
    source = Path(__file__).parents[3]
    asked = msgspec.json.encode(question).decode()
    return [sys.executable, "-P", "-W", "ignore", "-c", _CHILD, str(source), asked, str(root)]


async def _ask(command: list[str], answer: "Answer") -> None:
    """Run a search until it ends, or enough is known."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
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


class Bytes(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text as ripgrep writes it: `bytes` is base64, where it is no UTF-8."""

    text: str = ""
    bytes: str = ""

    def __str__(self) -> str:
        return base64.b64decode(self.bytes).decode(errors="surrogateescape") if self.bytes else self.text


class Data(msgspec.Struct, frozen=True, omit_defaults=True):
    path: Bytes = Bytes()
    lines: Bytes = Bytes()
    line_number: int = 0
    binary_offset: int | None = None


class Event(msgspec.Struct, frozen=True):
    """A line of `rg --json`: a file begins, has lines, and ends."""

    type: str
    data: Data = Data()


class Answer:
    """What a search has found, as the model will read it."""

    def __init__(self, question: Question, place: Place, names: "Names", context: Context) -> None:
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


def main(asked: str, root: str) -> None:
    """Search as ripgrep does, in the child."""
    question = msgspec.json.decode(asked, type=Question)
    try:
        wanted = re.compile(question.pattern, re.IGNORECASE if question.ignore_case else 0)
    except re.error as error:
        sys.exit(f"error: {error}")
    top = Path(root)
    files = [top] if top.is_file() else (top.joinpath(*parts) for parts in walk(top))
    for path in files:
        for event in _searched(path, wanted, question):
            sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
        sys.stdout.buffer.flush()


def _searched(path: Path, wanted: re.Pattern[str], question: Question) -> Iterator[Event]:
    lines = _text_of(path).split("\n")
    if not lines[-1]:
        lines.pop()
    matches = [number for number, line in enumerate(lines) if wanted.search(line.removesuffix("\r"))]
    if not matches:
        return
    if question.mode == "files":
        del matches[1:]
    around = question.context if question.mode == "lines" else 0
    told = sorted({each for at in matches for each in range(max(0, at - around), min(len(lines), at + around + 1))})
    name = Data(path=Bytes(bytes=base64.b64encode(os.fsencode(path)).decode()))
    yield Event("begin", name)
    is_match = set(matches)
    for number in told:
        data = Data(lines=Bytes(lines[number]), line_number=number + 1)
        yield Event("match" if number in is_match else "context", data)
    yield Event("end", name)


def _text_of(path: Path) -> str:
    """The text of a file; nothing, if it is none or cannot be read."""
    with suppress(OSError):
        if path.lstat().st_size <= MAX_WHOLE:
            data = path.read_bytes()
            if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                return data.decode("utf-16", errors="replace")
            return "" if b"\0" in data else data.decode("utf-8-sig", errors="replace")
    return ""


Names: TypeAlias = Callable[[Parts], bool]
"""Whether a file is wanted, by the parts of its path from the folder that is searched."""
_Part: TypeAlias = "re.Pattern[str] | None"
"""What one part of a path must look like; None is `**`, any number of parts."""


def _wanted(pattern: str) -> tuple[str, Names]:
    """The folder in which all files of a pattern are, and which of its files are meant."""
    is_negated = pattern.startswith("!")
    parts = pattern[is_negated:].split("/")
    fixed = 0
    while not is_negated and fixed < len(parts) - 1 and not re.search(r"[*?\[{\\]", parts[fixed]):
        fixed += 1
    folder = "/".join(parts[:fixed]) or "/" * fixed
    rest = [part for part in parts[fixed:] if part != "."] if len(parts) > 1 else ["**", *parts]
    if not parts[-1]:
        rest.append("**")
    try:
        ways = [_parts(way.split("/")) for way in _alternatives("/".join(rest))]
    except (re.error, ValueError, RecursionError) as error:
        raise ToolError(f"the glob {pattern!r} cannot be used: {error}") from None
    return folder, lambda found: is_negated != any(_fits(way, found) for way in ways)


def _alternatives(pattern: str) -> list[str]:
    """A pattern with `{a,b}` as one pattern for each."""
    depth, start, commas = 0, -1, list[int]()
    for at, letter in _letters(pattern):
        if letter == "{":
            depth += 1
            start = at if depth == 1 else start
        elif letter == "," and depth == 1:
            commas.append(at)
        elif letter == "}" and depth:
            depth -= 1
            if not depth:
                cuts = [start, *commas, at]
                inner = [pattern[left + 1 : right] for left, right in pairwise(cuts)]
                made = [way for each in inner for way in _alternatives(pattern[:start] + each + pattern[at + 1 :])]
                if len(made) > 1000:
                    raise ValueError("too many alternatives")
                return made
    if depth:
        raise ValueError("a { is not closed")
    return [pattern]


def _letters(pattern: str) -> Iterator[tuple[int, str]]:
    """The letters of a pattern that are not escaped, and where they are."""
    for found in re.finditer(r"\\.|(.)", pattern, re.DOTALL):
        if found[1]:
            yield found.start(), found[1]


def _parts(pattern: Sequence[str]) -> list[_Part]:
    """One for each part of a path. `**` at the end stands for one part at least."""
    parts = [None if part == "**" else _part(part) for part in pattern if part]
    return [*parts, _part("*")] if parts and parts[-1] is None else parts


@lru_cache(maxsize=4096)
def _part(pattern: str) -> re.Pattern[str]:
    """The expression for one part. What follows a star is looked for once only, so no pattern takes for ever."""
    pieces = [""]
    at = 0
    while at < len(pattern):
        letter = pattern[at]
        at += 1
        if letter == "*":
            pieces += [""] if pieces[-1] or len(pieces) == 1 else []
        elif letter == "?":
            pieces[-1] += "."
        elif letter == "[":
            end = pattern.find("]", at + 1 + (pattern[at : at + 1] in ("!", "^")))
            if end < 0:
                raise ValueError("a [ is not closed")
            pieces[-1] += _class(pattern[at:end])
            at = end + 1
        else:
            if letter == "\\" and at < len(pattern):
                letter = pattern[at]
                at += 1
            pieces[-1] += re.escape(letter)
    first, *rest = pieces
    if not rest:
        return re.compile(first, re.DOTALL)
    return re.compile(first + "".join(f"(?>.*?{piece})" for piece in rest[:-1]) + f".*{rest[-1]}", re.DOTALL)


def _class(inside: str) -> str:
    negated = inside.startswith(("!", "^"))
    letters = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside[negated:])
    return f"[{'^' if negated else ''}{letters}]"


def _fits(pattern: Sequence[_Part], parts: Parts) -> bool:
    """Follow all ways through a pattern at once."""
    if len(pattern) == 2 and pattern[0] is None and pattern[1] is not None:
        return pattern[1].fullmatch(parts[-1]) is not None
    states = _reached(pattern, {0})
    for part in parts:
        following: set[int] = set()
        for state in states:
            if state < len(pattern):
                wanted = pattern[state]
                if wanted is None:
                    following.add(state)
                elif wanted.fullmatch(part):
                    following.add(state + 1)
        states = _reached(pattern, following)
    return len(pattern) in states


def _reached(pattern: Sequence[_Part], states: set[int]) -> set[int]:
    """With those behind a `**`, which may be no part at all."""
    for state in range(len(pattern)):
        if state in states and pattern[state] is None:
            states.add(state + 1)
    return states


class Rule(msgspec.Struct, frozen=True):
    """A line of a `.gitignore`."""

    parts: list[_Part]
    is_negated: bool
    only_folders: bool

    def fits(self, parts: Parts) -> bool:
        return _fits(self.parts, parts)


Layers: TypeAlias = tuple[tuple[int, list[Rule]], ...]
"""The rules of each folder on the way down, with the number of its parts."""


class Folder(msgspec.Struct, frozen=True):
    """A folder on the way: its parts from where the search began, and the rules that hold in it.

    Rules hold within a repository only, and end where another one begins.
    """

    parts: Parts
    layers: Layers
    in_repository: bool


def walk(root: Path) -> Iterator[Parts]:
    """The files below a folder that are not ignored, in the order of their names."""
    prefix, folder = _above(root)
    stack = [_entries(root, prefix, folder)]
    while stack:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
        elif isinstance(found, Folder):
            stack.append(_entries(root, prefix, found))
        else:
            yield found


def _above(root: Path) -> tuple[Parts, Folder]:
    """Where a folder is in its repository, and what it has from the folders above it."""
    top = root
    while not os.path.lexists(top / GIT):
        if top.parent == top:
            return (), Folder((), (), in_repository=False)
        top = top.parent
    prefix = root.relative_to(top).parts
    layers = tuple((depth, _rules(top.joinpath(*prefix[:depth]))) for depth in range(len(prefix)))
    return prefix, Folder((), layers, in_repository=True)


def _entries(root: Path, prefix: Parts, folder: Folder) -> Iterator[Parts | Folder]:
    """The files and folders in a folder."""
    path = root.joinpath(*folder.parts)
    entries: list[os.DirEntry[str]] = []
    with suppress(OSError), os.scandir(path) as found:
        entries = sorted(found, key=lambda each: os.fsencode(each.name))
    begins = any(each.name == GIT for each in entries)
    layers = () if begins else folder.layers
    in_repository = begins or folder.in_repository
    if in_repository:
        layers = (*layers, (len(prefix) + len(folder.parts), _rules(path)))
    for each in entries:
        parts = (*folder.parts, each.name)
        is_folder = each.is_dir(follow_symlinks=False)
        if each.name == GIT or not (is_folder or each.is_file(follow_symlinks=False)):
            continue
        if not _is_ignored((*prefix, *parts), layers, is_folder):
            yield Folder(parts, layers, in_repository) if is_folder else parts


def _is_ignored(parts: Parts, layers: Layers, is_folder: bool) -> bool:
    """The last rule that fits decides, in the deepest folder that has one."""
    for depth, rules in reversed(layers):
        for rule in reversed(rules):
            if (is_folder or not rule.only_folders) and rule.fits(parts[depth:]):
                return not rule.is_negated
    return False


def _rules(folder: Path) -> list[Rule]:
    text = ""
    with suppress(OSError):
        text = (folder / ".gitignore").read_text("utf-8-sig", errors="surrogateescape")
    return [rule for line in text.split("\n") if (rule := _rule(line.removesuffix("\r"))) is not None]


def _rule(line: str) -> Rule | None:
    if line.startswith("#"):
        return None
    line = re.sub(r"(?<!\\)[ \t]+$", "", line)
    is_negated = line.startswith("!")
    line = line[is_negated:]
    only_folders = line.endswith("/")
    line = line.rstrip("/")
    if not line:
        return None
    parts = line.removeprefix("/").split("/") if "/" in line else ["**", line]
    try:
        return Rule(_parts(parts), is_negated, only_folders)
    except (re.error, ValueError):
        return None  # git takes no notice of it either
