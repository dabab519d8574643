"""The changes that the file tools have made in a session, so that the user can see them and take them back.

They are kept in memory, prompt by prompt, up to a limit. What commands have changed is not known.
"""

from pathlib import Path

from toolwire.agent.tools.file_access import ConfinedPath, plan_change
from toolwire.agent.tools.patch import PatchPlan
from toolwire.turns.tools.call import ToolError
from toolwire.turns.tools.registry import Context, FileChange

MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Bytes of contents beyond which the changes of the oldest prompts are forgotten."""


class Changes:
    """For every prompt that changed files, one change per file: from what it was before to what it was at the end."""

    def __init__(self) -> None:
        self._prompts: list[dict[Path, FileChange]] = [{}]
        self.are_forgotten = False
        """Whether changes were forgotten, because they were too large."""

    def begin(self) -> None:
        """A prompt begins."""
        if self._prompts[-1]:
            self._prompts.append({})

    def record(self, change: FileChange) -> None:
        """Add a change of the current prompt."""
        known = self._prompts[-1]
        first = known.get(change.path, change)
        known[change.path] = FileChange(first.name, first.path, first.before, change.after, first.status)
        sizes = [sum(map(_size, each.values())) for each in self._prompts]
        while sum(sizes) > MAX_KEPT_BYTES and len(sizes) > 1:
            del self._prompts[0], sizes[0]
            self.are_forgotten = True
        if sum(sizes) > MAX_KEPT_BYTES:
            known[change.path] = FileChange(first.name, first.path, None, None, change.status or first.status)

    def list_all(self) -> list[FileChange]:
        """One change for each file: from what it was at first to what it is now, if that differs or is not known."""
        firsts: dict[Path, FileChange] = {}
        for each in self._prompts:
            firsts = {**each, **firsts}
        found: list[FileChange] = []
        for first in firsts.values():
            now = plan_change(ConfinedPath(first.path, first.name), None).before
            if now != first.before or is_unknown(first):
                found.append(FileChange(first.name, first.path, first.before, now, first.status))
        return found

    def undo(self, context: Context) -> list[str]:
        """Take back the changes of the last prompt that changed files, and return their names.

        Raises `ToolError`, and changes nothing, if one of the files has changed since, or is not known.
        """
        prompts = [each for each in self._prompts if each]
        if not prompts:
            raise ToolError("there is nothing to take back")
        plan = PatchPlan(context)
        changes = [*prompts[-1].values()]
        for why, names in (
            ("it is not known what was there before", [each.name for each in changes if is_unknown(each)]),
            ("it was changed since", [each.name for each in changes if not plan.take_back(each)]),
        ):
            if names:
                raise ToolError(f"nothing was taken back, because {why}: {', '.join(names)}")
        plan.carry_out()
        self._prompts = prompts[:-1] or [{}]
        return [each.name for each in changes]


def is_unknown(change: FileChange) -> bool:
    """Whether there was a file, and its content is not known."""
    return change.status is not None and change.before is None


def _size(change: FileChange) -> int:
    return len(change.before or b"") + len(change.after or b"")
