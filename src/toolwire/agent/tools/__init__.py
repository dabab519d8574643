"""The built-in tools, by the names in `--tools` and `builtin`."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from toolwire.config.presets import PRESETS
from toolwire.turns.tools.registry import Tool, Toolset

NAMES = ("read", "write", "edit", "glob", "grep", "bash", "patch", "plan", "image", "exec", "local_shell")
"""The names of all tools and groups of tools."""

DEFAULT = ("read", "write", "edit", "glob", "grep", "bash", "patch", "image", "exec")

FAMILIES = {
    "claude": ("read", "write", "edit", "glob", "grep", "bash", "image"),
    "codex": ("exec", "patch", "plan", "image"),
}
"""The tools that a family of models was trained with: those of Claude Code, and those of Codex."""
READING = ("read", "glob", "grep")
"""Tools that read files without a command."""


def family_of(model: str) -> str:
    """The family of tools for a model, by its name at its backend."""
    name = model.rpartition("/")[2].lower()
    is_codex = any(fnmatchcase(name, pattern) for pattern in PRESETS["openai"].models)
    return "codex" if is_codex else "claude"


def builtin(names: Iterable[str] = ()) -> "BuiltinTools":
    """The tools with these names, or of these families, or the default ones. Raises `ValueError` for unknown names."""
    chosen: list[str] = []
    for name in [name.lower() for name in names] or DEFAULT:
        if name not in NAMES and name not in FAMILIES:
            raise ValueError(f"there is no tool {name!r}; there are {', '.join((*NAMES, *FAMILIES))}")
        chosen += FAMILIES.get(name, (name,))
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
        return self.named(self._names)

    def named(self, names: Iterable[str]) -> list[Tool]:
        """The tools with these names, which share the commands that still run."""
        from toolwire.agent.tools import files, image, patch, plan, search, shell  # noqa: PLC0415 - only when used

        known: dict[str, tuple[Tool, ...]] = {
            "read": (files.read,),
            "write": (files.write,),
            "edit": (files.edit,),
            "glob": (search.glob,),
            "grep": (search.grep,),
            "bash": (shell.bash,),
            "patch": (patch.apply_patch,),
            "plan": (plan.update_plan,),
            "image": (image.view_image,),
            "exec": tuple(self._running.tools),
            "local_shell": (shell.local_shell,),
        }
        return [tool for name in names for tool in known[name]]

    async def __aexit__(self, *_: object) -> None:
        running, self._running = self._running, type(self._running)()
        await running.close()
