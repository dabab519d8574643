"""Completion in the shell: `--show-completion` prints the script of a shell, `--install-completion` installs it."""

import os
import shlex
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from toolwire.cli.options import say, stop

VARIABLE = "_TOOLWIRE_COMPLETE"
"""Set by the script when it asks for completions."""
SHELLS = ("bash", "zsh", "fish")
_COMPINIT = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }"


def _shell() -> str:
    """The shell of this user, by SHELL."""
    name = os.path.basename(os.environ.get("SHELL", ""))
    if name not in SHELLS:
        raise stop(f"completion: SHELL is {name!r}, and none of {', '.join(SHELLS)}")
    return name


def _script(app: click.Command, shell: str) -> str:
    completion = get_completion_class(shell)
    assert completion is not None
    return completion(app, {}, "toolwire", VARIABLE).source()


def _show(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        print(_script(context.command, _shell()))
        context.exit()


def _install(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        shell = _shell()
        try:
            path = _write(shell, _script(context.command, shell))
        except OSError as error:
            raise stop(f"completion: {error.filename}: {error.strerror}") from None
        say(f"completion for {shell} is installed in {path}; it works in the next shell")
        context.exit()


def _write(shell: str, script: str) -> Path:
    """Write the script, and name it in the start file of a shell that does not find it by itself."""
    home = Path.home()
    if shell == "fish":
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions"
    else:
        folder = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "toolwire"
    path = folder / f"toolwire.{shell}"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(script, "utf-8")
    if shell == "fish":
        return path
    line = f". {shlex.quote(str(path))}"
    if shell == "zsh":
        line = f"{_COMPINIT}; {line}"
    start = (Path(os.environ.get("ZDOTDIR") or home) / ".zshrc") if shell == "zsh" else home / ".bashrc"
    text = start.read_text("utf-8", "surrogateescape") if start.exists() else ""
    if line not in text.splitlines():
        with start.open("a", encoding="utf-8") as file:
            file.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}{line}\n")
    return path


show_completion_option = click.option(
    "--show-completion",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show,
    help="Print the completion script for your shell: bash, zsh or fish.",
)
install_completion_option = click.option(
    "--install-completion",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_install,
    help="Install completion for your shell.",
)
