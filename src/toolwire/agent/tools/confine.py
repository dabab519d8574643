"""Confines file access to the allowed roots, and reads and replaces whole files.

Tools use only paths checked here, so nothing outside the roots is read or written. Links and `..` are resolved before
the check; a path that does not exist yet is checked by its nearest existing parent. A change by another process between
the check and the use is caught for the last component only.
"""

import asyncio
import errno
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, TypeVar

import msgspec

from toolwire.turns.tools.call import ToolError
from toolwire.turns.tools.registry import Context

MAX_WHOLE = 64 * 1024 * 1024
"""Files larger than this are not taken into memory whole."""

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_BYTES = getattr(os, "O_BINARY", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe must not wait for its writer

_Made = TypeVar("_Made")


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

    def must_be_unchanged(self, target: ConfinedPath) -> None:
        """Raise `ToolError` if the file has changed since it was read."""
        with suppress(OSError):
            now, then = target.path.lstat(), self.stat
            if (now.st_ino, now.st_size, now.st_mtime_ns) == (then.st_ino, then.st_size, then.st_mtime_ns):
                return
        raise ToolError(f"{target.name} was changed by somebody else meanwhile; read it again")


def confined(name: str, context: Context) -> ConfinedPath:
    """Check a path of the model. Raises `ToolError` for one outside the roots."""
    return ConfinedPath(_checked(name, _joined(name, context), context), name)


def is_outside(name: str, context: Context) -> bool:
    """Whether a path of the model leads outside the roots; one that cannot be used leads nowhere."""
    try:
        return bool(name) and not _is_inside(resolved(name, context), context)
    except ToolError:
        return False


def resolved(name: str, context: Context) -> Path:
    """A path of the model, inside the roots or not."""
    return _resolved(name, _joined(name, context))


def entry(name: str, context: Context) -> ConfinedPath:
    """The same without following a link at the end of the path."""
    path = _joined(name, context)
    if path.name in ("", ".."):
        return confined(name, context)
    return ConfinedPath(_checked(name, path.parent, context) / path.name, name)


def shown(path: Path, context: Context) -> str:
    """A path as the model should see it: relative if it is in the working directory."""
    cwd = context.cwd.resolve()
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def must_be_writable(context: Context, refusal: str) -> None:
    """Raise `ToolError` in read-only mode."""
    if not context.writable:
        raise ToolError(f"read-only mode: {refusal}")


def opened(target: ConfinedPath, context: Context) -> BinaryIO:
    """A regular file, open for reading."""
    with explaining(target, context):
        number = os.open(target.path, os.O_RDONLY | _NO_LINK | _NO_WAIT | _BYTES)
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise ToolError(f"{target.name} is {what}")
    return os.fdopen(number, "rb")


def read_whole(target: ConfinedPath, context: Context) -> FileContent:
    """A file of a size that fits into memory."""
    with opened(target, context) as file:
        status = os.fstat(file.fileno())
        data = file.read(MAX_WHOLE + 1)
    if len(data) > MAX_WHOLE:
        raise ToolError(f"{target.name} is too large ({status.st_size} bytes; at most {MAX_WHOLE})")
    return FileContent(data, status)


def existing(target: ConfinedPath) -> os.stat_result | None:
    """The status of the file to replace, None if there is none. Raises `ToolError` if it cannot be written."""
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


def staged(target: ConfinedPath, data: bytes, like: os.stat_result | None) -> Path:
    """Write a temporary file in the same directory, with the mode and owner of the file it will replace."""
    temporary = target.path.parent / f".{token_hex(8)}.tmp"
    mode = 0o666 if like is None else 0o600  # what was private is so from the first byte on
    number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _BYTES, mode)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        if like is not None:
            with suppress(PermissionError):  # only root may give files away
                os.chown(temporary, like.st_uid, like.st_gid)
            temporary.chmod(stat.S_IMODE(like.st_mode))
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def replace(target: ConfinedPath, data: bytes, like: os.stat_result | None) -> None:
    """Write a file atomically."""
    temporary = staged(target, data, like)
    try:
        temporary.replace(target.path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


async def undisturbed(work: Callable[[], _Made]) -> _Made:
    """Run a function in a thread, to its end even if the call is cancelled.

    A thread cannot be stopped: the next call would run beside it, and the result would claim that nothing was changed.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    return task.result()


def encoded(text: str) -> bytes:
    """The text as bytes. Raises `ToolError` for a lone surrogate."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise ToolError("the text holds half a surrogate pair, which no file can hold") from None


@contextmanager
def explaining(target: ConfinedPath, context: Context) -> Generator[None]:
    """Turn an `OSError` into a `ToolError` with one clear sentence."""
    try:
        yield
    except OSError as error:
        raise _explained(error, target, context) from None


def _explained(error: OSError, target: ConfinedPath, context: Context) -> ToolError:
    match error.errno:
        case errno.ENOENT:
            near = _similar(target.path, context)
            return ToolError(f"there is no {target.name}" + (f"; similar: {', '.join(near)}" if near else ""))
        case errno.ENOTDIR | errno.EEXIST:
            return ToolError(f"a part of the path {target.name} is a file, not a directory")
        case errno.EACCES | errno.EPERM:
            return ToolError(f"no permission for {target.name}")
        case errno.ELOOP:
            return ToolError(f"{target.name} is a link that cannot be followed")
        case errno.ENAMETOOLONG:
            return ToolError(f"the path {target.name[:100]}… is too long")
        case _:
            return ToolError(f"{target.name}: {error.strerror or error}")


def _joined(name: str, context: Context) -> Path:
    if not name:
        raise ToolError("the path is empty")
    return context.cwd / name


def _resolved(name: str, path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL, half a surrogate
        raise ToolError(f"{name!r} is not a usable path: {error}") from None


def _checked(name: str, path: Path, context: Context) -> Path:
    path = _resolved(name, path)
    if not _is_inside(path, context):
        allowed = ", ".join(map(str, _roots(context)))
        raise ToolError(f"{name} is outside the folders that may be used ({allowed})")
    return path


def _roots(context: Context) -> tuple[Path, ...]:
    return tuple(root.resolve() for root in context.roots or (context.cwd,))


def _is_inside(path: Path, context: Context) -> bool:
    return any(path.is_relative_to(root) for root in _roots(context))


def _similar(path: Path, context: Context) -> list[str]:
    """Existing names similar to the first missing component of a path."""
    while not path.parent.is_dir() and path.parent != path:
        path = path.parent
    if not _is_inside(path.parent, context):
        return []
    with suppress(OSError), os.scandir(path.parent) as found:
        names = {each.name.lower(): each.name for each in islice(found, 5000)}
        close = get_close_matches(path.name.lower(), names, 3)
        return [shown(path.parent / names[each], context) for each in close]
    return []
