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

from toolwire.agent.call import CustomPayload, ToolCall, ToolError
from toolwire.agent.registry import Context, Result, as_result
from toolwire.agent.tools import confine
from toolwire.agent.tools.confine import Place, Whole, confined, entry, telling
from toolwire.agent.tools.patch_format import GRAMMAR, AddFile, DeleteFile, Hunk, UpdateFile, parse, updated
from toolwire.core.events import CallKind
from toolwire.core.unwrap import Unwrap


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
        confine.must_be_writable(context, f"{self.name} may not change files")
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
