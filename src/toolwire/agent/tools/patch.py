"""apply_patch: Codex's patches, over several files at once.

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

What is accepted, and what becomes of it, is what codex 0.166.0 makes of it, with four exceptions: all or nothing is
done, where Codex leaves half of a patch that fails; a move onto itself keeps the file, where Codex loses it; bytes that
are no UTF-8 are kept, where Codex refuses the file; and there is no `*** Environment ID:`, as it is not in the grammar.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Literal, TypeAlias

import msgspec

from toolwire.agent.call import CustomPayload, ToolCall, ToolError
from toolwire.agent.registry import Context, Result, as_result
from toolwire.agent.tools import confine
from toolwire.agent.tools.confine import Place, Whole, confined, entry, telling
from toolwire.core.events import CallKind
from toolwire.core.unwrap import Unwrap

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
"""White space as Rust knows it; Python's own `strip` takes four control characters more."""
_PLAIN = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | dict.fromkeys("\u2018\u2019\u201a\u201b", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f", '"')
    | dict.fromkeys("\xa0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " ")
)

Mark: TypeAlias = Literal[" ", "-", "+"]
Change: TypeAlias = tuple[Mark, str]


class Chunk(msgspec.Struct, frozen=True):
    """Lines that stand together: kept, removed and added. They follow a line `after`, if one is named."""

    after: str
    changes: tuple[Change, ...]
    at_end: bool


class AddFile(msgspec.Struct, frozen=True):
    path: str
    content: str


class DeleteFile(msgspec.Struct, frozen=True):
    path: str


class UpdateFile(msgspec.Struct, frozen=True):
    path: str
    move_to: str
    chunks: tuple[Chunk, ...]


Hunk: TypeAlias = AddFile | DeleteFile | UpdateFile


class ApplyPatch:
    """The tool. A free text by nature; a function with `input` where a protocol has no free text."""

    name = "apply_patch"
    description = (
        "The `apply_patch` tool can be used to edit files. This is a FREEFORM tool, so do not wrap the patch in JSON."
    )
    kind: CallKind = "custom"
    parallel = False
    writes = True
    parameters: msgspec.Raw | None = None
    format: msgspec.Raw | None = msgspec.Raw(
        msgspec.json.encode({"type": "grammar", "syntax": "lark", "definition": GRAMMAR})
    )

    async def run(self, call: ToolCall, context: Context) -> Result:
        confine.must_be_writable(context, self.name)
        return as_result(await confine.undisturbed(partial(apply, _input(call), context)))


apply_patch = ApplyPatch()


def _input(call: ToolCall) -> str:
    if isinstance(call.payload, CustomPayload):
        return call.text
    unwrap = Unwrap()
    return unwrap.feed(call.text) + unwrap.end()


def apply(patch: str, context: Context) -> str:
    """Do what a patch says, or nothing. Gives Codex's list of what was changed."""
    hunks = parse(patch)
    if not hunks:
        raise ToolError("the patch changes no files")
    plan = Plan(context)
    done = [plan.add(hunk) for hunk in hunks]
    plan.carry_out()
    told = dict.fromkeys(each for letter in "AMD" for each in done if each[0] == letter)
    return "\n".join(["Success. Updated the following files:", *told])


def parse(patch: str) -> list[Hunk]:
    lines = [line.rstrip("\r") for line in patch.strip(_WHITE).split("\n")]
    # GPT-4.1 wraps patches in a here-document, which nobody unwraps when there is no shell.
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
        while self._line is not None:
            header = self._line.strip(_WHITE)
            if header.startswith(ADD):
                yield AddFile(header.removeprefix(ADD), self._added())
            elif header.startswith(DELETE):
                self._at += 1
                yield DeleteFile(header.removeprefix(DELETE))
            elif header.startswith(UPDATE):
                yield UpdateFile(header.removeprefix(UPDATE), self._move(), tuple(self._chunks(header)))
            elif header == END and not any(line.strip(_WHITE) for line in self._lines[self._at + 1 :]):
                return  # there are two of them
            else:
                raise self._wrong(f"expected '{ADD}PATH', '{UPDATE}PATH' or '{DELETE}PATH'")

    def _added(self) -> str:
        self._at += 1
        first = self._at
        while self._line is not None and self._line.startswith("+"):
            self._at += 1
        return "".join(f"{line[1:]}\n" for line in self._lines[first : self._at])

    def _move(self) -> str:
        self._at += 1
        move = ""
        while self._line is not None:
            line = self._line.rstrip(_WHITE)
            if line.startswith(MOVE) and not move:
                move = line.removeprefix(MOVE)
            elif line != END_OF_FILE:  # it says nothing here, and is let pass
                break
            self._at += 1
        return move

    def _chunks(self, header: str) -> Iterator[Chunk]:
        chunk: Chunk | None = None
        while self._line is not None and not self._line.startswith((ADD, DELETE, UPDATE, END)):
            if chunk is not None and chunk.at_end and not self._line.strip(_WHITE):
                self._at += 1
                continue
            line = self._line.rstrip(_WHITE)
            is_marked = line == "@@" or line.startswith("@@ ")
            if not is_marked and chunk is not None:
                raise self._wrong("expected '@@' or the next file")
            self._at += is_marked
            chunk = Chunk(line[3:] if is_marked else "", *self._changes())
            yield chunk
        if chunk is None:
            raise ToolError(f"invalid patch: nothing is changed under '{header}'")

    def _changes(self) -> tuple[tuple[Change, ...], bool]:
        """The lines of a chunk, and whether the file ends with them."""
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
        return tuple(changes), at_end

    def _wrong(self, expected: str) -> ToolError:
        found = "the end" if self._line is None else repr(self._line)
        return ToolError(f"invalid patch: {expected} at line {self._at + 1}, found {found}")


class _Line(msgspec.Struct):
    text: str
    ending: str


def updated(text: str, chunks: tuple[Chunk, ...], name: str) -> str:
    """A text with its chunks applied. New lines end as the first line does; what is kept is kept as it is."""
    lines = _lines(text)
    ending = lines[0].ending or "\n" if lines else "\n"
    texts = [line.text for line in lines]
    edits: list[tuple[int, int, list[_Line]]] = []
    at = 0
    for chunk in chunks:
        if chunk.after:
            at = _seek(texts, [chunk.after], at)
            if at < 0:
                raise ToolError(f"there is no line '{chunk.after}' in {name}")
            at += 1
        changes = chunk.changes
        if all(mark == "+" for mark, _ in changes):
            edits.append((len(lines), 0, [_Line(added, ending) for _, added in changes]))
            continue
        start, changes = _located(texts, chunk, at, name)
        at = start
        made: list[_Line] = []
        for mark, line in changes:
            if mark == "+":
                made.append(_Line(line, ending))
                continue
            if mark == " ":
                made.append(lines[at])
            at += 1
        edits.append((start, at - start, made))
    out: list[_Line] = []
    done = 0
    for start, count, made in sorted(edits, key=lambda edit: edit[0]):
        out += lines[done:start] + made
        done = start + count
    return "".join(line.text + (line.ending or ending) for line in out + lines[done:])


def _lines(text: str) -> list[_Line]:
    *whole, last = re.split(r"(\r\n|\n|\r)", text)
    lines = [_Line(line, ending) for line, ending in zip(whole[::2], whole[1::2], strict=True)]
    return [*lines, _Line(last, "")] if last else lines


def _located(texts: list[str], chunk: Chunk, at: int, name: str) -> tuple[int, tuple[Change, ...]]:
    """Where a chunk belongs, and what it changes there: models add an empty line at the end that the file has not."""
    changes = chunk.changes
    start = _seek(texts, _old(changes), at, at_end=chunk.at_end)
    if start < 0 and not _old(changes)[-1]:
        changes = _without_last_blank(changes)
        start = _seek(texts, _old(changes), at, at_end=chunk.at_end)
    if start < 0:
        where = f"at the end of {name}" if chunk.at_end else f"in {name}"
        raise ToolError(f"these lines were not found {where}:\n" + "\n".join(_old(chunk.changes)))
    return start, changes


def _old(changes: tuple[Change, ...]) -> list[str]:
    return [line for mark, line in changes if mark != "+"]


def _without_last_blank(changes: tuple[Change, ...]) -> tuple[Change, ...]:
    out = list(changes)
    last = max(number for number, (mark, _) in enumerate(out) if mark != "+")
    out[last : last + 1] = [("+", "")] if out[last][0] == " " else []
    new = [number for number, (mark, _) in enumerate(out) if mark != "-"]
    if new and not out[new[-1]][1]:
        out[new[-1] : new[-1] + 1] = [("-", "")] if out[new[-1]][0] == " " else []
    return tuple(out)


_LOOKS: tuple[Callable[[str], str], ...] = (
    lambda line: line,
    lambda line: line.rstrip(_WHITE),
    lambda line: line.strip(_WHITE),
    lambda line: line.strip(_WHITE).translate(_PLAIN),
)
"""How closely lines are looked at: first as they are, at last without their white space and typography."""


def _seek(texts: list[str], wanted: list[str], at: int, *, at_end: bool = False) -> int:
    """Where lines stand, from a line on; -1 if nowhere."""
    last = len(texts) - len(wanted)
    if not wanted:
        return at
    for look in _LOOKS:
        seen = [look(line) for line in texts]
        lines = [look(line) for line in wanted]
        for start in range(max(at, last) if at_end else at, last + 1):
            if seen[start] == lines[0] and seen[start : start + len(lines)] == lines:
                return start
    return -1


class _Draft(msgspec.Struct, frozen=True):
    """What a file shall become; nothing, if it shall go."""

    place: Place
    content: bytes | None
    like: os.stat_result | None = None


class Plan:
    """The files as they shall be. A hunk sees what the ones before it have made of them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._drafts: dict[Path, _Draft] = {}
        self._read: list[tuple[Place, Whole]] = []

    def add(self, hunk: Hunk) -> str:
        """Take up a hunk. Gives what it does to which file, in Codex's words."""
        match hunk:
            case AddFile(path, content):
                place = self._place(path)
                self._draft(place, confine.encoded(content), self._existing(place))
                return f"A {path}"
            case DeleteFile(path):
                self._delete(path)
                return f"D {path}"
            case UpdateFile(path, move_to, chunks):
                place = self._place(path)
                text = self._content(place).decode(errors="surrogateescape")
                self._update(place, move_to, confine.encoded(updated(text, chunks, path)))
                return f"M {move_to or path}"

    def carry_out(self) -> None:
        """Change the files. If one of them cannot be changed, all are put back."""
        try:
            with ExitStack() as undo:
                spare = self._changed(undo)
                undo.pop_all()
        except OSError as error:
            raise ToolError(f"the patch failed, and what it had changed could not be put back: {error}") from None
        for path in spare:
            with suppress(OSError):
                path.unlink()

    def _changed(self, undo: ExitStack) -> list[Path]:
        """Gives what was set aside."""
        staged: dict[Path, Path] = {}
        for path, draft in self._drafts.items():
            if draft.content is not None:
                with telling(draft.place, self._context):
                    _make_folder(path.parent, undo)
                    staged[path] = confine.staged(draft.place, draft.content, draft.like)
                    undo.callback(staged[path].unlink, missing_ok=True)
        for place, whole in self._read:
            whole.must_still_be(place)
        spare: list[Path] = []
        for path, draft in sorted(self._drafts.items(), key=lambda item: item[1].content is not None):
            with telling(draft.place, self._context):
                if os.path.lexists(path):
                    spare.append(_set_aside(path, undo))
                else:
                    undo.callback(path.unlink, missing_ok=True)
                if path in staged:
                    staged[path].replace(path)
                else:
                    path.unlink(missing_ok=True)
        return spare

    def _update(self, place: Place, move_to: str, content: bytes) -> None:
        like = self._existing(place)
        target = self._place(move_to) if move_to else place
        if target.path != place.path:
            self._existing(target)  # refuses a directory
            self._delete(place.name)
        self._draft(target, content, like)

    def _delete(self, name: str) -> None:
        link = entry(name, self._context)
        if link.path in self._drafts:
            self._content(link)
        with telling(link, self._context):
            if link.path not in self._drafts and stat.S_ISDIR(link.path.lstat().st_mode):
                raise ToolError(f"{name} is a directory")
        self._draft(link, None)

    def _draft(self, place: Place, content: bytes | None, like: os.stat_result | None = None) -> None:
        self._drafts[place.path] = _Draft(place, content, like)

    def _place(self, name: str) -> Place:
        """Where a path leads after the hunks so far: a link may be gone by then."""
        link = entry(name, self._context)
        return link if link.path in self._drafts else confined(name, self._context)

    def _existing(self, place: Place) -> os.stat_result | None:
        draft = self._drafts.get(place.path)
        return confine.existing(place) if draft is None else draft.like

    def _content(self, place: Place) -> bytes:
        draft = self._drafts.get(place.path)
        if draft is None:
            whole = confine.read_whole(place, self._context)
            self._read.append((place, whole))
            return whole.data
        if draft.content is None:
            raise ToolError(f"there is no {place.name} any more: the patch has deleted or moved it")
        return draft.content


def _make_folder(path: Path, undo: ExitStack) -> None:
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        undo.callback(_remove_folder, each)


def _remove_folder(path: Path) -> None:
    with suppress(OSError):  # somebody has put something into it
        path.rmdir()


def _set_aside(path: Path, undo: ExitStack) -> Path:
    """Keep what stands at a path under another name, from where it can be put back."""
    spare = path.parent / f".{token_hex(8)}.tmp"
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))  # it was none a moment ago
    try:
        os.link(path, spare, follow_symlinks=False)
    except OSError:  # not every file system has hard links
        path.rename(spare)
    undo.callback(spare.replace, path)
    return spare
