"""`toolwire init`: writes a settings file after a few questions."""

from typing import Annotated

import typer

from toolwire.cli.options import stops_on


def complete_preset(incomplete: str) -> list[str]:
    from toolwire.turns.presets import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def init(
    preset: Annotated[
        list[str] | None,
        typer.Option(help="A server, such as deepseek or ollama; may be repeated.", autocompletion=complete_preset),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="A model of that server; may be repeated.")
    ] = None,
    base_url: Annotated[str, typer.Option(help="The address of that server, if not the usual one.")] = "",
    key_env: Annotated[str, typer.Option(help="The variable that holds its key, if not the usual one.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    config: Annotated[
        str | None, typer.Option("--config", "-c", help="The file; else ~/.config/toolwire/toolwire.toml.")
    ] = None,
) -> None:
    """Write a settings file; asks which servers you use. Keys stay in variables of the environment."""
    from pathlib import Path

    from toolwire.cli.wizard import Declined, Given
    from toolwire.cli.wizard import init as ask_and_write
    from toolwire.turns.files import user_path

    given = Given(tuple(preset or ()), tuple(model or ()), base_url, key_env)
    path = Path(config).absolute() if config else user_path()
    with stops_on(Declined):
        ask_and_write(path, given, asks=not yes, overwrite=overwrite)
