"""The command line: `toolwire serve` and `toolwire replay`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="A gateway for LLM tool calls."
)


def _stop(message: object) -> typer.Exit:
    print(f"toolwire: {message}", file=sys.stderr)
    return typer.Exit(2)


@app.command()
def serve(
    config: Annotated[str | None, typer.Option(help="Settings file; ./toolwire.toml if it is there.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
) -> None:
    """Run the gateway."""
    from toolwire.runs import settings

    try:
        chosen = settings.with_address(settings.load(config), host, port)
        settings.check_workers(workers)
        from toolwire.service.serve import serve as run

        run(chosen)
    except settings.SettingsError as error:
        raise _stop(error) from None


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A recording, as [debug] record writes it.")],
) -> None:
    """Print what each dialect makes of a recorded turn."""
    from toolwire.replay import show

    try:
        show(file.read_bytes(), sys.stdout)
    except (OSError, ValueError) as error:
        raise _stop(f"{file}: {error}") from None


def main() -> None:
    app()
