"""`toolwire serve`."""

from typing import Annotated

import typer

from toolwire.cli.options import stops_on


def serve(
    config: Annotated[
        str | None,
        typer.Option(
            "--config", "-c", help="Settings file; else ./toolwire.toml, else ~/.config/toolwire/toolwire.toml."
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option("--port", "-p", help="Port to listen on; 0 takes a free one.")] = None,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
) -> None:
    """Run the gateway."""
    from toolwire.turns import settings

    with stops_on(settings.SettingsError):
        chosen = settings.with_address(settings.load_for_serving(config), host, port)
        settings.check_workers(workers)
        from toolwire.gateway.serve import serve as run

        run(chosen)
