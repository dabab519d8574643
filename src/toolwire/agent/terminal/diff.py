"""The changes that a call would make to files, as the rows of a coloured diff, for an approval question.

Names and contents are untrusted: invisible characters are escaped, padding is counted, and every row is indented.
"""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

import msgspec
from rich.cells import chop_cells
from rich.text import Text

from toolwire.agent.terminal.display import collapse_padding
from toolwire.agent.tools import file_access, files, patch
from toolwire.agent.tools.file_access import ConfinedPath, confine
from toolwire.core.display import escape_invisible
from toolwire.turns.tools.call import ToolCall, read_arguments
from toolwire.turns.tools.registry import Context, Tool

CONTEXT_LINES = 3
"""Unchanged lines around a change."""
MAX_BYTES = 2 * 1024 * 1024
"""Size of the changed files above which no diff is made."""
MAX_PAIRS = 4_000_000
"""Pairs of lines that are compared; if there are more, all lines are shown as replaced."""
STYLES = {"+": "green", "-": "red", "@": "cyan", " ": ""}
NO_LINE_END = "⟨no line end⟩"


class FileChange(msgspec.Struct, frozen=True):
    """A file before and after; None where it does not exist."""

    name: str
    before: bytes | None
    after: bytes | None


class _Write(msgspec.Struct):
    path: str
    content: str


class _Edit(msgspec.Struct):
    path: str
    old: str
    new: str
    all: bool = False


def planned_changes(tool: Tool, call: ToolCall, context: Context) -> list[FileChange]:
    """The changes that a call of Write, Edit or apply_patch would make; empty for other tools.

    Raises `ToolError` if the call could not work.
    """
    if tool is files.write:
        write = read_arguments(call, _Write)
        target = confine(write.path, context)
        return [FileChange(target.name, _read_existing(target, context), file_access.encode(write.content))]
    if tool is files.edit:
        edit = read_arguments(call, _Edit)
        plan = files.plan_edit(edit.path, edit.old, edit.new, context, everywhere=edit.all)
        return [FileChange(plan.target.name, plan.before.data, plan.after)]
    if tool is patch.apply_patch:
        drafts = patch.plan_patch(patch.patch_in(call), context)[0].drafts
        return [FileChange(each.target.name, _read_existing(each.target, context), each.content) for each in drafts]
    return []


def _read_existing(target: ConfinedPath, context: Context) -> bytes | None:
    with file_access.explain_errors(target, context):
        status = file_access.stat_target(target)
    return file_access.read_target(target, context).data if status is not None else None


def can_be_shown(changes: Sequence[FileChange]) -> bool:
    """Whether there are changes, of text files that are not too large."""
    contents = [each or b"" for change in changes for each in (change.before, change.after)]
    return bool(changes) and sum(map(len, contents)) <= MAX_BYTES and not any(b"\0" in each for each in contents)


def diff_rows(changes: Sequence[FileChange], width: int) -> Iterator[Text]:
    """All changes, as rows of a terminal."""
    for change in changes:
        what = "new file" if change.before is None else "deleted" if change.after is None else "changed"
        for row in chop_cells(f"{escape_invisible(change.name)} ({what})", max(width - 2, 2)):
            yield Text(f"  {row}", "bold")
        for line in collapse_padding(escape_invisible(line).expandtabs() for line in _unified_diff(change)):
            style = STYLES.get(line[:1], "dim")
            for row in chop_cells(line, max(width - 2, 2)):
                yield Text(f"  {row}", style)


def _unified_diff(change: FileChange) -> Iterator[str]:
    """The lines of a unified diff, without its header. Equal lines at both ends are not compared."""
    before, after = _lines(change.before), _lines(change.after)
    shorter = min(len(before), len(after))
    first = next((index for index in range(shorter) if before[index] != after[index]), shorter)
    last = 0
    while last < shorter - first and before[-1 - last] == after[-1 - last]:
        last += 1
    start = max(0, first - CONTEXT_LINES)
    old = before[start : len(before) - max(0, last - CONTEXT_LINES)]
    new = after[start : len(after) - max(0, last - CONTEXT_LINES)]
    if len(old) * len(new) > MAX_PAIRS:
        groups = [[("replace", 0, len(old), 0, len(new))]]
    else:
        groups = SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT_LINES)
    for group in groups:
        (_, a, _, b, _), (_, _, a_end, _, b_end) = group[0], group[-1]
        yield f"@@ -{start + a + 1},{a_end - a} +{start + b + 1},{b_end - b} @@"
        for kind, a1, a2, b1, b2 in group:
            if kind == "equal":
                yield from (f" {line}" for line in old[a1:a2])
            else:
                yield from (f"-{line}" for line in old[a1:a2])
                yield from (f"+{line}" for line in new[b1:b2])


def _lines(content: bytes | None) -> list[str]:
    if not content:
        return []
    *lines, rest = content.decode(errors="backslashreplace").split("\n")
    return [*lines, f"{rest}{NO_LINE_END}"] if rest else lines
