"""Read, Write and Edit: text files, by lines and by passages.

Line endings and bytes that are not UTF-8 survive an edit. Files are replaced atomically.
"""

import os
from codecs import getincrementaldecoder
from functools import partial
from typing import Annotated, BinaryIO

import msgspec

from toolwire.agent.tools import file_access
from toolwire.agent.tools.file_access import ConfinedPath, FileContent, confine, explain_errors
from toolwire.turns.tools.call import ToolError
from toolwire.turns.tools.concurrency import run_to_completion
from toolwire.turns.tools.registry import Context, tool

MAX_READ_LINES = 2000
"""Maximum lines that one call reads."""
MAX_READ_BYTES = 256 * 1024
"""Maximum bytes that one call reads."""
_SNIFFED_BYTES = 8192
"""Bytes that are searched for a NUL, which marks a binary file."""
_CHUNK_BYTES = 64 * 1024
_MAX_COUNTED_BYTES = 64 * 1024 * 1024
"""If the rest of a file is larger than this, its lines are not counted."""

FromOne = Annotated[int, msgspec.Meta(ge=1)]


@tool(name="Read", parallel=True)
def read(path: str, offset: FromOne = 1, limit: FromOne = MAX_READ_LINES, *, context: Context) -> str:
    """Read a text file. Gives numbered lines: the number, a tab, the line. The numbers are not part of the file.

    Args:
        path: The file, absolute or from the working directory.
        offset: The first line to read, counted from 1.
        limit: The maximum number of lines to read.
    """
    target = confine(path, context)
    with file_access.open_target(target, context) as file:
        if b"\0" in file.read(_SNIFFED_BYTES):
            raise ToolError(f"{target.name} is a binary file ({os.fstat(file.fileno()).st_size} bytes)")
        file.seek(0)
        skipped = 0
        while skipped < offset - 1 and (piece := file.readline(_CHUNK_BYTES)):
            skipped += piece.endswith(b"\n")
        lines, is_cut = _read_lines(file, limit)
        if not lines:
            total = skipped + (skipped < offset - 1 and _has_unterminated_line(file))
            if total:
                raise ToolError(f"{target.name} has only {_count(total, 'line')}")
            return "(the file is empty)"
        rest = _describe_rest(file, offset, len(lines), is_cut)
    numbered = (f"{number:6}\t{line.decode(errors='replace')}" for number, line in enumerate(lines, start=offset))
    text = "".join(numbered).removesuffix("\n")
    try:
        b"".join(lines).decode()
    except UnicodeDecodeError:
        text += "\n[some bytes are not UTF-8 and are shown as \ufffd]"
    return text + rest


@tool(name="Write", writes=True)
async def write(path: str, content: str, *, context: Context) -> str:
    """Create a file, or replace the content of an existing one. Creates missing directories.

    Args:
        path: The file, absolute or from the working directory.
        content: The complete content of the file.
    """
    file_access.check_writable(context, "Write may not change files")

    def replace() -> str:
        target = confine(path, context)
        data = file_access.encode(content)
        with explain_errors(target, context):
            before = file_access.stat_target(target)
            target.path.parent.mkdir(parents=True, exist_ok=True)
            file_access.replace_target(target, data, before, context)
        verb = "Wrote" if before is None else "Replaced"
        lines = data.count(b"\n") + (data[-1:] not in (b"\n", b""))
        return f"{verb} {target.name} ({_count(lines, 'line')}, {len(data)} bytes)."

    return await run_to_completion(replace)


@tool(name="Edit", writes=True)
async def edit(path: str, old: str, new: str, all: bool = False, *, context: Context) -> str:
    """Replace a passage of a text file. It must occur exactly once, unless `all` is true.

    Args:
        path: The file, absolute or from the working directory.
        old: The passage exactly as in the file, without line numbers.
        new: The text that replaces it.
        all: Replace every occurrence.
    """
    file_access.check_writable(context, "Edit may not change files")

    def replace() -> str:
        plan = plan_edit(path, old, new, context, everywhere=all)
        with explain_errors(plan.target, context):
            before = file_access.stat_target(plan.target)
            plan.before.check_unchanged(plan.target)
            file_access.replace_target(plan.target, plan.after, before, context)
        where = f"{'first ' if plan.found > 1 else ''}at line {plan.line}"
        return f"Edited {plan.target.name} ({_count(plan.found, 'replacement')}, {where})."

    return await run_to_completion(replace)


