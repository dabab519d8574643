"""`toolwire env`: prints shell commands that make a client use the gateway."""

import os
import shlex
from collections.abc import Callable

import click
import msgspec

from toolwire.cli.clients import CLIENTS, check_model, choose_model, set_up_client
from toolwire.cli.gateway_address import GatewayAddress, fetch_version
from toolwire.cli.options import client_options, say, stop_on
from toolwire.config.settings import SettingsError, load, with_address
from toolwire.memory.private_files import find_state_folder, make_folders


class ShellSyntax(msgspec.Struct, frozen=True):
    """How a shell writes the commands, as templates."""

    quote: Callable[[str], str]
    set_variable: str
    copy_variable: str
    """Sets a variable to the value of another, so that no key is printed."""
    wrap_program: str
    """Defines a function with a program's name, which starts the program with these arguments first."""


SHELLS = {
    "sh": ShellSyntax(
        shlex.quote,
        "export {name}={value}",
        'export {name}="${source}"',
        '{name}() {{ command {name} {arguments} "$@"; }}',
    ),
    "fish": ShellSyntax(
        lambda word: "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'",
        "set -gx {name} {value}",
        'set -gx {name} "${source}"',
        "function {name}; command {name} {arguments} $argv; end",
    ),
    "powershell": ShellSyntax(
        lambda word: "'" + word.replace("'", "''") + "'",
        "$env:{name} = {value}",
        "$env:{name} = $env:{source}",
        "function {name} {{ & (Get-Command {name} -CommandType Application | Select-Object -First 1) "
        "{arguments} @args }}",
    ),
}


@click.command()
@click.argument(
    "client",
    type=click.Choice([*CLIENTS]),
    help="The client; openai and anthropic are for programs that use the library of that vendor.",
)
@client_options
@click.option("--shell", "-s", type=click.Choice([*SHELLS]), help="The shell; by default yours.")
def env(client: str, model: str, shell: str | None, host: str | None, port: int | None, config: str | None) -> None:
    with stop_on(SettingsError):
        settings = with_address(load(config), host, port)
        if model:
            check_model(settings, model)
        elif CLIENTS[client].install:
            model = choose_model(settings, CLIENTS[client].own_model)
        gateway = GatewayAddress.of(settings)
        setup = set_up_client(settings, CLIENTS[client], model, gateway)
        if setup.files:
            folder = find_state_folder() / "clients" / client
            try:
                make_folders(folder)
                setup = setup.with_files_in(folder)
            except OSError as error:
                raise SettingsError(f"{folder}: {error.strerror}") from None
    if shell is None:
        is_fish = os.path.basename(os.environ.get("SHELL", "")) == "fish"
        shell = "powershell" if os.name == "nt" else "fish" if is_fish else "sh"
    syntax = SHELLS[shell]
    for name, value in setup.variables.items():
        source = setup.copied.get(name)
        template = syntax.copy_variable if source else syntax.set_variable
        print(template.format(name=name, source=source, value=syntax.quote(value)))
    if setup.arguments:
        print(syntax.wrap_program.format(name=client, arguments=" ".join(map(syntax.quote, setup.arguments))))
    if fetch_version(gateway.url) is None:
        say(f"no gateway answers at {gateway.url} yet: toolwire serve starts it")
