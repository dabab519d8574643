"""Which configuration file is read, and whether one that merely lies in the working directory can be trusted.

Commands that are typed inside a repository read none of it. `toolwire serve` does, but no file that somebody else could
have put or changed there.
"""

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

try:
    import grp
    import pwd
except ImportError:  # Windows
    grp = pwd = None

NAME = "toolwire.toml"


def user_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The user's own configuration file, if there is one."""
    path = user_path(environment)
    return path if path.is_absolute() and os.path.lexists(path) else None


def user_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the user's own configuration file is, or would be."""
    home = environment.get("HOME") or os.path.expanduser("~")
    base = environment.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # the specification says that a relative one does not count
        base = os.path.join(home, ".config")
    return Path(base, "toolwire", NAME)


def why_untrusted(path: Path) -> str:
    """Why a user other than this one and root could change a file; empty if none can.

    Raises `OSError` for a link that leads to no file.
    """
    if pwd is None:
        return ""
    for each in dict.fromkeys((*_way_to(path.absolute()), *_way_to(_resolved(path)))):
        found = each.lstat()
        if found.st_uid not in (os.getuid(), 0):
            return f"{each} belongs to {_user(found.st_uid)}, who is neither you nor root"
        if _others_may_write(found):
            return f"others may write {each}"
    return ""


def _resolved(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except RuntimeError:  # so Python before 3.13 calls a link that leads back to itself
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None


def _way_to(path: Path) -> Iterator[Path]:
    """A file, and every directory in which it, or a directory on the way to it, could be replaced."""
    yield path
    yield from path.parents


def _others_may_write(found: os.stat_result) -> bool:
    """Whether others may change this file, or replace what is in this directory."""
    if stat.S_ISLNK(found.st_mode):  # has no mode of its own
        return False
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:  # only owners may replace something in it
        return False
    by_group = bool(found.st_mode & stat.S_IWGRP) and not _is_private_group(found)
    return by_group or bool(found.st_mode & stat.S_IWOTH)


def _is_private_group(found: os.stat_result) -> bool:
    """Whether a group is that of its owner alone, as where the umask is 002."""
    assert grp is not None
    try:
        group = grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    return group.gr_name == _user(found.st_uid) and set(group.gr_mem) <= {group.gr_name}


def _user(number: int) -> str:
    assert pwd is not None
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"the user {number}"
