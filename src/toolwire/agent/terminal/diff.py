"""The changes of files as the rows of a coloured diff, for an approval question.

Names and contents are untrusted: invisible characters are escaped, padding is counted, and every row is indented.
"""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from rich.cells import chop_cells
from rich.text import Text

from toolwire.agent.terminal.display import without_padding
from toolwire.agent.tools.changes import FileChange
from toolwire.core.terminal import escaped

CONTEXT = 3
"""Unchanged lines around a change."""
MAX_BYTES = 2 * 1024 * 1024
"""Of larger files no diff is made."""
MAX_PAIRS = 4_000_000
"""Pairs of lines that are compared; where there are more, all lines are shown as replaced."""
STYLES = {"+": "green", "-": "red", "@": "cyan", " ": ""}
NO_END = "⟨no line end⟩"


def can_be_shown(changes: Sequence[FileChange]) -> bool:
    """Whether the changes are those of text files that are not too large."""
    contents = [each or b"" for change in changes for each in (change.before, change.after)]
    return bool(changes) and sum(map(len, contents)) <= MAX_BYTES and not any(b"\0" in each for each in contents)


def diff_rows(changes: Sequence[FileChange], width: int) -> Iterator[Text]:
    """All changes, as rows of a terminal."""
    for change in changes:
        what = "new file" if change.before is None else "deleted" if change.after is None else "changed"
        for row in chop_cells(f"{escaped(change.name)} ({what})", max(width - 2, 2)):
            yield Text(f"  {row}", "bold")
        for line in without_padding(escaped(line).expandtabs() for line in _difference(change)):
            style = STYLES.get(line[:1], "dim")
            for row in chop_cells(line, max(width - 2, 2)):
                yield Text(f"  {row}", style)


def _difference(change: FileChange) -> Iterator[str]:
    """The lines of a unified diff, without its head."""
    before, after = _lines(change.before), _lines(change.after)
    same = next((index for index, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
    first = min(len(before), len(after)) if same is None else same
    last = 0  # equal lines at the end
    while last < min(len(before), len(after)) - first and before[-1 - last] == after[-1 - last]:
        last += 1
    start = max(0, first - CONTEXT)
    old = before[start : len(before) - max(0, last - CONTEXT)]
    new = after[start : len(after) - max(0, last - CONTEXT)]
    if len(old) * len(new) > MAX_PAIRS:
        yield _place(start, len(old), len(new))
        yield from (f"-{line}" for line in old)
        yield from (f"+{line}" for line in new)
        return
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT):
        (_, a, _, b, _), (_, _, a_end, _, b_end) = group[0], group[-1]
        yield f"@@ -{start + a + 1},{a_end - a} +{start + b + 1},{b_end - b} @@"
        for kind, a1, a2, b1, b2 in group:
            if kind == "equal":
                yield from (f" {line}" for line in old[a1:a2])
            else:
                yield from (f"-{line}" for line in old[a1:a2])
                yield from (f"+{line}" for line in new[b1:b2])


def _place(start: int, old: int, new: int) -> str:
    return f"@@ -{start + 1},{old} +{start + 1},{new} @@"


def _lines(content: bytes | None) -> list[str]:
    if not content:
        return []
    *lines, rest = content.decode(errors="backslashreplace").split("\n")
    return [*lines, f"{rest}{NO_END}"] if rest else lines
