"""Read, Write and Edit: text files, by lines and by passages.

A file is what its bytes say: line endings and bytes that are no UTF-8 survive an edit. Nothing is ever half written.
"""

import os
from codecs import getincrementaldecoder
from functools import partial
from typing import Annotated, BinaryIO

import msgspec

from toolwire.agent.tools import confine
from toolwire.agent.tools.confine import ConfinedPath, FileContent, confined, explaining
from toolwire.turns.tools.call import ToolError
from toolwire.turns.tools.registry import Context, tool

MAX_LINES = 2000
MAX_BYTES = 256 * 1024
_SNIFFED = 8192
_PIECE = 64 * 1024
_COUNTED = 64 * 1024 * 1024
"""How much of what was left out is read in order to count its lines."""

FromOne = Annotated[int, msgspec.Meta(ge=1)]


@tool(name="Read", parallel=True)
def read(path: str, offset: FromOne = 1, limit: FromOne = MAX_LINES, *, context: Context) -> str:
    """Read a text file. Gives numbered lines: the number, a tab, the line. The numbers are not part of the file.

    Args:
        path: The file, absolute or from the working directory.
        offset: The first line to read, counted from 1.
        limit: How many lines to read at most.
    """
    target = confined(path, context)
    with confine.opened(target, context) as file:
        _refuse_binary(target, file)
        before = _skip(file, offset - 1)
        taken, is_cut = _take(file, limit)
        if not taken and before:
            raise ToolError(f"{target.name} has only {_count(before, 'line')}")
        left = _left_out(file, offset, len(taken), is_cut)
    return _numbered(taken, offset) + left if taken else "(the file is empty)"


@tool(name="Write", writes=True)
async def write(path: str, content: str, *, context: Context) -> str:
    """Write a file: a new one, or all of an existing one anew. Makes the directories it needs.

    Args:
        path: The file, absolute or from the working directory.
        content: All that the file shall hold.
    """
    confine.must_be_writable(context, "Write may not change files")
    return await confine.undisturbed(partial(_write, path, content, context))


@tool(name="Edit", writes=True)
async def edit(path: str, old: str, new: str, all: bool = False, *, context: Context) -> str:
    """Replace a passage of a text file. It must be there exactly once, unless `all` is true.

    Args:
        path: The file, absolute or from the working directory.
        old: The passage as it stands in the file, without line numbers.
        new: What takes its place.
        all: Replace it wherever it stands.
    """
    confine.must_be_writable(context, "Edit may not change files")
    return await confine.undisturbed(partial(_edit, path, old, new, context, everywhere=all))


def _refuse_binary(target: ConfinedPath, file: BinaryIO) -> None:
    if b"\0" in file.read(_SNIFFED):
        raise ToolError(f"{target.name} is a binary file ({os.fstat(file.fileno()).st_size} bytes)")
    file.seek(0)


def _skip(file: BinaryIO, lines: int) -> int:
    """Go on behind that many lines. Gives how many there were."""
    seen = 0
    piece = b""
    while seen < lines and (piece := file.readline(_PIECE)):
        seen += piece.endswith(b"\n")
    return seen + (seen < lines and _is_open(file))


