"""`toolwire launch`: a program that uses the gateway, and the gateway too if none runs."""

from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from toolwire.cli.options import Config, Model, Port, one_of, stop, stops_on


def launch(
    program: Annotated[
        str, typer.Argument(help="claude or codex; what follows goes to it.", autocompletion=one_of("claude", "codex"))
    ],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own options and arguments.")] = None,
    model: Model = "",
    port: Port = None,
    log: Annotated[Path | None, typer.Option(help="A file for the log of the gateway, if one is started.")] = None,
    config: Config = None,
) -> None:
    """Start Claude Code or Codex with the models of the gateway; starts a gateway too if none runs."""
    from toolwire.cli.programs import Program
    from toolwire.cli.start import NotStarted, start
    from toolwire.turns.settings import SettingsError

    if program not in get_args(Program):
        raise stop(f"launch: {program!r} is none of {', '.join(get_args(Program))}")
    own = arguments or []
    with stops_on(SettingsError, NotStarted):
        raise typer.Exit(start(cast("Program", program), own[own[:1] == ["--"] :], model, port, log, config))
