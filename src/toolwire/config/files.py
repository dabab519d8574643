"""Finds the configuration file, and decides whether one in the working directory can be trusted.

The working directory may be a stranger's repository. Only `toolwire serve` reads a file there, and only if no other
user could have written it.
"""

import errno
import os
import stat
from collections.abc import Mapping
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
    """The path of the user's own configuration file, whether it exists or not."""
    home = environment.get("HOME") or os.path.expanduser("~")
    base = environment.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # the specification ignores relative paths
        base = os.path.join(home, ".config")
    return Path(base, "toolwire", NAME)


def why_untrusted(path: Path) -> str:
    """The reason to distrust a file: a user besides this one and root could change it. Empty if it is trusted.

    Raises `OSError` for a broken link.
    """
    if pwd is None:
        return ""
    try:
        resolved = path.resolve(strict=True)
    except RuntimeError:  # a link that leads back to itself, before Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
    # Each directory on the path could be replaced, or the file in it.
    absolute = path.absolute()
    for each in dict.fromkeys((absolute, *absolute.parents, resolved, *resolved.parents)):
        found = each.lstat()
        if found.st_uid not in (os.getuid(), 0):
            return f"{each} belongs to {_name_user(found.st_uid)}, who is neither you nor root"
        if _is_writable_by_others(found):
            return f"others may write {each}"
    return ""


def _is_writable_by_others(found: os.stat_result) -> bool:
    """Whether other users may change this file, or replace files in this directory."""
    if stat.S_ISLNK(found.st_mode):  # has no mode of its own
        return False
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:  # only owners may replace files in it
        return False
    if not found.st_mode & stat.S_IWGRP:
        return bool(found.st_mode & stat.S_IWOTH)
    assert grp is not None
    try:
        group = grp.getgrgid(found.st_gid)
    except KeyError:
        return True
    # The owner may be the only member of the group, as is usual where the umask is 002.
    is_private = group.gr_name == _name_user(found.st_uid) and set(group.gr_mem) <= {group.gr_name}
    return not is_private or bool(found.st_mode & stat.S_IWOTH)


def _name_user(number: int) -> str:
    assert pwd is not None
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"the user {number}"
