"""Lines that set variables in a shell, to be evaluated there."""

import os
import shlex
from collections.abc import Sequence
from typing import Literal, TypeAlias

Shell: TypeAlias = Literal["sh", "fish", "powershell"]


def shell_here() -> Shell:
    """The shell of this user."""
    if os.name == "nt":
        return "powershell"
    return "fish" if os.path.basename(os.environ.get("SHELL", "")) == "fish" else "sh"


def set_variable(shell: Shell, name: str, value: str) -> str:
    match shell:
        case "sh":
            return f"export {name}={shlex.quote(value)}"
        case "fish":
            return f"set -gx {name} {_quoted(shell, value)}"
        case "powershell":
            return f"$env:{name} = {_quoted(shell, value)}"


def copy_variable(shell: Shell, name: str, other: str) -> str:
    """Set a variable to what another one holds, without telling what that is."""
    match shell:
        case "sh":
            return f'export {name}="${other}"'
        case "fish":
            return f'set -gx {name} "${other}"'
        case "powershell":
            return f"$env:{name} = $env:{other}"


def wrap_program(shell: Shell, name: str, arguments: Sequence[str]) -> str:
    """A function of a program's own name that starts it with these arguments before all others."""
    words = " ".join(_quoted(shell, word) for word in arguments)
    match shell:
        case "sh":
            return f'{name}() {{ command {name} {words} "$@"; }}'
        case "fish":
            return f"function {name}; command {name} {words} $argv; end"
        case "powershell":
            program = f"(Get-Command {name} -CommandType Application | Select-Object -First 1)"
            return f"function {name} {{ & {program} {words} @args }}"


def _quoted(shell: Shell, word: str) -> str:
    match shell:
        case "sh":
            return shlex.quote(word)
        case "fish":
            return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case "powershell":
            return "'" + word.replace("'", "''") + "'"
