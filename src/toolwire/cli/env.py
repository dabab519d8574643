"""`toolwire env`: what a shell has to set so that a client uses the gateway."""

from typing import cast, get_args

import click

from toolwire.cli.options import config_option, host_option, model_option, one_of, port_option, say, stop, stops_on


@click.command()
@click.argument(
    "client",
    metavar="{claude|codex|openai|anthropic}",
    shell_complete=one_of("claude", "codex", "openai", "anthropic"),
    help="The client; openai and anthropic are for programs with the library of one of these.",
)
@model_option
@click.option(
    "--shell",
    "-s",
    default="",
    shell_complete=one_of("sh", "fish", "powershell"),
    help="sh, fish or powershell.",
)
@host_option
@port_option
@config_option
def env(client: str, model: str, shell: str, host: str | None, port: int | None, config: str | None) -> None:
    """Print what a shell has to set for a client, as in: eval "$(toolwire env claude)"."""
    from toolwire.cli.choice import check_model, client_setup_for, default_model
    from toolwire.cli.programs import OWN_MODELS, Client
    from toolwire.cli.reach import access, version_at
    from toolwire.cli.shells import Shell, copy_variable, set_variable, shell_here, wrap_program
    from toolwire.config.settings import SettingsError, load, with_address

    if client not in get_args(Client):
        raise stop(f"env: {client!r} is none of {', '.join(get_args(Client))}")
    if shell and shell not in get_args(Shell):
        raise stop(f"--shell: {shell!r} is none of {', '.join(get_args(Shell))}")
    with stops_on(SettingsError):
        settings = with_address(load(config), host, port)
        if model:
            check_model(settings, model)
        elif client in OWN_MODELS:
            model = default_model(settings, cast("Client", client))
    reached = access(settings)
    words = client_setup_for(settings, cast("Client", client), model, reached)
    language = cast("Shell", shell) if shell else shell_here()
    for name, value in words.variables.items():
        other = words.copied.get(name)
        print(copy_variable(language, name, other) if other else set_variable(language, name, value))
    if words.arguments:
        print(wrap_program(language, client, words.arguments))
    if version_at(reached.url) is None:
        say(f"no gateway answers at {reached.url} yet: toolwire serve starts it")
