"""apply_patch: Codex's patches, over several files at once.

What is accepted, and what becomes of it, is what codex 0.166.0 makes of it, with four exceptions: all or nothing is
done, where Codex leaves half of a patch that fails; a move onto itself keeps the file, where Codex loses it; bytes that
are no UTF-8 are kept, where Codex refuses the file; and there is no `*** Environment ID:`, as it is not in the grammar.
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
from toolwire.agent.tools import confine
from toolwire.agent.tools.confine import ConfinedPath, FileContent, confined, entry, explaining
from toolwire.agent.tools.patch_format import GRAMMAR, AddFile, DeleteFile, Hunk, UpdateFile, parse, updated
from toolwire.core.events import CallKind
from toolwire.turns.tools.call import CustomPayload, ToolCall, ToolError
from toolwire.turns.tools.registry import Context, Result, as_result


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

    async def run(self, call: ToolCall, context: Context) -> Result:
        """Apply the patch in a call."""
        confine.must_be_writable(context, f"{self.name} may not change files")
        return as_result(await confine.undisturbed(partial(apply, input_of(call), context)))


apply_patch = ApplyPatch()


def input_of(call: ToolCall) -> str:
    """The patch in a call."""
    if isinstance(call.payload, CustomPayload):
        return call.text
    unwrap = Unwrap()
    return unwrap.feed(call.text) + unwrap.end()


def apply(patch: str, context: Context) -> str:
    """Apply a patch completely or not at all, and return Codex's list of changed files."""
    plan, done = planned(patch, context)
    plan.carry_out()
    changes = dict.fromkeys(each for kind in "AMD" for each in done if each[0] == kind)
    return "\n".join(["Success. Updated the following files:", *changes])


def planned(patch: str, context: Context) -> "tuple[PatchPlan, list[str]]":
    """What a patch would change, and the line of each hunk in Codex's list. Raises `ToolError`."""
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
    """The planned changes to files; a hunk sees the changes of the hunks before it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._drafts: dict[Path, Draft] = {}
        self._read: list[tuple[ConfinedPath, FileContent]] = []

    def add(self, hunk: Hunk) -> str:
        """Plan a hunk, and return its line in Codex's list."""
        match hunk:
            case AddFile(path, content):
                target = self._target(path)
                self._draft(target, confine.encoded(content), self._existing(target))
                return f"A {path}"
            case DeleteFile(path):
                self._delete(path)
                return f"D {path}"
            case UpdateFile(path, move_to, chunks):
                target = self._target(path)
                text = self._content(target).decode(errors="surrogateescape")
                self._update(target, move_to, confine.encoded(updated(text, chunks, path)))
                return f"M {move_to or path}"

    @property
    def drafts(self) -> list[Draft]:
        """The files that would be changed."""
        return [*self._drafts.values()]

    def carry_out(self) -> None:
        """Change the files; if one cannot be changed, all are restored."""
        try:
            with ExitStack() as undo:
                backup = self._changed(undo)
                undo.pop_all()
        except OSError as error:
            raise ToolError(f"the patch failed, and what it had changed could not be put back: {error}") from None
        for path in backup:
            with suppress(OSError):
                path.unlink()

    def _changed(self, undo: ExitStack) -> list[Path]:
        """Make the changes, and return the backups."""
        staged: dict[Path, Path] = {}
        for path, draft in self._drafts.items():
            if draft.content is not None:
                with explaining(draft.target, self._context):
                    _make_folder(path.parent, undo)
                    staged[path] = confine.staged(draft.target, draft.content, draft.like)
                    undo.callback(staged[path].unlink, missing_ok=True)
        for target, whole in self._read:
            whole.must_be_unchanged(target)
        backup: list[Path] = []
        for path, draft in sorted(self._drafts.items(), key=lambda item: item[1].content is not None):
            with explaining(draft.target, self._context):
                if os.path.lexists(path):
                    backup.append(_back_up(path, undo))
                else:
                    undo.callback(path.unlink, missing_ok=True)
                if path in staged:
                    staged[path].replace(path)
                else:
                    path.unlink(missing_ok=True)
        return backup

    def _update(self, target: ConfinedPath, move_to: str, content: bytes) -> None:
        like = self._existing(target)
        destination = self._target(move_to) if move_to else target
        if destination.path != target.path:
            self._existing(destination)  # refuses a directory
            self._delete(target.name)
        self._draft(destination, content, like)

    def _delete(self, name: str) -> None:
        link = entry(name, self._context)
        if link.path in self._drafts:
            self._content(link)
        with explaining(link, self._context):
            if link.path not in self._drafts and stat.S_ISDIR(link.path.lstat().st_mode):
                raise ToolError(f"{name} is a directory")
        self._draft(link, None)

    def _draft(self, target: ConfinedPath, content: bytes | None, like: os.stat_result | None = None) -> None:
        self._drafts[target.path] = Draft(target, content, like)

    def _target(self, name: str) -> ConfinedPath:
        """The checked path after the hunks so far, which may have removed a link."""
        link = entry(name, self._context)
        return link if link.path in self._drafts else confined(name, self._context)

    def _existing(self, target: ConfinedPath) -> os.stat_result | None:
        draft = self._drafts.get(target.path)
        return confine.existing(target) if draft is None else draft.like

    def _content(self, target: ConfinedPath) -> bytes:
        draft = self._drafts.get(target.path)
        if draft is None:
            whole = confine.read_whole(target, self._context)
            self._read.append((target, whole))
            return whole.data
        if draft.content is None:
            raise ToolError(f"there is no {target.name} any more: the patch has deleted or moved it")
        return draft.content


def _make_folder(path: Path, undo: ExitStack) -> None:
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        undo.callback(_remove_folder, each)


def _remove_folder(path: Path) -> None:
    with suppress(OSError):  # somebody has put something into it
        path.rmdir()


def _back_up(path: Path, undo: ExitStack) -> Path:
    """Keep a file under another name, so that it can be restored."""
    backup = path.parent / f".{token_hex(8)}.tmp"
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))  # it was none a moment ago
    try:
        os.link(path, backup, follow_symlinks=False)
    except OSError:  # not every file system has hard links
        path.rename(backup)
    undo.callback(backup.replace, path)
    return backup
