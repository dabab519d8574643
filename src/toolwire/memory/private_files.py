"""Files that only the user may read, because they contain conversations or secrets."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Literal, cast

_FILE, _FOLDER = 0o600, 0o700
_OTHERS = 0o077
"""The permissions of group and others."""


def find_state_folder() -> Path:
    """The directory for data that outlives a process: `toolwire` in the XDG state directory."""
    given = os.environ.get("XDG_STATE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return base / "toolwire"


def make_folders(folder: Path) -> None:
    """Create a directory and its missing parents with mode 0700. Existing directories stay as they are."""
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(_FOLDER, exist_ok=True)


def restrict_access(path: Path) -> bool:
    """Remove the permissions of group and others from a file or directory of this user; returns whether any existed."""
    try:
        found = path.stat()
        if not found.st_mode & _OTHERS or found.st_uid != os.geteuid():
            return False
        path.chmod(stat.S_IMODE(found.st_mode) & (_FOLDER if path.is_dir() else _FILE))
    except OSError:  # it may be gone: SQLite's files come and go
        return False
    return True


def make_private_file(path: Path | str, flags: int) -> int:
    """Open a file with these flags, creating it with mode 0600; returns its descriptor."""
    return os.open(path, flags | os.O_CREAT, _FILE)


_KINDS = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISDIR, "a directory"), (stat.S_ISSOCK, "a socket"))


def open_file(path: Path | str) -> BinaryIO:
    """Open a regular file for reading. Raises `OSError`, also for a pipe or device, which may never end."""
    return cast("BinaryIO", open(path, "rb", opener=_open_regular))


def read_file(path: Path | str) -> bytes:
    """The content of a regular file. Raises `OSError`."""
    with open_file(path) as file:
        return file.read()


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # do not wait for the writer of a pipe
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    kind = next((name for is_one, name in _KINDS if is_one(mode)), "a device")
    raise OSError(errno.EINVAL, f"it is {kind}, and a regular file is needed", path)


def open_private(path: Path, mode: Literal["w", "a"]) -> BinaryIO:
    """Open a file for writing and give it mode 0600, even if it exists. Symbolic links are not followed."""
    return cast("BinaryIO", open(path, f"{mode}b", opener=_opener))


def _opener(path: str, flags: int) -> int:
    descriptor = make_private_file(path, flags | getattr(os, "O_NOFOLLOW", 0))
    try:
        if os.fstat(descriptor).st_mode & _OTHERS:
            os.chmod(descriptor, _FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
