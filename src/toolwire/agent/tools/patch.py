"""apply_patch: patches in the format of Codex, over several files at once.

Patches are accepted and applied as codex 0.166.0 does, with four exceptions. A patch is applied completely or not at
all; Codex leaves a failed patch half applied. A move of a file onto itself keeps the file; Codex loses it. Bytes
that are not UTF-8 are kept; Codex refuses the file. `*** Environment ID:` is not supported: the grammar lacks it.
"""

import errno
import os
import stat
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex

import msgspec

from toolwire.adapt.unwrap import Unwrap
from toolwire.agent.tools import file_access
from toolwire.agent.tools.file_access import ConfinedPath, FileContent, confine, confine_link, explain_errors
from toolwire.agent.tools.patch_format import GRAMMAR, AddFile, DeleteFile, Hunk, UpdateFile, apply_chunks, parse
from toolwire.core.events import CallKind
from toolwire.turns.tools.call import CustomPayload, ToolCall, ToolError
from toolwire.turns.tools.concurrency import run_to_completion
from toolwire.turns.tools.registry import Context, FileChange, Result, as_result


class ApplyPatch:
    """The `apply_patch` tool: a custom tool, or a function with `input` where a protocol has no custom tools."""

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

    def check_call(self, call: ToolCall, context: Context) -> None:
        """Raise `ToolError` if the patch in a call cannot be applied."""
        plan_patch(read_patch(call), context)

    async def run(self, call: ToolCall, context: Context) -> Result:
        """Apply the patch in a call."""
        file_access.check_writable(context, f"{self.name} may not change files")
        return as_result(await run_to_completion(partial(apply, read_patch(call), context)))


apply_patch = ApplyPatch()


def read_patch(call: ToolCall) -> str:
    """The patch in a call."""
    if isinstance(call.payload, CustomPayload):
        return call.text
    unwrap = Unwrap()
    return unwrap.feed(call.text) + unwrap.end()


def apply(patch: str, context: Context) -> str:
    """Apply a patch completely or not at all, and return Codex's list of changed files."""
    plan, done = plan_patch(patch, context)
    plan.carry_out()
    changes = dict.fromkeys(each for kind in "AMD" for each in done if each[0] == kind)
    return "\n".join(["Success. Updated the following files:", *changes])


def plan_patch(patch: str, context: Context) -> "tuple[PatchPlan, list[str]]":
    """The changes of a patch, and the line of each hunk in Codex's list. Raises `ToolError`."""
    hunks = parse(patch)
    if not hunks:
        raise ToolError("the patch changes no files")
    plan = PatchPlan(context)
    return plan, [plan.add(hunk) for hunk in hunks]


class Draft(msgspec.Struct, frozen=True):
    """The new content of a file; None deletes it."""

    target: ConfinedPath
    content: bytes | None
    like: os.stat_result | None = None


class PatchPlan:
    """Planned changes to files. A hunk applies to the result of the hunks before it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._drafts: dict[Path, Draft] = {}
        self._originals: list[tuple[ConfinedPath, FileContent]] = []

    def add(self, hunk: Hunk) -> str:
        """Plan a hunk, and return its line in Codex's list."""
        match hunk:
            case AddFile(path, content):
                target = self._confine(path)
                self._draft(target, file_access.encode(content), self._stat(target))
                return f"A {path}"
            case DeleteFile(path):
                self._delete(path)
                return f"D {path}"
            case UpdateFile(path, move_to, chunks):
                target = self._confine(path)
                text = self._read(target).decode(errors="surrogateescape")
                content, like = file_access.encode(apply_chunks(text, chunks, path)), self._stat(target)
                destination = self._confine(move_to) if move_to else target
                if destination.path != target.path:
                    self._stat(destination)  # refuses a directory
                    self._delete(target.name)
                self._draft(destination, content, like)
                return f"M {move_to or path}"

    def take_back(self, change: FileChange) -> bool:
        """Plan to restore a file; returns whether it is as the change has left it. Raises `ToolError`."""
        target = confine_link(str(change.path), self._context)
        now = self._read(target) if os.path.lexists(target.path) else None
        self._draft(target, change.before, change.status)
        return target.path == change.path and now == change.after

    @property
    def drafts(self) -> list[Draft]:
        """The planned changes, one for each file."""
        return [*self._drafts.values()]

    def carry_out(self) -> None:
        """Change the files; if one cannot be changed, all are restored."""
        backups: list[Path] = []
        changes = [file_access.plan_change(draft.target, draft.content) for draft in self.drafts]
        try:
            with ExitStack() as undo:
                staged = {
                    path: self._stage(draft.target, draft.content, draft.like, undo)
                    for path, draft in self._drafts.items()
                    if draft.content is not None
                }
                for target, content in self._originals:
                    content.check_unchanged(target)
                for path, draft in sorted(self._drafts.items(), key=lambda item: item[1].content is not None):
                    with explain_errors(draft.target, self._context):
                        if os.path.lexists(path):
                            backups.append(_back_up(path, undo))
                        else:
                            undo.callback(path.unlink, missing_ok=True)
                        if path in staged:
                            staged[path].replace(path)
                        else:
                            path.unlink(missing_ok=True)
                undo.pop_all()
        except OSError as error:
            raise ToolError(f"the patch failed, and its changes could not be undone: {error}") from None
        for path in backups:
            with suppress(OSError):
                path.unlink()
        for change in changes:
            self._context.changed(change)

    def _stage(self, target: ConfinedPath, content: bytes, like: os.stat_result | None, undo: ExitStack) -> Path:
        """Write a temporary file beside the target, and create the directories that it needs."""
        folder = target.path.parent
        with explain_errors(target, self._context):
            for each in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
                each.mkdir(exist_ok=True)
                undo.callback(_remove_if_empty, each)
            staged = file_access.stage(target, content, like)
            undo.callback(staged.unlink, missing_ok=True)
        return staged

    def _delete(self, name: str) -> None:
        link = confine_link(name, self._context)
        if link.path in self._drafts:
            self._read(link)
        with explain_errors(link, self._context):
            if link.path not in self._drafts and stat.S_ISDIR(link.path.lstat().st_mode):
                raise ToolError(f"{name} is a directory")
        self._draft(link, None)

    def _draft(self, target: ConfinedPath, content: bytes | None, like: os.stat_result | None = None) -> None:
        self._drafts[target.path] = Draft(target, content, like)

    def _confine(self, name: str) -> ConfinedPath:
        """The checked path after the hunks so far, which may have removed a link."""
        link = confine_link(name, self._context)
        return link if link.path in self._drafts else confine(name, self._context)

    def _stat(self, target: ConfinedPath) -> os.stat_result | None:
        draft = self._drafts.get(target.path)
        return file_access.stat_target(target) if draft is None else draft.like

    def _read(self, target: ConfinedPath) -> bytes:
        draft = self._drafts.get(target.path)
        if draft is None:
            content = file_access.read_target(target, self._context)
            self._originals.append((target, content))
            return content.data
        if draft.content is None:
            raise ToolError(f"there is no {target.name} any more: the patch has deleted or moved it")
        return draft.content


def _remove_if_empty(path: Path) -> None:
    with suppress(OSError):
        path.rmdir()


def _back_up(path: Path, undo: ExitStack) -> Path:
    """Keep a copy of a file under another name, so that it can be restored."""
    backup = path.parent / f".{token_hex(8)}.tmp"
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))  # a directory has replaced the file meanwhile
    try:
        os.link(path, backup, follow_symlinks=False)
    except OSError:  # not every file system has hard links
        path.rename(backup)
    undo.callback(backup.replace, path)
    return backup
