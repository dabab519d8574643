"""Shared by the commands: options, completion of their values, messages and the exit code of an error."""

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from toolwire.core.display import clean

PATH = click.Path(path_type=Path)


class CommandGroup(click.Group):
    """A group whose help lists the commands in order of definition, with the whole text of each."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in order."""
        return [*self.commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help or "") for name, command in self.commands.items()])


def complete_model(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the models and aliases of the settings, without asking a server."""
    from toolwire.config.settings import SettingsError, read

    try:
        return [name for name in read(None).model_names if name.startswith(incomplete)]
    except SettingsError:
        return []


def complete_session(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete session ids, newest first, with the first prompt of each."""
    from toolwire.agent.session import folder, list_sessions

    found = (each for each in list_sessions(folder()) if each.id.startswith(incomplete))
    return [CompletionItem(each.id, help=" ".join(clean(each.prompt).split())[:60]) for each in islice(found, 20)]


def mention_local_file(context: click.Context, config: str | None) -> None:
    """Say that a settings file in the working directory is not read, unless a file was given to this command."""
    from toolwire.config.files import NAME, user_path

    given = context.find_root().meta
    if config is not None:
        given[__name__] = config
    is_command = context.invoked_subcommand is None and not context.resilient_parsing
    if is_command and __name__ not in given and os.path.isfile(NAME) and Path(NAME).resolve() != user_path().resolve():
        say(f"./{NAME} is ignored, because only serve reads it by default; to use it, pass --config {NAME}")


def _read_config_option(context: click.Context, parameter: click.Parameter, config: str | None) -> str | None:
    if config is not None or not isinstance(context.command, click.Group):  # a group's command may have the option
        mention_local_file(context, config)
    return config


config_option = click.option(
    "--config",
    "-c",
    help="Settings file; by default ~/.config/toolwire/toolwire.toml.",
    callback=_read_config_option,
)
json_option = click.option("--json", is_flag=True, help="Write JSON.")
_model_option = click.option(
    "--model",
    "-m",
    default="",
    shell_complete=complete_model,
    help="The model; by default the first of your backends.",
)
_host_option = click.option("--host", help="The gateway's host; by default that of the settings.")
_port_option = click.option("--port", "-p", type=int, help="The gateway's port; by default that of the settings.")


def client_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for a client of the gateway: --model, --host, --port and --config."""
    return _model_option(_host_option(_port_option(config_option(command))))


def say(message: object) -> None:
    """Write a line to stderr."""
    print(clean(f"toolwire: {message}"), file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Write a value to stdout as indented JSON."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def stop(message: object) -> click.exceptions.Exit:
    """Write an error to stderr; returns the exception that ends the command with exit code 2."""
    say(message)
    return click.exceptions.Exit(2)


@contextmanager
def stop_on(*errors: type[Exception]) -> Generator[None]:
    """Report errors of these types in one line, and end the command with exit code 2."""
    try:
        yield
    except errors as error:
        raise stop(error) from None
