"""The file of a store: readable by its user only, on a local disk, and checked for removal or replacement.

All processes that use it hold a shared lock on a file beside it. Version 0.1.0 takes an exclusive lock on that file,
and ends all unfinished runs because it expects to be the only user; so the two versions lock each other out.
"""

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from toolwire.memory.private_files import make_private_file, restrict_access

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


class FileInUse(Exception):
    """A process of version 0.1.0 uses the file and has locked it."""


class StoreFile:
    """A database file, the files that SQLite puts beside it, and a lock file.

    `mounts` is Linux's table of mounted file systems.
    """

    def __init__(self, path: str, mounts: Path = Path("/proc/self/mountinfo")) -> None:
        self.path = Path(path).absolute()
        self._log = self._path_beside("wal")
        self._mounts = mounts
        self._lock: int | None = None
        self._locked_by = 0
        self._claiming = threading.Lock()

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def check(self) -> None:
        """Raise `OSError` if the file cannot be used, or cannot be created."""
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
                return  # there may be room later
            raise OSError(error.errno, f"nothing can be written in {folder}: {error.strerror}") from None

    def check_disk(self) -> None:
        """Raise `OSError` if the file is on a network file system: SQLite's log needs shared memory."""
        kind = file_system_of(self.path, self._mounts)
        if kind.removeprefix("fuse.") in NETWORK_FILE_SYSTEMS:
            message = f"it is on a network file system ({kind}); use a local disk, or PostgreSQL for many machines"
            raise OSError(errno.EOPNOTSUPP, message)

    def claim(self) -> None:
        """Take the shared lock, which the system releases when this process ends. Raises `FileInUse`.

        It belongs to the process, not to the descriptor: child processes do not have it. Any thread may call this.
        """
        if fcntl is not None:
            with self._claiming:
                self._claim(self._path_beside("lock"))

    def _claim(self, lock: Path) -> None:
        assert fcntl is not None
        if self._lock is not None:
            if self._locked_by == os.getpid() and _read_identity(lock) == _read_identity(self._lock):
                return
            self.release()  # the lock file was removed, or the lock is that of our parent
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
        """Create the file if it does not exist, with mode 0600, which SQLite also gives to the files beside it."""
        with suppress(FileExistsError):
            os.close(make_private_file(self.path, os.O_RDWR | os.O_EXCL))

    def tighten(self) -> list[Path]:
        """Remove the permissions of other users; returns the files that had any."""
        files = (self.path, self._path_beside("wal"), self._path_beside("shm"), self._path_beside("lock"))
        return [file for file in files if restrict_access(file)]

    def read_identity(self) -> tuple[int, int] | None:
        """Device and inode, which distinguish this file from another of the same name; None if it does not exist."""
        return _read_identity(self.path)

    def measure_log(self) -> int:
        """Bytes of SQLite's write-ahead log."""
        try:
            return os.stat(self._log).st_size
        except OSError:
            return 0

    def _path_beside(self, ending: str) -> Path:
        return self.path.with_name(f"{self.path.name}-{ending}")


NETWORK_FILE_SYSTEMS = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "smbnetfs", "ncpfs", "afs", "coda", "ceph", "cephfs", "glusterfs"),
    *("lustre", "beegfs", "orangefs", "gfs2", "ocfs2", "sshfs", "davfs", "davfs2", "juicefs", "rclone"),
    *("s3fs", "gcsfuse", "blobfuse", "mount-s3"),
)


def file_system_of(path: Path, mounts: Path) -> str:
    """The type of the file system of a path; empty if the system does not tell. A line of `mounts`:

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
        if inside and len(point) >= length:  # of two mounts at one point, the later one hides the earlier
            found, length = kind.split(" ")[0], len(point)
    return found


def _read_identity(file: Path | int) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
