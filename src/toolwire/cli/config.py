"""`toolwire config`: what is in force, and where each setting comes from."""

import typer

from toolwire.cli.options import AsJson, Config, say, stops_on

config_app = typer.Typer(invoke_without_command=True)


@config_app.callback()
def config(context: typer.Context, json: AsJson = False, config: Config = None) -> None:
    """Show the settings in force and where each comes from; keys are masked."""
    if context.invoked_subcommand is not None:
        context.obj = config
        return
    from toolwire.cli.in_force import as_json, as_toml
    from toolwire.turns.settings import SettingsError, load
    from toolwire.turns.sources import settings_in_force

    with stops_on(SettingsError):
        settings = load(config)
        found = settings_in_force(settings)
    print(as_json(settings.file, found) if json else as_toml(settings.file, found))


@config_app.command()
def path(context: typer.Context, config: Config = None) -> None:
    """Print the path of the settings file."""
    from pathlib import Path

    from toolwire.turns.files import user_path

    given = config or context.obj
    file = Path(given).absolute() if given else user_path()
    print(file)
    if not file.exists():
        say("there is no such file yet; toolwire init writes one")
