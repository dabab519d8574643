"""`toolwire env`: prints what a shell has to set so that a client uses the gateway."""

import os
import shlex
from collections.abc import Sequence
from typing import Literal, TypeAlias, cast, get_args

import click

from toolwire.cli.clients import OWN_MODELS, Client, check_model, choose_model, set_up_client_for
from toolwire.cli.gateway_address import GatewayAddress, fetch_version
from toolwire.cli.options import (
    complete_words,
    config_option,
    host_option,
    model_option,
    port_option,
    say,
    stop,
    stop_on,
)
from toolwire.config.settings import SettingsError, load, with_address

Shell: TypeAlias = Literal["sh", "fish", "powershell"]


@click.command()
@click.argument(
    "client",
    metavar="{claude|codex|openai|anthropic}",
    shell_complete=complete_words(*get_args(Client)),
    help="The client; openai and anthropic are for programs with the library of one of these.",
)
@model_option
@click.option(
    "--shell",
    "-s",
    default="",
    shell_complete=complete_words(*get_args(Shell)),
    help="sh, fish or powershell.",
)
@host_option
@port_option
@config_option
def env(client: str, model: str, shell: str, host: str | None, port: int | None, config: str | None) -> None:
    if client not in get_args(Client):
        raise stop(f"env: {client!r} is none of {', '.join(get_args(Client))}")
    if shell and shell not in get_args(Shell):
        raise stop(f"--shell: {shell!r} is none of {', '.join(get_args(Shell))}")
    with stop_on(SettingsError):
        settings = with_address(load(config), host, port)
        if model:
            check_model(settings, model)
        elif client in OWN_MODELS:
            model = choose_model(settings, cast("Client", client))
    gateway = GatewayAddress.of(settings)
    setup = set_up_client_for(settings, cast("Client", client), model, gateway)
    has_fish = os.path.basename(os.environ.get("SHELL", "")) == "fish"
    usual = "powershell" if os.name == "nt" else "fish" if has_fish else "sh"
    language = cast("Shell", shell or usual)
    for name, value in setup.variables.items():
        source = setup.copied.get(name)
        print(_copy_variable(language, name, source) if source else _set_variable(language, name, value))
    if setup.arguments:
        print(_wrap_program(language, client, setup.arguments))
    if fetch_version(gateway.url) is None:
        say(f"no gateway answers at {gateway.url} yet: toolwire serve starts it")


def _set_variable(shell: Shell, name: str, value: str) -> str:
    return {
        "sh": f"export {name}={_quote(shell, value)}",
        "fish": f"set -gx {name} {_quote(shell, value)}",
        "powershell": f"$env:{name} = {_quote(shell, value)}",
    }[shell]


def _copy_variable(shell: Shell, name: str, source: str) -> str:
    """Set a variable to the value of another one without printing the value."""
    return {
        "sh": f'export {name}="${source}"',
        "fish": f'set -gx {name} "${source}"',
        "powershell": f"$env:{name} = $env:{source}",
    }[shell]


def _wrap_program(shell: Shell, name: str, arguments: Sequence[str]) -> str:
    """Define a shell function with the name of a program that starts it with these arguments before all others."""
    words = " ".join(_quote(shell, word) for word in arguments)
    program = f"(Get-Command {name} -CommandType Application | Select-Object -First 1)"
    return {
        "sh": f'{name}() {{ command {name} {words} "$@"; }}',
        "fish": f"function {name}; command {name} {words} $argv; end",
        "powershell": f"function {name} {{ & {program} {words} @args }}",
    }[shell]


def _quote(shell: Shell, word: str) -> str:
    match shell:
        case "sh":
            return shlex.quote(word)
        case "fish":
            return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case "powershell":
            return "'" + word.replace("'", "''") + "'"
