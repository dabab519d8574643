"""Asks the user whether a call may run: shows all of it, an edit as a diff, and reads the answer.

Names and contents are untrusted: invisible characters are escaped, padding is counted, and every row is indented.
"""

import asyncio
import re
import termios
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path

import msgspec
from rich.cells import chop_cells
from rich.console import ConsoleRenderable
from rich.text import Text

from toolwire.agent.allowed_commands import AllowedCommands
from toolwire.agent.approval import escalates, leaves_sandbox
from toolwire.agent.changes import is_unknown
from toolwire.agent.terminal.display import collapse_padding, rows_of
from toolwire.agent.terminal.view import View
from toolwire.agent.tools import file_access, files, patch
from toolwire.agent.tools.file_access import ConfinedPath, confine
from toolwire.core.display import escape_invisible
from toolwire.turns.tools.call import ToolCall, read_arguments
from toolwire.turns.tools.registry import Context, FileChange, Tool

MAX_ROWS = 200
"""Rows of a call that are shown before asking whether to show the rest."""
SETTLE_SECONDS = 0.05
"""Seconds to wait before a question, so that earlier events are shown first."""
CONTEXT_LINES = 3
"""Unchanged lines around a change."""
MAX_DIFF_BYTES = 2 * 1024 * 1024
"""Size of the changed files above which no diff is made."""
MAX_PAIRS = 4_000_000
"""Pairs of lines that are compared; if there are more, all lines are shown as replaced."""
STYLES = {"+": "green", "-": "red", "@": "cyan", " ": ""}
NO_LINE_END = "⟨no line end⟩"

_NO = re.compile(r"no?\b[\s,.:;-]*", re.IGNORECASE)


class Questions:
    """Asks about one call after the other, and remembers for which tools and commands the answer is always yes.

    `cwd` returns the working directory of the tools. `on_hangup` is called when the terminal is gone.
    """

    def __init__(self, view: View, cwd: Callable[[], Path], on_hangup: Callable[[], object]) -> None:
        self.always: set[str] = set()
        """The tools that run without a question, except for calls that ask for more than the default."""
        self.commands = AllowedCommands(cwd)
        """The commands that run without a question."""
        self._view = view
        self._cwd = cwd
        self._on_hangup = on_hangup
        self._one_question = asyncio.Lock()

    async def ask(self, tool: Tool, call: ToolCall) -> bool | str:
        """Whether a call may run: True, False, or the reason why not. Asks one question at a time.

        Raises `ToolError` if the call would fail.
        """
        async with self._one_question:
            is_allowed = tool.name in self.always or self.commands.allows(call)
            if is_allowed and not escalates(call, Context(self._cwd())):
                return True
            width = self._view.console.width
            rows = await asyncio.to_thread(make_call_rows, tool, call, Context(self._cwd()), width)
            await asyncio.sleep(SETTLE_SECONDS)
            try:
                async with self._view.asking(call.call_id):
                    return await self._show_call(call, rows) and await self._read_answer(tool, call)
            except (OSError, termios.error):  # the terminal is gone
                self._on_hangup()
                raise asyncio.CancelledError from None

    async def _show_call(self, call: ToolCall, rows: Iterator[ConsoleRenderable]) -> bool:
        """Show a call; returns whether the user has seen all of it."""
        where = " without a sandbox" if leaves_sandbox(call) else ""
        self._print(Text.assemble((escape_invisible(call.name), "bold yellow"), f" wants to run{where}:"))
        console, count = self._view.console, 0
        while some := await asyncio.to_thread(lambda: [*islice(rows, MAX_ROWS)]):  # comparing files takes time
            if count == MAX_ROWS:
                self._print(Text(f"This is not all of it: the call has {len(call.text):,} characters."))
                answer = await self._view.canvas.ask("show the rest? [s/N] ")
                if answer.strip().lower() not in ("s", "show"):
                    return False
            self._print(*some)
            count += len(some)
        if count > console.height - 3:
            self._print(Text(f"The call has {count:,} rows, more than fit on the screen: scroll up to see them."))
        return True

    async def _read_answer(self, tool: Tool, call: ToolCall) -> bool | str:
        prefixes = [] if escalates(call, Context(self._cwd())) else self.commands.offers(call)
        can_keep = bool(prefixes) and self.commands.can_keep
        if prefixes:
            shown = ", ".join(f"`{' '.join(prefix)}`" for prefix in prefixes)
            kept = ", [f] in this folder" if can_keep else ""
            self._print(Text(f"always allow {shown}: [p] until the program ends{kept}"))
        question = f"allow? [y]es / [a]lways for {escape_invisible(call.name)} / [N]o, or why not: "
        answer = (await self._view.canvas.ask(question)).strip()
        match answer.lower():
            case "y" | "yes":
                return True
            case "a" | "always":
                self.always.add(tool.name)
                return True
            case "p" | "f" as kept if prefixes and (can_keep or kept == "p"):
                try:
                    self.commands.add(prefixes, in_folder=kept == "f")
                except OSError as error:
                    self._view.note(f"this is allowed until the program ends, but cannot be kept: {error}")
                return True
            case _:
                return _NO.sub("", answer, count=1) if _NO.match(answer) else answer or False

    def _print(self, *lines: ConsoleRenderable) -> None:
        self._view.print(*lines, matters=True)
        self._view.refresh()


def make_call_rows(tool: Tool, call: ToolCall, context: Context, width: int) -> Iterator[ConsoleRenderable]:
    """A call as rows of a terminal: a diff if it changes text files that are not too large, else its arguments.

    Raises `ToolError` if the call would fail.
    """
    changes = plan_changes(tool, call, context)
    if changes and can_diff(changes):
        return diff_rows(changes, width)
    return (Text(row, no_wrap=True, overflow="ignore") for row in rows_of(call, width))


def can_diff(changes: Sequence[FileChange]) -> bool:
    """Whether changes are of text files that are not too large."""
    contents = [each or b"" for change in changes for each in (change.before, change.after)]
    is_text = not any(b"\0" in each for each in contents) and not any(map(is_unknown, changes))
    return is_text and sum(map(len, contents)) <= MAX_DIFF_BYTES


class _Write(msgspec.Struct):
    path: str
    content: str


class _Edit(msgspec.Struct):
    path: str
    old: str
    new: str
    all: bool = False


def plan_changes(tool: Tool, call: ToolCall, context: Context) -> list[FileChange]:
    """The changes that a call of Write, Edit or apply_patch would make; empty for other tools.

    Raises `ToolError` if the call would fail.
    """
    if tool is files.write:
        write = read_arguments(call, _Write)
        target = confine(write.path, context)
        return [_plan_change(target, file_access.encode(write.content), context)]
    if tool is files.edit:
        edit = read_arguments(call, _Edit)
        plan = files.plan_edit(edit.path, edit.old, edit.new, context, everywhere=edit.all)
        return [FileChange(plan.target.name, plan.target.path, plan.before.data, plan.after)]
    if tool is patch.apply_patch:
        drafts = patch.plan_patch(patch.read_patch(call), context)[0].drafts
        return [_plan_change(each.target, each.content, context) for each in drafts]
    return []


def _plan_change(target: ConfinedPath, after: bytes | None, context: Context) -> FileChange:
    with file_access.explain_errors(target, context):
        file_access.stat_target(target)
    return file_access.plan_change(target, after)


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
