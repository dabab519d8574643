"""The file of a store: no other user may read it, it is on a disk of this machine, and it is noticed when it goes away.

All processes that use it hold a shared lock on a file beside it. Versions up to 0.1.0 used a store alone, under an
exclusive lock on that file, and ended whatever they found unfinished; so the two keep each other out.
"""

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from toolwire.memory.private_files import close_to_others, make_private_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


class FileInUse(Exception):
    """A process of an older version uses the file alone."""


class StoreFile:
    """A database file with what SQLite puts beside it, and a lock file that says that it is in use.

    `mounts` lists what is mounted where, as Linux does.
    """

    def __init__(self, path: str, mounts: Path = Path("/proc/self/mountinfo")) -> None:
        self.path = Path(path).absolute()
        self._log = self._beside("wal")
        self._mounts = mounts
        self._lock: int | None = None
        self._locked_by = 0
        self._claiming = threading.Lock()

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def check(self) -> None:
        """Raise an OSError that says why the file could not be used, or made if it is not there."""
        self.check_disk()
        if self.exists:
            return
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

    def check_disk(self) -> None:
        """Raise an OSError if the file is on another machine: processes that share a log must share its memory."""
        kind = file_system_of(self.path, self._mounts)
        if kind.removeprefix("fuse.") in NETWORK_FILE_SYSTEMS:
            message = f"it is on a network file system ({kind}); use a local disk, or PostgreSQL for many machines"
            raise OSError(errno.EOPNOTSUPP, message)

    def claim(self) -> None:
        """Take the shared lock, which the system gives back when this process ends, however it ends.

        It is a lock of the process, not of the descriptor: child processes do not have it. Any thread may call this.
        """
        with self._claiming:
            self._claim()

    def _claim(self) -> None:
        if fcntl is None:
            return
        lock = self._beside("lock")
        if self._lock is not None:
            if self._locked_by == os.getpid() and _identity(lock) == _identity(self._lock):
                return
            self.release()  # the lock file was taken away from under us, or our parent's
        descriptor = make_private_file(lock, os.O_RDWR)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise FileInUse from None
            raise
        self._lock, self._locked_by = descriptor, os.getpid()

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

    def log_size(self) -> int:
        """Bytes of what SQLite has written down, and not yet copied into the file."""
        try:
            return os.stat(self._log).st_size
        except OSError:
            return 0

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(f"{self.path.name}-{ending}")


NETWORK_FILE_SYSTEMS = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "smbnetfs", "ncpfs", "afs", "coda", "ceph", "cephfs", "glusterfs"),
    *("lustre", "beegfs", "orangefs", "gfs2", "ocfs2", "sshfs", "davfs", "davfs2", "juicefs", "rclone"),
    *("s3fs", "gcsfuse", "blobfuse", "mount-s3"),
)


def file_system_of(path: Path, mounts: Path) -> str:
    """The kind of file system that a file is on, or will be; nothing if the system does not tell.

    36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw
    """
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    place, found, length = str(path.resolve()), "", -1
    for line in lines:
        fields, _, kind = line.partition(" - ")
        point = fields.split(" ")[4].replace("\\040", " ")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= length:  # of two at one point, the later one hides the earlier
            found, length = kind.split(" ")[0], len(point)
    return found


def _identity(file: Path | int) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
