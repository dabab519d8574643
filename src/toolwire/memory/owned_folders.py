"""Temporary directories of a process. Those of a process that was killed are removed by the next one that starts.

The owner holds a lock in its directory, and so do processes that it has forked; the system releases it when the last of
them is gone, however it ends. Unlike a process id, a lock is also right where several containers share a directory.
"""

import os
import shutil
import socket
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK = "owner.lock"
PREFIX = "toolwire-"
STALE = 86400.0
"""Seconds after which a directory without a lock, of an earlier version, is looked at by what is in it."""
YOUNG = 60.0
"""Seconds for which a directory is spared: its owner may have made the lock file and not locked it yet."""
_CODEX = f"{PREFIX}codex-"


class OwnedFolder:
    """A new directory of this process, under one that is there already."""

    def __init__(self, prefix: str, base: str | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        self._lock = _locked(self.path / LOCK)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Leave it to other processes that hold it, or to the next that looks for those without an owner."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_orphans(*bases: str) -> None:
    """Remove the directories of this user under these whose owner is gone."""
    for base in {os.path.realpath(base) for base in bases if os.path.isabs(base)}:
        for path in Path(base).glob(f"{PREFIX}*"):
            with suppress(OSError):
                if _is_ours(path) and _is_orphan(path):
                    shutil.rmtree(path, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and fcntl is not None and found.st_uid == os.geteuid()


def _is_orphan(path: Path) -> bool:
    age = time.time() - path.lstat().st_mtime
    if age < YOUNG:
        return False
    if (path / LOCK).exists():
        lock = _locked(path / LOCK)
        if lock is not None:
            os.close(lock)
        return lock is not None
    if age < STALE:
        return False
    if path.name.startswith(_CODEX):
        owner = path.name.removeprefix(_CODEX).partition("-")[0]
        return owner.isdecimal() and Path("/proc/self").exists() and not Path(f"/proc/{owner}").exists()
    inside = tuple(path.iterdir())
    are_known = all(each.suffix == ".sock" or each.name == "stderr.lock" for each in inside)
    return bool(inside) and are_known and not any(map(_answers, inside))


def _locked(path: Path) -> int | None:
    """A descriptor that holds the lock; None if another process has it."""
    if fcntl is None:
        return None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _answers(path: Path) -> bool:
    """Whether a process listens at a socket."""
    if path.suffix != ".sock":
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True