def _is_open(file: BinaryIO) -> bool:
    """Whether the file ends with a line that nothing ends."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 1))
    return file.read() not in (b"\n", b"")


def _take(file: BinaryIO, limit: int) -> tuple[list[bytes], bool]:
    """Lines up to the bounds. True if the only one was too long and is cut."""
    taken: list[bytes] = []
    room = MAX_BYTES
    while len(taken) < limit:
        line = file.readline(room + 1)
        if not line:
            break
        if len(line) > room:
            if taken:
                file.seek(-len(line), os.SEEK_CUR)
                break
            kept = _without_partial_char(line[:room])
            file.seek(len(kept) - len(line), os.SEEK_CUR)
            return [kept], True
        taken.append(line)
        room -= len(line)
    return taken, False


def _without_partial_char(data: bytes) -> bytes:
    """The bytes without an incomplete UTF-8 character at their end."""
    decoder = getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    waiting, _ = decoder.getstate()
    return data[: len(data) - len(waiting)]


def _left_out(file: BinaryIO, offset: int, taken: int, is_cut: bool) -> str:
    """A line that says what was left out, and how to read it."""
    here = file.tell()
    rest = os.fstat(file.fileno()).st_size - here
    if rest <= 0:
        return ""
    if is_cut:
        return f"\n[line {offset} is too long: cut here, {rest} bytes of the file left out; Grep finds passages in it]"
    following = offset + taken
    if rest > _COUNTED:
        return f"\n[{rest} bytes left out; go on with offset={following}]"
    lines = sum(piece.count(b"\n") for piece in iter(partial(file.read, _PIECE), b"")) + _is_open(file)
    return f"\n[lines {following} to {following + lines - 1} left out; go on with offset={following}]"


def _numbered(lines: list[bytes], first: int) -> str:
    text = "".join(
        f"{number:6}\t{line.decode(errors='replace')}" for number, line in enumerate(lines, start=first)
    ).removesuffix("\n")
    try:
        b"".join(lines).decode()
    except UnicodeDecodeError:
        return f"{text}\n[some bytes are not UTF-8 and are shown as \ufffd]"
    return text


def _write(path: str, content: str, context: Context) -> str:
    target = confined(path, context)
    data = confine.encoded(content)
    with explaining(target, context):
        before = confine.existing(target)
        target.path.parent.mkdir(parents=True, exist_ok=True)
        confine.replace(target, data, before)
    lines = data.count(b"\n") + (data[-1:] not in (b"\n", b""))
    return f"{'Wrote' if before is None else 'Replaced'} {target.name} ({_count(lines, 'line')}, {len(data)} bytes)."


class EditPlan(msgspec.Struct, frozen=True):
    """What an edit would change."""

    target: ConfinedPath
    before: FileContent
    after: bytes
    found: int
    """How often the passage is there."""
    line: int
    """Where it is first."""


def plan_edit(path: str, old: str, new: str, context: Context, *, everywhere: bool) -> EditPlan:
    """Find out what an edit would change. Raises `ToolError`."""
    target = confined(path, context)
    if not old:
        raise ToolError("old is empty; Write makes a file anew")
    if old == new:
        raise ToolError("old and new are the same")
    whole = confine.read_whole(target, context)
    if whole.is_binary:
        raise ToolError(f"{target.name} is a binary file")
    text = whole.data.decode(errors="surrogateescape")
    old, new = _with_endings_of(text, old, new)
    at = text.find(old)
    if at < 0:
        raise ToolError(f"old was not found in {target.name}{_hint(text, old)}")
    found = text.count(old)
    if not everywhere and (found > 1 or text.find(old, at + 1) >= 0):
        raise ToolError(
            f"old is there {max(found, 2)} times in {target.name}; give more of what is around it, or set all to true"
        )
    return EditPlan(target, whole, confine.encoded(text.replace(old, new)), found, text.count("\n", 0, at) + 1)


def _edit(path: str, old: str, new: str, context: Context, *, everywhere: bool) -> str:
    plan = plan_edit(path, old, new, context, everywhere=everywhere)
    with explaining(plan.target, context):
        before = confine.existing(plan.target)
        plan.before.must_be_unchanged(plan.target)
        confine.replace(plan.target, plan.after, before)
    where = f"{'first ' if plan.found > 1 else ''}at line {plan.line}"
    return f"Edited {plan.target.name} ({_count(plan.found, 'replacement')}, {where})."


def _with_endings_of(text: str, old: str, new: str) -> tuple[str, str]:
    """The passages with the line endings that the file has where they stand. Models write `\\n`."""
    lines = text.count("\n")
    changes = (_crlf,) if lines and text.count("\r\n") == lines else (str, _crlf, _lf)
    change = next((change for change in changes if change(old) in text), changes[0])
    return change(old), change(new)


def _lf(text: str) -> str:
    return text.replace("\r\n", "\n")


def _crlf(text: str) -> str:
    return _lf(text).replace("\n", "\r\n")


def _hint(text: str, old: str) -> str:
    """Where the passage stands, if it is only its white space that differs."""
    if not old.strip():
        return ""
    wanted = [line.split() for line in old.strip().split("\n")]
    lines = [line.split() for line in text.split("\n")]
    for number in range(len(lines) - len(wanted) + 1):
        if lines[number] == wanted[0] and lines[number : number + len(wanted)] == wanted:
            return f"; at line {number + 1} it stands with other white space"
    return ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
