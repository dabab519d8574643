"""Files of the user: those that hold what people and models said can be read by their owner alone."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Literal, cast

_FILE, _FOLDER = 0o600, 0o700
_OTHERS = 0o077
"""The permissions of everybody but the owner."""


def state_folder() -> Path:
    """Where programs of this user keep what should outlive them: the XDG state directory."""
    given = os.environ.get("XDG_STATE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return base / "toolwire"


def make_folders(folder: Path) -> None:
    """Make a directory and those above it that are missing, for their owner alone. What is there stays as it is."""
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(_FOLDER, exist_ok=True)


def close_to_others(path: Path) -> bool:
    """Take the permissions of others away from a file or directory of this user; whether there were any."""
    try:
        found = path.stat()
        if not found.st_mode & _OTHERS or found.st_uid != os.geteuid():
            return False
        path.chmod(stat.S_IMODE(found.st_mode) & (_FOLDER if path.is_dir() else _FILE))
    except OSError:  # SQLite's files come and go
        return False
    return True


def make_private_file(path: Path | str, flags: int) -> int:
    """Open a file by `flags`; one that is made now can be read by its owner alone. Returns its descriptor."""
    return os.open(path, flags | os.O_CREAT, _FILE)


_KINDS = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISDIR, "a directory"), (stat.S_ISSOCK, "a socket"))


def open_file(path: Path | str) -> BinaryIO:
    """Open a regular file for reading. Raises `OSError` for a pipe or a device, of which reading may never end."""
    return cast("BinaryIO", open(path, "rb", opener=_open_regular))


def read_file(path: Path | str) -> bytes:
    """What a regular file holds. Raises `OSError`."""
    with open_file(path) as file:
        return file.read()


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # opening a pipe must not wait for its writer
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    kind = next((name for is_one, name in _KINDS if is_one(mode)), "a device")
    raise OSError(errno.EINVAL, f"it is {kind}, and a regular file is needed", path)


def open_private(path: Path, mode: Literal["w", "a"]) -> BinaryIO:
    """Open a file for writing that only its owner may read, also if others could before. Links are not followed."""
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
