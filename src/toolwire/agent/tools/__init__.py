"""The built-in tools, by the names in `--tools` and `builtin`."""

from collections.abc import Iterable, Sequence

from toolwire.turns.tools.registry import Tool, Toolset

NAMES = ("read", "write", "edit", "glob", "grep", "bash", "patch", "image", "exec", "local_shell")
"""The names of all tools and groups of tools."""

DEFAULT = ("read", "write", "edit", "glob", "grep", "bash", "patch", "image", "exec")


def builtin(names: Iterable[str] = ()) -> "BuiltinTools":
    """The tools with these names, or the default ones. Raises `ValueError` for an unknown name."""
    chosen = [name.lower() for name in names] or list(DEFAULT)
    for name in chosen:
        if name not in NAMES:
            raise ValueError(f"there is no tool {name!r}; there are {', '.join(NAMES)}")
    return BuiltinTools(tuple(dict.fromkeys(chosen)))


class BuiltinTools(Toolset):
    """Tools for files and commands. Leaving the set ends the commands that still run."""

    def __init__(self, names: Sequence[str]) -> None:
        from toolwire.agent.tools.shell import Sessions  # noqa: PLC0415 - only when used

        super().__init__()
        self._names = names
        self._running = Sessions()

    @property
    def tools(self) -> Sequence[Tool]:
        """The chosen tools."""
        from toolwire.agent.tools import files, image, patch, search, shell  # noqa: PLC0415 - only when used

        known: dict[str, tuple[Tool, ...]] = {
            "read": (files.read,),
            "write": (files.write,),
            "edit": (files.edit,),
            "glob": (search.glob,),
            "grep": (search.grep,),
            "bash": (shell.bash,),
            "patch": (patch.apply_patch,),
            "image": (image.view_image,),
            "exec": tuple(self._running.tools),
            "local_shell": (shell.local_shell,),
        }
        return [tool for name in self._names for tool in known[name]]

    async def __aexit__(self, *_: object) -> None:
        running, self._running = self._running, type(self._running)()
        await running.close()
