"""`toolwire config`: what is in force, and where each setting comes from."""

import click

from toolwire.cli.options import Commands, config_option, json_option, say, stops_on


@click.group(cls=Commands, invoke_without_command=True)
@json_option
@config_option
@click.pass_context
def config(context: click.Context, json: bool, config: str | None) -> None:
    """Show the settings in force and where each comes from; keys are masked."""
    if context.invoked_subcommand is not None:
        context.obj = config
        return
    from toolwire.cli.in_force import as_json, as_toml
    from toolwire.config.provenance import settings_in_force
    from toolwire.config.settings import SettingsError, load

    with stops_on(SettingsError):
        settings = load(config)
        found = settings_in_force(settings)
    print(as_json(settings.file, found) if json else as_toml(settings.file, found))


@config.command()
@config_option
@click.pass_context
def path(context: click.Context, config: str | None) -> None:
    """Print the path of the settings file."""
    from pathlib import Path

    from toolwire.config.files import user_path

    given = config or context.obj
    file = Path(given).absolute() if given else user_path()
    print(file)
    if not file.exists():
        say("there is no such file yet; toolwire init writes one")
