"""`toolwire serve`."""

import sys

import click

from toolwire.cli.options import say, stops_on


@click.command()
@click.option("--config", "-c", help="Settings file; else ./toolwire.toml, else ~/.config/toolwire/toolwire.toml.")
@click.option("--host", help="Address to listen on.")
@click.option("--port", "-p", type=int, help="Port to listen on; 0 takes a free one.")
@click.option("--workers", "-w", type=int, help="Processes that serve together.")
def serve(config: str | None, host: str | None, port: int | None, workers: int | None) -> None:
    """Run the gateway."""
    from toolwire.config import settings

    def read_again() -> settings.Settings:
        found = settings.with_address(settings.load_for_serving(config), host, port)
        return settings.with_workers(found, workers)

    with stops_on(settings.SettingsError):
        read = settings.load_for_serving(config)
        chosen = settings.with_workers(settings.with_address(read, host, port), workers)
        if chosen.server.workers > 1:
            from toolwire.gateway.workers.signals import hold_hangup

            hold_hangup()
        tell_more = None
        if sys.stderr.isatty():
            from toolwire.cli.banner import Banner

            banner = Banner(read, chosen)
            banner.head()
            tell_more = banner.ready
        from toolwire.gateway.serve import StartFailed
        from toolwire.gateway.serve import serve as run

        try:
            run(chosen, tell_more, read_again)
        except StartFailed as error:
            say(error)
            raise click.exceptions.Exit(1) from None  # whoever has started it may try again
