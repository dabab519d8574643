"""Files that hold what people and models said: only their owner may read them."""

import os
from pathlib import Path
from typing import BinaryIO, Literal, cast

_FILE, _FOLDER = 0o600, 0o700


def make_folders(folder: Path) -> None:
    """Make a directory and those above it that are missing, for their owner alone. What is there stays as it is."""
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(_FOLDER, exist_ok=True)


def open_private(path: Path, mode: Literal["w", "a"]) -> BinaryIO:
    """Open a file for writing that only its owner may read, also if others could before. Links are not followed."""
    return cast("BinaryIO", open(path, f"{mode}b", opener=_opener))


def _opener(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), _FILE)
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            os.chmod(descriptor, _FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