def _has_unterminated_line(file: BinaryIO) -> bool:
    """Whether the last line of a file has no line end."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 1))
    return file.read() not in (b"\n", b"")


def _read_lines(file: BinaryIO, limit: int) -> tuple[list[bytes], bool]:
    """Read lines up to the limits; the second value is true if the only line was too long and is cut."""
    lines: list[bytes] = []
    room = MAX_READ_BYTES
    while len(lines) < limit:
        line = file.readline(room + 1)
        if not line:
            break
        if len(line) > room:
            if lines:
                file.seek(-len(line), os.SEEK_CUR)
                break
            decoder = getincrementaldecoder("utf-8")("replace")
            decoder.decode(line[:room])
            cut = line[: room - len(decoder.getstate()[0])]  # without an incomplete character at the end
            file.seek(len(cut) - len(line), os.SEEK_CUR)
            return [cut], True
        lines.append(line)
        room -= len(line)
    return lines, False


def _describe_rest(file: BinaryIO, offset: int, count: int, is_cut: bool) -> str:
    """A line about the rest of the file and how to read it; empty at its end."""
    rest = os.fstat(file.fileno()).st_size - file.tell()
    if rest <= 0:
        return ""
    if is_cut:
        return f"\n[line {offset} is too long: cut here, {rest} bytes of the file left out; Grep finds passages in it]"
    following = offset + count
    if rest > _MAX_COUNTED_BYTES:
        return f"\n[{rest} bytes left out; continue with offset={following}]"
    lines = sum(piece.count(b"\n") for piece in iter(partial(file.read, _CHUNK_BYTES), b"")) + _has_unterminated_line(
        file
    )
    return f"\n[lines {following} to {following + lines - 1} left out; continue with offset={following}]"


class EditPlan(msgspec.Struct, frozen=True):
    """The change that an edit would make."""

    target: ConfinedPath
    before: FileContent
    after: bytes
    found: int
    """How often the passage occurs."""
    line: int
    """The line of its first occurrence."""


def plan_edit(path: str, old: str, new: str, context: Context, *, everywhere: bool) -> EditPlan:
    """Find the passage of an edit, and make the new content. Raises `ToolError`."""
    target = confine(path, context)
    if not old:
        raise ToolError("old is empty; Write replaces a whole file")
    if old == new:
        raise ToolError("old and new are the same")
    whole = file_access.read_target(target, context)
    if whole.is_binary:
        raise ToolError(f"{target.name} is a binary file")
    text = whole.data.decode(errors="surrogateescape")
    old, new = _adopt_line_endings(text, old, new)
    at = text.find(old)
    if at < 0:
        raise ToolError(f"old was not found in {target.name}{_find_with_other_spaces(text, old)}")
    found = text.count(old)
    if not everywhere and (found > 1 or text.find(old, at + 1) >= 0):
        raise ToolError(
            f"old occurs {max(found, 2)} times in {target.name}; include more of the text around it, or set all to true"
        )
    return EditPlan(target, whole, file_access.encode(text.replace(old, new)), found, text.count("\n", 0, at) + 1)


def _adopt_line_endings(text: str, old: str, new: str) -> tuple[str, str]:
    """The passages with the line endings of the file, because models write `\\n`."""
    lines = text.count("\n")

    def with_lf(text: str) -> str:
        return text.replace("\r\n", "\n")

    def with_crlf(text: str) -> str:
        return with_lf(text).replace("\n", "\r\n")

    changes = (with_crlf,) if lines and text.count("\r\n") == lines else (str, with_crlf, with_lf)
    change = next((change for change in changes if change(old) in text), changes[0])
    return change(old), change(new)


def _find_with_other_spaces(text: str, old: str) -> str:
    """A hint with the line of a passage that differs in white space only; empty if there is none."""
    if not old.strip():
        return ""
    wanted = [line.split() for line in old.strip().split("\n")]
    lines = [line.split() for line in text.split("\n")]
    for number in range(len(lines) - len(wanted) + 1):
        if lines[number] == wanted[0] and lines[number : number + len(wanted)] == wanted:
            return f"; at line {number + 1} it occurs with other white space"
    return ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
