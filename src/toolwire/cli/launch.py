"""`toolwire launch`: runs a program on the gateway that answers, or on one of its own that ends with it."""

import os
import shutil
import sys
from pathlib import Path
from typing import cast, get_args

import click
import msgspec

from toolwire.cli.clients import INSTALL, OWN_MODELS, Program, check_model, choose_model, find_model, set_up_client_for
from toolwire.cli.gateway_address import GatewayAddress, fetch_first_model, fetch_version, has_model
from toolwire.cli.options import (
    PATH,
    complete_words,
    config_option,
    host_option,
    model_option,
    port_option,
    say,
    stop,
    stop_on,
)
from toolwire.cli.temporary_gateway import NotStarted, TemporaryGateway
from toolwire.config.settings import DEMO, Settings, SettingsError, load, with_address
from toolwire.upstream.credentials import inherited


class Launch(msgspec.Struct, frozen=True):
    """A program to start."""

    settings: Settings
    program: Program
    executable: str
    arguments: tuple[str, ...]
    model: str

    def command_on(self, gateway: GatewayAddress) -> tuple[list[str], dict[str, str]]:
        """The command line and the environment, with no secrets but its key and what `agent.inherit` names."""
        setup = set_up_client_for(self.settings, self.program, self.model, gateway)
        environment = inherited(self.settings.secret_variables, self.settings.agent.inherit)
        return [self.executable, *setup.arguments, *self.arguments], {**environment, **setup.variables}

    def __str__(self) -> str:
        return f"{self.program} with {self.model or 'its own model'}"


@click.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
@click.argument(
    "program",
    metavar="{claude|codex}",
    shell_complete=complete_words(*get_args(Program)),
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
    if program not in get_args(Program):
        raise stop(f"launch: {program!r} is none of {', '.join(get_args(Program))}")
    own = arguments[arguments[:1] == ("--",) :]
    with stop_on(SettingsError, NotStarted):
        settings = with_address(load(config), host, port)
        raise click.exceptions.Exit(_start(settings, cast("Program", program), own, model, log))


def _start(settings: Settings, program: Program, arguments: tuple[str, ...], model: str, log: Path | None) -> int:
    """Run the program; returns its exit code. On a gateway that runs already it replaces this process."""
    executable = shutil.which(program)
    if executable is None:
        raise NotStarted(f"{program} is not installed: {INSTALL[program]}")
    gateway = GatewayAddress.of(settings)
    version = fetch_version(gateway.url)
    chosen = model or find_model(arguments)
    if not chosen:
        chosen = choose_model(settings, program)
        if version and chosen in DEMO.models:  # the gateway that answers may have other settings than these
            chosen = fetch_first_model(gateway) or chosen
    launch = Launch(settings, program, executable, arguments, chosen)
    asked = chosen or OWN_MODELS[program]
    if version and has_model(gateway, asked):
        say(f"{launch} on the gateway at {gateway.url}")
        command, environment = launch.command_on(gateway)
        sys.stdout.flush()
        os.execve(executable, command, environment)  # noqa: S606 - the user's own command
    check_model(settings, asked)
    why = {None: "none answers", "": "something else answers"}.get(version, "another one answers")
    with TemporaryGateway(settings.file, log) as own:
        say(f"{launch} on a gateway of its own, {own.url} ({why} at {gateway.url})")
        return own.run(*launch.command_on(msgspec.structs.replace(gateway, url=own.url)))
