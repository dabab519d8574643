"""`toolwire doctor`: a green or red line for everything that a gateway of these settings needs."""

import os

import typer

from toolwire.cli.options import Config


def doctor(config: Config = None) -> None:
    """Check the configuration, every backend, its key, the store, Codex and the port; each line says what to do."""
    import asyncio

    from toolwire.cli.health import examine
    from toolwire.core.terminal import clean

    findings = asyncio.run(examine(config))
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = typer.style("✓", fg="green") if finding.is_good else typer.style("✗", fg="red")
        line = f"{mark} {clean(f'{finding.name:{width}}  {finding.text}')}"
        typer.echo(line, color=False if os.environ.get("NO_COLOR") else None)
    raise typer.Exit(0 if all(finding.is_good for finding in findings) else 1)
