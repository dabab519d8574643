"""Confines file access to the allowed roots, and reads and replaces whole files.

Tools use only paths checked here, so nothing outside the roots is read or written. Links and `..` are resolved before
the check; a path that does not exist yet is checked by its nearest existing parent. A change by another process between
the check and the use is caught for the last component only.
"""

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

import msgspec

from toolwire.turns.tools.call import ToolError
from toolwire.turns.tools.registry import Context, FileChange

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Larger files are not read into memory."""

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_BYTES = getattr(os, "O_BINARY", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe must not wait for its writer


class ConfinedPath(msgspec.Struct, frozen=True):
    """A checked path within the roots, and the path as the model wrote it."""

    path: Path
    name: str


class FileContent(msgspec.Struct, frozen=True):
    """A file as it was read."""

    data: bytes
    stat: os.stat_result

    @property
    def is_binary(self) -> bool:
        """Whether it contains a NUL byte."""
        return b"\0" in self.data

    def check_unchanged(self, target: ConfinedPath) -> None:
        """Raise `ToolError` if the file has changed since it was read."""
        with suppress(OSError):
            now, then = target.path.lstat(), self.stat
            if (now.st_ino, now.st_size, now.st_mtime_ns) == (then.st_ino, then.st_size, then.st_mtime_ns):
                return
        raise ToolError(f"{target.name} was changed by another process meanwhile; read it again")


# Paths


def confine(name: str, context: Context) -> ConfinedPath:
    """Check a path from the model. Raises `ToolError` for one outside the roots."""
    return ConfinedPath(_check_inside(name, _join(name, context), context), name)


def confine_link(name: str, context: Context) -> ConfinedPath:
    """Check a path from the model, without following a link at its end."""
    path = _join(name, context)
    if path.name in ("", ".."):
        return confine(name, context)
    return ConfinedPath(_check_inside(name, path.parent, context) / path.name, name)


def is_outside(name: str, context: Context) -> bool:
    """Whether a path from the model leads outside the roots; an unusable path does not."""
    try:
        return bool(name) and not _is_inside(resolve(name, context), context)
    except ToolError:
        return False


def resolve(name: str, context: Context) -> Path:
    """A path from the model, without links and `..`, inside the roots or not. Raises `ToolError`."""
    return _resolve(name, _join(name, context))


def display_path(path: Path, context: Context) -> str:
    """A path as the model should see it: relative if it is in the working directory."""
    cwd = context.cwd.resolve()
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def _join(name: str, context: Context) -> Path:
    if not name:
        raise ToolError("the path is empty")
    return context.cwd / name


def _resolve(name: str, path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL, a lone surrogate
        raise ToolError(f"{name!r} is not a usable path: {error}") from None


def _check_inside(name: str, path: Path, context: Context) -> Path:
    path = _resolve(name, path)
    if not _is_inside(path, context):
        allowed = ", ".join(map(str, _roots(context)))
        raise ToolError(f"{name} is outside the folders that may be used ({allowed})")
    return path


def _roots(context: Context) -> tuple[Path, ...]:
    return tuple(root.resolve() for root in context.roots or (context.cwd,))


def _is_inside(path: Path, context: Context) -> bool:
    return any(path.is_relative_to(root) for root in _roots(context))


# Files


def check_writable(context: Context, refusal: str) -> None:
    """Raise `ToolError` in read-only mode."""
    if not context.writable:
        raise ToolError(f"read-only mode: {refusal}")


def open_target(target: ConfinedPath, context: Context) -> BinaryIO:
    """Open a regular file for reading. Raises `ToolError`."""
    with explain_errors(target, context):
        number = os.open(target.path, os.O_RDONLY | _NO_LINK | _NO_WAIT | _BYTES)
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise ToolError(f"{target.name} is {what}")
    return os.fdopen(number, "rb")


def read_target(target: ConfinedPath, context: Context) -> FileContent:
    """Read a whole file. Raises `ToolError` if it cannot be read or is too large."""
    with open_target(target, context) as file:
        status = os.fstat(file.fileno())
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ToolError(f"{target.name} is too large ({status.st_size} bytes; at most {MAX_FILE_BYTES})")
    return FileContent(data, status)


def stat_target(target: ConfinedPath) -> os.stat_result | None:
    """The status of the file to replace; None if there is none. Raises `ToolError` if it cannot be written."""
    try:
        status = target.path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{target.name} is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{target.name} is not a regular file")
    if not os.access(target.path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise ToolError(f"{target.name} is write-protected")
    return status


def stage(target: ConfinedPath, data: bytes, like: os.stat_result | None) -> Path:
    """Write a temporary file in the same directory, with the mode and owner of the file it will replace."""
    temporary = target.path.parent / f".{token_hex(8)}.tmp"
    mode = 0o666 if like is None else 0o600  # a private file stays private from the first byte on
    number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _BYTES, mode)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        if like is not None:
            with suppress(PermissionError):  # only root may change the owner
                os.chown(temporary, like.st_uid, like.st_gid)
            temporary.chmod(stat.S_IMODE(like.st_mode))
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def plan_change(target: ConfinedPath, after: bytes | None) -> FileChange:
    """A change of a file, with its content before. Links, and files that cannot be read, have an unknown content."""
    try:
        status = target.path.lstat()
    except OSError:
        return FileChange(target.name, target.path, None, after)
    before: bytes | None = None
    if status.st_size <= MAX_FILE_BYTES:
        with suppress(OSError, ToolError):
            before = read_target(target, Context(target.path.parent)).data
    return FileChange(target.name, target.path, before, after, status)


def replace_target(target: ConfinedPath, data: bytes, like: os.stat_result | None, context: Context) -> None:
    """Write a file atomically, and report the change."""
    change = plan_change(target, data)
    temporary = stage(target, data, like)
    try:
        temporary.replace(target.path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    context.changed(change)


def encode(text: str) -> bytes:
    """The text as bytes. Raises `ToolError` for a lone surrogate."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise ToolError("the text has a lone surrogate, which cannot be encoded") from None


@contextmanager
def explain_errors(target: ConfinedPath, context: Context) -> Generator[None]:
    """Turn an `OSError` into a `ToolError` with one clear sentence."""
    try:
        yield
    except OSError as error:
        match error.errno:
            case errno.ENOENT:
                near = _similar_names(target.path, context)
                text = f"there is no {target.name}" + (f"; similar: {', '.join(near)}" if near else "")
            case errno.ENOTDIR | errno.EEXIST:
                text = f"a part of the path {target.name} is a file, not a directory"
            case errno.EACCES | errno.EPERM:
                text = f"no permission for {target.name}"
            case errno.ELOOP:
                text = f"{target.name} is a link that cannot be followed"
            case errno.ENAMETOOLONG:
                text = f"the path {target.name[:100]}… is too long"
            case _:
                text = f"{target.name}: {error.strerror or error}"
        raise ToolError(text) from None


def _similar_names(path: Path, context: Context) -> list[str]:
    """Existing names similar to the first missing component of a path."""
    while not path.parent.is_dir() and path.parent != path:
        path = path.parent
    if not _is_inside(path.parent, context):
        return []
    with suppress(OSError), os.scandir(path.parent) as found:
        names = {each.name.lower(): each.name for each in islice(found, 5000)}
        close = get_close_matches(path.name.lower(), names, 3)
        return [display_path(path.parent / names[each], context) for each in close]
    return []
