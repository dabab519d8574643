"""`toolwire doctor`: a green or red line for everything that a gateway of these settings needs."""

import os
import sys

import click

from toolwire.cli.options import config_option


@click.command()
@config_option
def doctor(config: str | None) -> None:
    """Check the configuration, every backend, its key, the store, Codex and the port; each line says what to do."""
    import asyncio

    from toolwire.cli.health import examine, shown

    findings = asyncio.run(examine(config))
    width = max(len(finding.name) for finding in findings)
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for finding in findings:
        print(shown(finding, width, coloured=coloured))
    raise click.exceptions.Exit(0 if all(finding.is_good for finding in findings) else 1)
