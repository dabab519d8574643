"""The door to the file system: where a path leads, and reading and replacing files whole.

No tool touches a path that it did not get from here, so nothing outside the roots is read or written. Links and `..`
are followed first and judged by where they end; what is not there yet is judged by its nearest existing parent.
What another process swaps between this look and the use of a path is caught for the last part of a path only.
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

from toolwire.agent.call import ToolError
from toolwire.agent.registry import Context

MAX_WHOLE = 64 * 1024 * 1024
"""Files larger than this are not taken into memory whole."""

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_BYTES = getattr(os, "O_BINARY", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe must not wait for its writer

_Made = TypeVar("_Made")


class Place(msgspec.Struct, frozen=True):
    """A path within the roots, and the name under which the model knows it."""

    path: Path
    name: str


class Whole(msgspec.Struct, frozen=True):
    """A file as it was read."""

    data: bytes
    stat: os.stat_result

    @property
    def is_binary(self) -> bool:
        return b"\0" in self.data

    def must_still_be(self, place: Place) -> None:
        """Refuse to go on with a file that somebody has changed since."""
        with suppress(OSError):
            now, then = place.path.lstat(), self.stat
            if (now.st_ino, now.st_size, now.st_mtime_ns) == (then.st_ino, then.st_size, then.st_mtime_ns):
                return
        raise ToolError(f"{place.name} was changed by somebody else meanwhile; read it again")


def confined(name: str, context: Context) -> Place:
    """Where a path of the model leads. Refuses what lies outside the roots."""
    return Place(_checked(name, _joined(name, context), context), name)


def entry(name: str, context: Context) -> Place:
    """The same for what a folder holds under this name: a link is itself, not what it points to."""
    path = _joined(name, context)
    if path.name in ("", ".."):
        return confined(name, context)
    return Place(_checked(name, path.parent, context) / path.name, name)


def shown(path: Path, context: Context) -> str:
    """A path as the model should see it: from the working directory, if it is in there."""
    cwd = context.cwd.resolve()
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def must_be_writable(context: Context, refusal: str) -> None:
    """Go no further in read-only mode; `refusal` says what is off."""
    if not context.writable:
        raise ToolError(f"read-only mode: {refusal}")


def opened(place: Place, context: Context) -> BinaryIO:
    """A regular file, open for reading."""
    with telling(place, context):
        number = os.open(place.path, os.O_RDONLY | _NO_LINK | _NO_WAIT | _BYTES)
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise ToolError(f"{place.name} is {what}")
    return os.fdopen(number, "rb")


def read_whole(place: Place, context: Context) -> Whole:
    """A file of a size that fits into memory."""
    with opened(place, context) as file:
        status = os.fstat(file.fileno())
        data = file.read(MAX_WHOLE + 1)
    if len(data) > MAX_WHOLE:
        raise ToolError(f"{place.name} is too large ({status.st_size} bytes; at most {MAX_WHOLE})")
    return Whole(data, status)


def existing(place: Place) -> os.stat_result | None:
    """The file that is to be replaced, if there is one. Refuses what is no file or may not be written."""
    try:
        status = place.path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{place.name} is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{place.name} is not a regular file")
    if not os.access(place.path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise ToolError(f"{place.name} is write-protected")
    return status


def staged(place: Place, data: bytes, like: os.stat_result | None) -> Path:
    """A new file beside a place, to be renamed to it; with the mode and owner of the one it replaces."""
    temporary = place.path.parent / f".{token_hex(8)}.tmp"
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


def replace(place: Place, data: bytes, like: os.stat_result | None) -> None:
    """Put a file in place, all of it or nothing."""
    temporary = staged(place, data, like)
    try:
        temporary.replace(place.path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


async def undisturbed(work: Callable[[], _Made]) -> _Made:
    """Run what changes files in a thread, to its end even if the call is cancelled.

    A thread cannot be stopped. Were it left alone, the next call would run beside it, and the model would read that
    nothing was done.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    return task.result()


def encoded(text: str) -> bytes:
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise ToolError("the text holds half a surrogate pair, which no file can hold") from None


@contextmanager
def telling(place: Place, context: Context) -> Generator[None]:
    """Say what went wrong with a file in one sentence."""
    try:
        yield
    except OSError as error:
        raise _explained(error, place, context) from None


def _explained(error: OSError, place: Place, context: Context) -> ToolError:
    match error.errno:
        case errno.ENOENT:
            near = _similar(place.path, context)
            return ToolError(f"there is no {place.name}" + (f"; similar: {', '.join(near)}" if near else ""))
        case errno.ENOTDIR | errno.EEXIST:
            return ToolError(f"a part of the path {place.name} is a file, not a directory")
        case errno.EACCES | errno.EPERM:
            return ToolError(f"no permission for {place.name}")
        case errno.ELOOP:
            return ToolError(f"{place.name} is a link that cannot be followed")
        case errno.ENAMETOOLONG:
            return ToolError(f"the path {place.name[:100]}… is too long")
        case _:
            return ToolError(f"{place.name}: {error.strerror or error}")


def _joined(name: str, context: Context) -> Path:
    if not name:
        raise ToolError("the path is empty")
    return context.cwd / name


def _checked(name: str, path: Path, context: Context) -> Path:
    try:
        path = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL, half a surrogate
        raise ToolError(f"{name!r} is not a usable path: {error}") from None
    if not _is_inside(path, context):
        allowed = ", ".join(map(str, _roots(context)))
        raise ToolError(f"{name} is outside the folders that may be used ({allowed})")
    return path


def _roots(context: Context) -> tuple[Path, ...]:
    return tuple(root.resolve() for root in context.roots or (context.cwd,))


def _is_inside(path: Path, context: Context) -> bool:
    return any(path.is_relative_to(root) for root in _roots(context))


def _similar(path: Path, context: Context) -> list[str]:
    """Names like the first part of a path that is missing, where it should be."""
    while not path.parent.is_dir() and path.parent != path:
        path = path.parent
    if not _is_inside(path.parent, context):
        return []
    with suppress(OSError), os.scandir(path.parent) as found:
        names = {each.name.lower(): each.name for each in islice(found, 5000)}
        close = get_close_matches(path.name.lower(), names, 3)
        return [shown(path.parent / names[each], context) for each in close]
    return []
