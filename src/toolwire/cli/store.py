"""`toolwire store`: what is in the store, its version, and copies of it for another store."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from toolwire.cli.options import Commands, config_option, json_option, say, stop, stops_on

if TYPE_CHECKING:
    from toolwire.config.settings import Settings

file_argument = click.argument("file", metavar="FILE", help="A file of JSON lines, or - for a pipe.")


@contextmanager
def _named(settings: "Settings") -> Generator[None]:
    """A failure of the store is one line that says which store it is, and exit code 2."""
    from toolwire.memory.store import StoreFailed

    try:
        yield
    except StoreFailed as error:
        raise stop(f"{settings.store.setting}: {settings.store.shown} cannot be used: {error}") from None


@click.group(cls=Commands)
def store() -> None:
    """Look at the store, bring it to this version, and copy it to another one."""


@store.command()
@json_option
@config_option
def check(json: bool, config: str | None) -> None:
    """Show the engine, the version, what is kept, which processes use it and their leases. Nothing is changed."""
    import asyncio

    import msgspec

    from toolwire.cli.store_report import as_text, report_on
    from toolwire.config.settings import SettingsError, load

    with stops_on(SettingsError):
        settings = load(config)
        with _named(settings):
            report = asyncio.run(report_on(settings))
    print(msgspec.json.format(msgspec.json.encode(report)).decode() if json else as_text(report))
    raise click.exceptions.Exit(0 if report.is_ready else 1)


@store.command()
@config_option
def migrate(config: str | None) -> None:
    """Bring the schema to this version. Gateways of the version before may go on meanwhile; `serve` does it too."""
    import asyncio

    from toolwire.config.settings import SettingsError, load, make_store, opened_store

    with stops_on(SettingsError):
        settings = load(config)
        with _named(settings):
            before = asyncio.run(make_store(settings).inspect())
            after = asyncio.run(opened_store(settings, say).inspect())
    changed = f"version {before} is now version {after}" if before != after else f"version {after}"
    print(f"{settings.store.shown}: {changed if after else 'there is no store yet'}")


@store.command("export")
@file_argument
@config_option
def export_(file: str, config: str | None) -> None:
    """Write everything that is kept to a file that only you can read, or to a pipe."""
    import asyncio

    from toolwire.cli.store_copy import exported
    from toolwire.config.settings import SettingsError, load

    with stops_on(SettingsError, OSError):
        settings = load(config)
        with _named(settings):
            rows = asyncio.run(exported(settings, file))
    say(f"exported {rows} rows")


@store.command("import")
@file_argument
@config_option
def import_(file: str, config: str | None) -> None:
    """Add what `export` wrote to the store of the settings. What is there already stays."""
    import asyncio

    from toolwire.cli.store_copy import BadExport, imported
    from toolwire.config.settings import SettingsError, load, opened_store

    with stops_on(SettingsError, OSError, BadExport):
        settings = load(config)
        if not opened_store(settings, say).outlives_process:
            raise stop("store.url: a store in memory ends with its process; nothing was imported")
        with _named(settings):
            rows = asyncio.run(imported(settings, file))
    say(f"imported {rows} rows")
