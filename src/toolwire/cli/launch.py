"""`toolwire launch`: a program that uses the gateway, and the gateway too if none runs."""

from pathlib import Path
from typing import cast, get_args

import click

from toolwire.cli.options import PATH, config_option, host_option, model_option, one_of, port_option, stop, stops_on


@click.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
@click.argument(
    "program",
    metavar="{claude|codex}",
    shell_complete=one_of("claude", "codex"),
    help="The program; what follows goes to it.",
)
@click.argument("arguments", nargs=-1, help="Its own options and arguments.")
@model_option
@host_option
@port_option
@click.option("--log", type=PATH, help="A file for the log of the gateway, if one is started.")
@config_option
def launch(
    program: str,
    arguments: tuple[str, ...],
    model: str,
    host: str | None,
    port: int | None,
    log: Path | None,
    config: str | None,
) -> None:
    """Start Claude Code or Codex with the models of the gateway; starts a gateway too if none runs."""
    from toolwire.cli.programs import Program
    from toolwire.cli.start import NotStarted, start
    from toolwire.config.settings import SettingsError

    if program not in get_args(Program):
        raise stop(f"launch: {program!r} is none of {', '.join(get_args(Program))}")
    own = arguments[arguments[:1] == ("--",) :]
    with stops_on(SettingsError, NotStarted):
        raise click.exceptions.Exit(start(cast("Program", program), own, model, host, port, log, config))
