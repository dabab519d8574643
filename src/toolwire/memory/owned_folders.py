"""Temporary directories of a process. If it is killed, the next process that starts removes them.

The owner and the processes that it has forked hold a lock in the directory; the system releases it when the last of
them ends, however that happens. Unlike a process id, a lock also works if several containers share the directory.
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
"""Age in seconds above which a directory without a lock file, from an earlier version, is judged by its content."""
YOUNG = 60.0
"""Age in seconds below which a directory is left alone: its owner may be about to lock it."""
_CODEX = f"{PREFIX}codex-"


class OwnedFolder:
    """A new temporary directory of this process, in `base`."""

    def __init__(self, prefix: str, base: str | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        self._lock = _lock(self.path / LOCK)

    def remove(self) -> None:
        """Delete the directory with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Release only the lock: forked processes may still use the directory. `remove_orphans` deletes it later."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_orphans(*bases: str) -> None:
    """Delete the directories in these bases that belong to this user and whose owner is gone."""
    for base in {os.path.realpath(base) for base in bases if os.path.isabs(base)}:
        for path in Path(base).glob(f"{PREFIX}*"):
            with suppress(OSError):
                found = path.lstat()
                is_ours = stat.S_ISDIR(found.st_mode) and fcntl is not None and found.st_uid == os.geteuid()
                if is_ours and _is_orphan(path):
                    shutil.rmtree(path, ignore_errors=True)


def _is_orphan(path: Path) -> bool:
    age = time.time() - path.lstat().st_mtime
    if age < YOUNG:
        return False
    if (path / LOCK).exists():
        lock = _lock(path / LOCK)
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
    return bool(inside) and are_known and not any(map(_is_listening, inside))


def _lock(path: Path) -> int | None:
    """Lock a file; returns its descriptor, or None if another process has the lock."""
    if fcntl is None:
        return None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _is_listening(path: Path) -> bool:
    """Whether a process listens on a socket."""
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
