"""The file of a store: nobody else may read it, one gateway uses it, and it is noticed when it goes away."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from toolwire.memory.private import close_to_others, make_private_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


class FileInUse(Exception):
    """Another process has claimed the file."""


class StoreFile:
    """A database file with what SQLite puts beside it, and a lock file that says that it is in use."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).absolute()
        self._lock: int | None = None

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def check(self) -> None:
        """Raise an OSError that says why the file could not be made."""
        folder = self.path.parent
        if not folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"there is no directory {folder}")
        try:
            with TemporaryFile(dir=folder):
                pass
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return  # that may pass
            raise OSError(error.errno, f"nothing can be written in {folder}: {error.strerror}") from None

    def claim(self) -> None:
        """Take the lock, which the system gives back when this process ends, however it ends.

        It is a lock of the process, not of the descriptor: child processes that outlive us do not hold it.
        """
        if fcntl is None:
            return
        lock = self._beside("lock")
        if self._lock is not None:
            if _identity(lock) == _identity(self._lock):
                return
            self.release()  # the lock file was taken away from under us
        descriptor = make_private_file(lock, os.O_RDWR)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise FileInUse from None
            raise
        self._lock = descriptor

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def make(self) -> None:
        """Make the file if it is not there, readable for nobody else; SQLite gives its other files the same mode."""
        with suppress(FileExistsError):
            os.close(make_private_file(self.path, os.O_RDWR | os.O_EXCL))

    def tighten(self) -> list[Path]:
        """Close to others what is ours and open to them; returns what was."""
        files = (self.path, self._beside("wal"), self._beside("shm"), self._beside("lock"))
        return [file for file in files if close_to_others(file)]

    def identity(self) -> tuple[int, int] | None:
        """What tells this file from another one of the same name; None if there is none."""
        return _identity(self.path)

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(f"{self.path.name}-{ending}")


def _identity(file: Path | int) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
