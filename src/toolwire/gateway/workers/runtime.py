"""The directory with the sockets of all workers, which only their user can enter. It goes with the last of them."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from toolwire.gateway.peers import LONGEST_PATH, new_incarnation, socket_path
from toolwire.turns.settings import SettingsError

LOCK = "stderr.lock"
"""Whoever writes to stderr holds it, so that lines of several processes stay whole."""


def make_runtime_folder() -> Path:
    """A new one: under XDG_RUNTIME_DIR if there is one, else where temporary files are."""
    for base in (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"):  # noqa: S108 - for its length
        if not os.path.isabs(base):
            continue
        with suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="toolwire-", dir=base))
            if len(os.fsencode(socket_path(folder, new_incarnation()))) <= LONGEST_PATH:
                return folder
            folder.rmdir()
    raise SettingsError("--workers: there is no directory for the sockets of workers; set XDG_RUNTIME_DIR or TMPDIR")


def leave_runtime_folder(folder: Path, *, to_others: bool) -> None:
    """Remove it if nothing is in it any more; with nobody left who could use it, whatever is in it too."""
    if not to_others:
        for path in (folder / LOCK, *folder.glob("*.sock")):
            path.unlink(missing_ok=True)
    with suppress(OSError):
        if {path.name for path in folder.iterdir()} <= {LOCK}:
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()
