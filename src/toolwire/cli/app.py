"""The command `toolwire`: its subcommands, shell completion, and how errors of the command line are reported."""

import errno
import importlib
import io
import os
import shlex
import sys
from functools import partial
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from toolwire import __version__
from toolwire.cli.options import CommandGroup, say, stop
from toolwire.imports import without_working_directory

COMMANDS = {
    "serve": "Run the gateway.",
    "launch": "Start Claude Code, Codex or any other client on your models, and a gateway if none is running.",
    "env": 'Print shell commands that point a client at the gateway, as in: eval "$(toolwire env claude)".',
    "init": "Write a settings file after asking which servers you use. Keys stay in environment variables.",
    "models": "List the models and aliases of every backend. The server is asked which models match a glob.",
    "doctor": "Check the settings, the backends with their keys, the store, Codex and the port, and suggest fixes.",
    "run": "Run an agent, whose tools run on this machine. Without a prompt the session is interactive.",
    "sessions": "List the sessions of `toolwire run`; `toolwire run --resume ID` continues one.",
    "check": "Check how an endpoint handles tool calls, and show the bytes that break a rule.",
    "replay": "Show recorded turns with their times, calls and notes.",
    "config": "Show the settings in force and where each comes from; keys are masked.",
    "keys": "Issue keys to clients, list, change, rotate and revoke them.",
    "usage": "Show what turns used: tokens, calls and time by key, model, day and more.",
    "store": "Inspect the store, migrate it to this version, or copy it to another one.",
}
"""The help text of every command. The command itself is in the module of the same name."""

SHELLS = ("bash", "zsh", "fish")
COMPLETION_VARIABLE = "_TOOLWIRE_COMPLETE"
"""Set by the completion script when it asks for completions."""
_COMPINIT = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }"


class LazyCommandGroup(CommandGroup):
    """Imports a command's module when the command is called; help and completion only need its help text."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called."""
        name, placeholder, rest = super().resolve_command(ctx, args)
        if name is None or placeholder is None:
            return name, placeholder, rest
        command: click.Command = getattr(importlib.import_module(f"toolwire.cli.{name}"), name)
        command.help = placeholder.help
        return name, command, rest


def _complete(context: click.Context, parameter: click.Parameter, is_given: bool) -> None:
    """Print the completion script for the user's shell, or install it.

    fish finds the script by itself; the start files of bash and zsh get a line that reads it.
    """
    if not is_given:
        return
    shell = os.path.basename(os.environ.get("SHELL", ""))
    if shell not in SHELLS:
        raise stop(f"completion: SHELL is {shell!r}, which is not one of {', '.join(SHELLS)}")
    completion = get_completion_class(shell)
    assert completion is not None
    script = completion(context.command, {}, "toolwire", COMPLETION_VARIABLE).source()
    if parameter.name == "show_completion":
        print(script)
        context.exit()
    home = Path.home()
    if shell == "fish":
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions"
    else:
        folder = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "toolwire"
    path = folder / f"toolwire.{shell}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(script, "utf-8")
        if shell != "fish":
            line, start = f". {shlex.quote(str(path))}", home / ".bashrc"
            if shell == "zsh":
                line, start = f"{_COMPINIT}; {line}", Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
            text = start.read_text("utf-8", "surrogateescape") if start.exists() else ""
            if line not in text.splitlines():
                with start.open("a", encoding="utf-8") as file:
                    file.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}{line}\n")
    except OSError as error:
        raise stop(f"completion: {error.filename}: {error.strerror}") from None
    say(f"completion for {shell} is installed in {path}; it works in the next shell")
    context.exit()


_completion_option = partial(click.option, is_flag=True, is_eager=True, expose_value=False, callback=_complete)


@click.group(
    cls=LazyCommandGroup,
    commands={name: click.Command(name, help=text) for name, text in COMMANDS.items()},
    invoke_without_command=True,
    context_settings={"help_option_names": ["--help", "-h"]},
)
@click.version_option(__version__, "--version", "-V", message="toolwire %(version)s")
@_completion_option("--install-completion", help="Install completion for your shell.")
@_completion_option("--show-completion", help="Print the completion script for your shell: bash, zsh or fish.")
@click.pass_context
def app(context: click.Context) -> None:
    """A gateway for LLM tool calls."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command line. An error in it is reported in one line."""
    without_working_directory()
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - None if it is closed
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # characters that the terminal's encoding lacks
    try:
        code = app(prog_name="toolwire", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        code = error.exit_code
    except click.ClickException as error:
        context: click.Context | None = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "toolwire"
        message = error.format_message()
        say(f"{message}{'' if message.endswith(('.', '?', '?)')) else '.'} See {path} --help")
        code = error.exit_code
    except click.Abort:
        say("cancelled")
        code = 130
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # output that is still buffered cannot be written either
        if error.errno != errno.EPIPE:
            say(error.strerror)
        code = 1
    sys.exit(code or 0)
