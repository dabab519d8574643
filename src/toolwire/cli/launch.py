"""`toolwire launch`: runs a program with the gateway that is running, or with a temporary one for this program."""

import os
import shutil
import sys
from pathlib import Path
from typing import cast, get_args

import click
import msgspec

from toolwire.cli.clients import INSTALL, OWN_MODELS, Program, check_model, choose_model, find_model, set_up_client
from toolwire.cli.gateway_address import GatewayAddress, fetch_first_model, fetch_version, has_model
from toolwire.cli.options import PATH, client_options, say, stop_on
from toolwire.cli.temporary_gateway import NotStarted, TemporaryGateway
from toolwire.config.settings import DEMO, SettingsError, load, with_address
from toolwire.turns.backends import find_obstacles
from toolwire.upstream.credentials import inherit_environment


@click.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
@click.argument("program", type=click.Choice(get_args(Program)), help="The program; later arguments are passed to it.")
@click.argument("arguments", nargs=-1, help="Options and arguments of the program.")
@client_options
@click.option("--log", type=PATH, help="A file for the log of the gateway, if one is started.")
def launch(
    program: str,
    arguments: tuple[str, ...],
    model: str,
    host: str | None,
    port: int | None,
    log: Path | None,
    config: str | None,
) -> None:
    arguments = arguments[arguments[:1] == ("--",) :]
    client = cast("Program", program)

    def make_command(gateway: GatewayAddress) -> tuple[list[str], dict[str, str]]:
        """The command line and the environment, with no secrets but the key and what `agent.inherit` names."""
        setup = set_up_client(settings, client, model, gateway)
        environment = inherit_environment(settings.secret_variables, settings.agent.inherit)
        return [executable, *setup.arguments, *arguments], {**environment, **setup.variables}

    with stop_on(SettingsError, NotStarted):
        settings = with_address(load(config), host, port)
        executable = shutil.which(program) or ""
        if not executable:
            raise NotStarted(f"{program} is not installed: {INSTALL[client]}")
        obstacles = find_obstacles(settings)
        usable = msgspec.structs.replace(
            settings, backends=tuple(each for each in settings.backends if each.name not in obstacles)
        )
        gateway = GatewayAddress.of(settings)
        version = fetch_version(gateway.url)
        model = model or find_model(arguments)
        if not model:
            model = choose_model(settings if version else usable, client)
            if version and model in DEMO.models:  # the gateway that answers may have different settings
                model = fetch_first_model(gateway) or model
        described = f"{program} with {model or 'its own model'}"
        if version and has_model(gateway, model or OWN_MODELS[client]):
            say(f"{described} on the gateway at {gateway.url}")
            sys.stdout.flush()
            os.execve(executable, *make_command(gateway))  # noqa: S606 - the user's own command
        for name, obstacle in obstacles.items():
            say(f"backend {name} is unavailable: {obstacle}")
        check_model(usable, model or OWN_MODELS[client])
        why = {None: "none answers", "": "something else answers"}.get(version, "another one answers")
        with TemporaryGateway(settings.file, log) as own:
            say(f"{described} on a gateway of its own, {own.url} ({why} at {gateway.url})")
            code = own.run(*make_command(msgspec.structs.replace(gateway, url=own.url)))
        raise click.exceptions.Exit(code)
