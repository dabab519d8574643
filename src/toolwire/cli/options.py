"""What the commands share: options, and how a command ends that cannot be carried out."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, TypeAlias

import typer

from toolwire.core.terminal import clean

Config: TypeAlias = Annotated[
    str | None, typer.Option("--config", "-c", help="Settings file; else ~/.config/toolwire/toolwire.toml.")
]
Host: TypeAlias = Annotated[str | None, typer.Option(help="The address of the gateway; else that of the settings.")]
Port: TypeAlias = Annotated[int | None, typer.Option("--port", "-p", help="Its port; else that of the settings.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Write JSON.")]


def complete_model(incomplete: str) -> list[str]:
    """Models and aliases that the settings name; no server is asked."""
    from toolwire.turns.settings import SettingsError, read

    try:
        return [name for name in read(None).model_names if name.startswith(incomplete)]
    except SettingsError:
        return []


def complete_session(incomplete: str) -> list[tuple[str, str]]:
    """Sessions, newest first, with their first prompt."""
    from toolwire.agent.recent import recent
    from toolwire.agent.session import folder

    found = (each for each in recent(folder()) if each.id.startswith(incomplete))
    return [(each.id, " ".join(clean(each.prompt).split())[:60]) for each in islice(found, 20)]


Model: TypeAlias = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="The model; else the first one of your backends.", autocompletion=complete_model
    ),
]


def one_of(*words: str) -> Callable[[str], list[str]]:
    """A completion with these words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def say(message: object) -> None:
    """Write a line to stderr."""
    print(clean(f"toolwire: {message}"), file=sys.stderr, flush=True)


def stop(message: object) -> typer.Exit:
    """Say why nothing is done; returns what to raise."""
    say(message)
    return typer.Exit(2)


@contextmanager
def stops_on(*errors: type[Exception]) -> Generator[None]:
    """Errors of these types are one line, and exit code 2."""
    try:
        yield
    except errors as error:
        raise stop(error) from None
