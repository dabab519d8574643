"""What the commands share: options, and how a command ends that cannot be carried out."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from toolwire.core.terminal import clean

PATH = click.Path(path_type=Path)


class Commands(click.Group):
    """Commands that help lists in the order in which they were added, each with its whole description."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in their order."""
        return [*self.commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help or "") for name, command in self.commands.items()])


config_option = click.option("--config", "-c", help="Settings file; else ~/.config/toolwire/toolwire.toml.")
host_option = click.option("--host", help="The address of the gateway; else that of the settings.")
port_option = click.option("--port", "-p", type=int, help="Its port; else that of the settings.")
json_option = click.option("--json", is_flag=True, help="Write JSON.")


def complete_model(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Models and aliases that the settings name; no server is asked."""
    from toolwire.config.settings import SettingsError, read

    try:
        return [name for name in read(None).model_names if name.startswith(incomplete)]
    except SettingsError:
        return []


def complete_session(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Sessions, newest first, with their first prompt."""
    from toolwire.agent.session import folder
    from toolwire.agent.session_index import recent

    found = (each for each in recent(folder()) if each.id.startswith(incomplete))
    return [CompletionItem(each.id, help=" ".join(clean(each.prompt).split())[:60]) for each in islice(found, 20)]


model_option = click.option(
    "--model",
    "-m",
    default="",
    shell_complete=complete_model,
    help="The model; else the first one of your backends.",
)


def one_of(*words: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """A completion with these words."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def say(message: object) -> None:
    """Write a line to stderr."""
    print(clean(f"toolwire: {message}"), file=sys.stderr, flush=True)


def stop(message: object) -> click.exceptions.Exit:
    """Say why nothing is done; returns what to raise."""
    say(message)
    return click.exceptions.Exit(2)


@contextmanager
def stops_on(*errors: type[Exception]) -> Generator[None]:
    """Errors of these types are one line, and exit code 2."""
    try:
        yield
    except errors as error:
        raise stop(error) from None
