"""`toolwire init`: writes a settings file after a few questions."""

import click

from toolwire.cli.options import stops_on


def complete_preset(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from toolwire.config.presets import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


@click.command()
@click.option(
    "--preset",
    multiple=True,
    shell_complete=complete_preset,
    help="A server, such as deepseek or ollama; may be repeated.",
)
@click.option("--model", "-m", multiple=True, help="A model of that server; may be repeated.")
@click.option("--base-url", default="", help="The address of that server, if not the usual one.")
@click.option("--key-env", default="", help="The variable that holds its key, if not the usual one.")
@click.option("--yes", "-y", is_flag=True, help="Ask nothing.")
@click.option("--overwrite", is_flag=True, help="Replace a file that is there.")
@click.option("--config", "-c", help="The file; else ~/.config/toolwire/toolwire.toml.")
def init(
    preset: tuple[str, ...],
    model: tuple[str, ...],
    base_url: str,
    key_env: str,
    yes: bool,
    overwrite: bool,
    config: str | None,
) -> None:
    """Write a settings file; asks which servers you use. Keys stay in variables of the environment."""
    from pathlib import Path

    from toolwire.cli.wizard import Declined, Given
    from toolwire.cli.wizard import init as ask_and_write
    from toolwire.config.files import user_path

    given = Given(preset, model, base_url, key_env)
    path = Path(config).absolute() if config else user_path()
    with stops_on(Declined):
        ask_and_write(path, given, asks=not yes, overwrite=overwrite)
