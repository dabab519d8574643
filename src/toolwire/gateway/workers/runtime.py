"""The directory with the sockets of all workers, which only their user can enter. It goes with the last of them."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from toolwire.config.settings import SettingsError
from toolwire.gateway.peers import LONGEST_PATH, new_incarnation, socket_path
from toolwire.memory.owned_folders import LOCK as OWNER_LOCK
from toolwire.memory.owned_folders import PREFIX, OwnedFolder

LOCK = "stderr.lock"
"""Whoever writes to stderr holds it, so that lines of several processes stay whole."""


def runtime_bases() -> tuple[str, ...]:
    """Where it may be: under XDG_RUNTIME_DIR if there is one, else where temporary files are."""
    return os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"  # noqa: S108 - for its length


def make_runtime_folder() -> OwnedFolder:
    """A new one."""
    for base in runtime_bases():
        if not os.path.isabs(base):
            continue
        with suppress(OSError):
            folder = OwnedFolder(PREFIX, base)
            if len(os.fsencode(socket_path(folder.path, new_incarnation()))) <= LONGEST_PATH:
                return folder
            folder.remove()
    raise SettingsError("--workers: there is no directory for the sockets of workers; set XDG_RUNTIME_DIR or TMPDIR")


def leave_runtime_folder(folder: Path, *, to_others: bool) -> None:
    """Remove it if nothing is in it any more; with nobody left who could use it, whatever is in it too."""
    if not to_others:
        for path in (folder / LOCK, *folder.glob("*.sock")):
            path.unlink(missing_ok=True)
    with suppress(OSError):
        if {path.name for path in folder.iterdir()} <= {LOCK, OWNER_LOCK}:
            for name in (LOCK, OWNER_LOCK):
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()
