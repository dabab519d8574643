"""Searching the contents of files: by ripgrep if there is one, and else by a Python process that answers in its words.

Patterns are Python's then: what both know means the same, but for bytes that are no UTF-8, which `.` matches here.
It is no thread, because a bad pattern can keep `re` busy for ever, and everybody waiting; a process can be killed.
"""

import base64
import codecs
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from toolwire.agent.tools.confine import MAX_WHOLE
from toolwire.agent.tools.walk import GIT, walk

Mode: TypeAlias = Literal["files", "lines", "count"]


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

    @property
    def around(self) -> int:
        """Lines to look for around each match."""
        return self.context if self.mode == "lines" else 0


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


def command(question: Question, root: Path) -> list[str]:
    """What answers a question in lines of `Event`, or says what is wrong with it."""
    program = shutil.which("rg")
    return _python(question, root) if program is None else _ripgrep(program, question, root)


def _ripgrep(program: str, question: Question, root: Path) -> list[str]:
    words = [program, "--no-config", "--json", "--sort=path", "--no-messages", "--crlf", "--no-mmap", "--hidden"]
    words += ["--no-ignore-dot", "--no-ignore-exclude", "--no-ignore-global", f"--glob=!{GIT}"]
    words += [f"--max-filesize={MAX_WHOLE}", f"--context={question.around}"]
    if question.ignore_case:
        words.append("--ignore-case")
    if question.mode == "files":
        words.append("--max-count=1")
    name = question.glob.rpartition("/")[2]
    if name and "**" not in name and not re.search(r"[!:{}\\]", question.glob):
        # A type only narrows, where `--glob` would bring back what is ignored. Which files it is, `Names` decides.
        words += [f"--type-add=wanted:{name}", "--type=wanted"]
    return [*words, f"--regexp={question.pattern}", "--", str(root)]


_CHILD = """
import sys, types
source = sys.argv[1]
sys.path.append(source)
agent = sys.modules["toolwire.agent"] = types.ModuleType("toolwire.agent")  # without the engine
agent.__path__ = [source + "/toolwire/agent"]
from toolwire.agent.tools.ripgrep import main
main(*sys.argv[2:])
"""


def _python(question: Question, root: Path) -> list[str]:
    source = Path(__file__).parents[3]
    asked = msgspec.json.encode(question).decode()
    return [sys.executable, "-P", "-W", "ignore", "-c", _CHILD, str(source), asked, str(root)]


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
    around = question.around
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
