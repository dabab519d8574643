"""The built-in tools, by the names under which they are chosen."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from toolwire.turns.tools.registry import Tool

NAMES = ("read", "write", "edit", "glob", "grep", "bash", "patch", "image", "exec", "local_shell")
"""Every tool, or group of tools, that can be chosen."""

DEFAULT = ("read", "write", "edit", "glob", "grep", "bash", "patch", "image", "exec")

Close: TypeAlias = Callable[[], Awaitable[None]]


def builtin(names: Iterable[str] = ()) -> tuple[list[Tool], Close]:
    """The chosen tools, or the default ones, and a function that ends what they left running. Raises `ValueError`."""
    from toolwire.agent.tools import files, image, patch, search, sessions, shell  # noqa: PLC0415 - they are many

    running = sessions.Sessions()
    known: dict[str, tuple[Tool, ...]] = {
        "read": (files.read,),
        "write": (files.write,),
        "edit": (files.edit,),
        "glob": (search.glob,),
        "grep": (search.grep,),
        "bash": (shell.bash,),
        "patch": (patch.apply_patch,),
        "image": (image.view_image,),
        "exec": tuple(running.tools),
        "local_shell": (shell.local_shell,),
    }
    chosen = [name.lower() for name in names] or list(DEFAULT)
    for name in chosen:
        if name not in known:
            raise ValueError(f"there is no tool {name!r}; there are {', '.join(NAMES)}")
    return [tool for name in dict.fromkeys(chosen) for tool in known[name]], running.close
