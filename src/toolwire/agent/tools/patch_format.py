"""The patch format of Codex: parsing, and applying to a text.

*** Begin Patch
*** Update File: src/app.py
*** Move to: src/main.py
@@ def greet():
-    print("Hi")
+    print("Hello")
     return
*** Add File: notes.txt
+one line
*** Delete File: old.txt
*** End Patch
"""

import re
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Literal, TypeAlias

import msgspec

from toolwire.turns.tools.call import ToolError

GRAMMAR = """\
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""The grammar as Codex declares it on the wire."""

BEGIN, END = "*** Begin Patch", "*** End Patch"
ADD, DELETE, UPDATE = "*** Add File: ", "*** Delete File: ", "*** Update File: "
MOVE, END_OF_FILE = "*** Move to: ", "*** End of File"

_WHITE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""White space as Rust defines it; Python's own `strip` removes four more control characters."""
_PLAIN = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | dict.fromkeys("\u2018\u2019\u201a\u201b", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f", '"')
    | dict.fromkeys("\xa0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " ")
)

Mark: TypeAlias = Literal[" ", "-", "+"]
Change: TypeAlias = tuple[Mark, str]


class Chunk(msgspec.Struct, frozen=True):
    """Consecutive lines: kept, removed and added. They follow the line `after`, unless that is empty."""

    after: str
    changes: tuple[Change, ...]
    at_end: bool
    """Whether the file ends with these lines."""


class AddFile(msgspec.Struct, frozen=True):
    """A hunk that adds a file."""

    path: str
    content: str


class DeleteFile(msgspec.Struct, frozen=True):
    """A hunk that deletes a file."""

    path: str


class UpdateFile(msgspec.Struct, frozen=True):
    """A hunk that changes a file, and may move it."""

    path: str
    move_to: str
    chunks: tuple[Chunk, ...]


Hunk: TypeAlias = AddFile | DeleteFile | UpdateFile


def parse(patch: str) -> list[Hunk]:
    """Read a patch. Raises `ToolError`."""
    lines = [line.rstrip("\r") for line in patch.strip(_WHITE).split("\n")]
    # GPT-4.1 wraps patches in a here-document, which no shell unwraps here.
    if lines[0] in ("<<EOF", "<<'EOF'", '<<"EOF"') and lines[-1].endswith("EOF") and len(lines) >= 4:
        lines = lines[1:-1]
    if lines[0].strip(_WHITE) != BEGIN:
        raise ToolError(f"the first line of a patch must be '{BEGIN}'")
    if lines[-1].strip(_WHITE) != END:
        raise ToolError(f"the last line of a patch must be '{END}'")
    return list(_Reader(lines[:-1]).hunks())


class _Reader:
    """Reads the lines of a patch, from the second one on."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 1

    @property
    def _line(self) -> str | None:
        return self._lines[self._at] if self._at < len(self._lines) else None

    def hunks(self) -> Iterator[Hunk]:
        """The hunks in their order. Raises `ToolError`."""
        while self._line is not None:
            header = self._line.strip(_WHITE)
            if header.startswith(ADD):
                added = list(takewhile(lambda line: line.startswith("+"), self._lines[self._at + 1 :]))
                self._at += 1 + len(added)
                yield AddFile(header.removeprefix(ADD), "".join(f"{line[1:]}\n" for line in added))
            elif header.startswith(DELETE):
                self._at += 1
                yield DeleteFile(header.removeprefix(DELETE))
            elif header.startswith(UPDATE):
                self._at += 1
                yield self._read_update(header)
            elif header == END and not any(line.strip(_WHITE) for line in self._lines[self._at + 1 :]):
                return  # a second end marker
            else:
                raise self._wrong(f"expected '{ADD}PATH', '{UPDATE}PATH' or '{DELETE}PATH'")

    def _read_update(self, header: str) -> UpdateFile:
        move = ""
        while self._line is not None:
            line = self._line.rstrip(_WHITE)
            if line.startswith(MOVE) and not move:
                move = line.removeprefix(MOVE)
            elif line != END_OF_FILE:  # it has no meaning here, and is skipped
                break
            self._at += 1
        chunks: list[Chunk] = []
        while self._line is not None and not self._line.startswith((ADD, DELETE, UPDATE, END)):
            line = self._line.rstrip(_WHITE)
            if not line.strip(_WHITE) and chunks and chunks[-1].at_end:
                self._at += 1
                continue
            is_marked = line == "@@" or line.startswith("@@ ")
            if not is_marked and chunks:
                raise self._wrong("expected '@@' or the next file")
            self._at += is_marked
            chunks.append(self._read_chunk(line[3:] if is_marked else ""))
        if not chunks:
            raise ToolError(f"invalid patch: nothing is changed under '{header}'")
        return UpdateFile(header.removeprefix(UPDATE), move, tuple(chunks))

    def _read_chunk(self, after: str) -> Chunk:
        changes: list[Change] = []
        while (line := self._line) is not None:
            match line[:1]:
                case " " | "-" | "+" as mark:
                    changes.append((mark, line[1:]))
                case "":
                    changes.append((" ", ""))
                case _:
                    break
            self._at += 1
        if not changes:
            raise self._wrong("expected a line that starts with ' ', '-' or '+'")
        at_end = line is not None and line.rstrip(_WHITE) == END_OF_FILE
        self._at += at_end
        return Chunk(after, tuple(changes), at_end)

    def _wrong(self, expected: str) -> ToolError:
        found = "the end" if self._line is None else repr(self._line)
        return ToolError(f"invalid patch: {expected} at line {self._at + 1}, found {found}")


def apply_chunks(text: str, chunks: tuple[Chunk, ...], name: str) -> str:
    """Apply chunks to a text. New lines get the line ending of the first line; kept lines stay as they are.

    Raises `ToolError` if the lines of a chunk are not found.
    """
    endings = re.findall(r"\r\n|\n|\r", text)
    ending = endings[0] if endings else "\n"
    if text and not text.endswith(("\n", "\r")):
        text += ending
    lines = re.findall(r"[^\r\n]*(?:\r\n|\n|\r)", text)
    texts = [line.rstrip("\r\n") for line in lines]
    edits: list[tuple[int, int, list[str]]] = []
    at = 0
    for chunk in chunks:
        if chunk.after:
            at = _find_lines(texts, [chunk.after], at)
            if at < 0:
                raise ToolError(f"there is no line '{chunk.after}' in {name}")
            at += 1
        if not _old_lines(chunk.changes):
            edits.append((len(lines), 0, [added + ending for _, added in chunk.changes]))
            continue
        start, changes = _locate(texts, chunk, at, name)
        at = start
        made: list[str] = []
        for mark, line in changes:
            if mark == "+":
                made.append(line + ending)
                continue
            if mark == " ":
                made.append(lines[at])
            at += 1
        edits.append((start, at - start, made))
    out: list[str] = []
    done = 0
    for start, count, made in sorted(edits, key=lambda edit: edit[0]):
        out += lines[done:start] + made
        done = start + count
    return "".join(out + lines[done:])


def _locate(texts: list[str], chunk: Chunk, at: int, name: str) -> tuple[int, tuple[Change, ...]]:
    """The line where a chunk applies, and its changes, without a last empty line that models add and the file lacks."""
    changes = chunk.changes
    start = _find_lines(texts, _old_lines(changes), at, at_end=chunk.at_end)
    if start < 0 and not _old_lines(changes)[-1]:
        changes = _drop_last_blank(changes)
        start = _find_lines(texts, _old_lines(changes), at, at_end=chunk.at_end)
    if start < 0:
        where = f"at the end of {name}" if chunk.at_end else f"in {name}"
        raise ToolError(f"these lines were not found {where}:\n" + "\n".join(_old_lines(chunk.changes)))
    return start, changes


def _old_lines(changes: tuple[Change, ...]) -> list[str]:
    return [line for mark, line in changes if mark != "+"]


def _drop_last_blank(changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """The changes without an empty last line, among the old lines and among the new ones."""
    out = list(changes)
    last = max(number for number, (mark, _) in enumerate(out) if mark != "+")
    out[last : last + 1] = [("+", "")] if out[last][0] == " " else []
    new = [number for number, (mark, _) in enumerate(out) if mark != "-"]
    if new and not out[new[-1]][1]:
        out[new[-1] : new[-1] + 1] = [("-", "")] if out[new[-1]][0] == " " else []
    return tuple(out)


_NORMALISATIONS: tuple[Callable[[str], str], ...] = (
    lambda line: line,
    lambda line: line.rstrip(_WHITE),
    lambda line: line.strip(_WHITE),
    lambda line: line.strip(_WHITE).translate(_PLAIN),
)
"""How lines are compared: first as they are, last without outer white space and typographic characters."""


def _find_lines(texts: list[str], wanted: list[str], at: int, *, at_end: bool = False) -> int:
    """The index of the first occurrence of consecutive lines, starting at line `at`; -1 if there is none."""
    last = len(texts) - len(wanted)
    if not wanted:
        return at
    for normalise in _NORMALISATIONS:
        candidates = [normalise(line) for line in texts]
        lines = [normalise(line) for line in wanted]
        for start in range(max(at, last) if at_end else at, last + 1):
            if candidates[start] == lines[0] and candidates[start : start + len(lines)] == lines:
                return start
    return -1
