"""`toolwire check`."""

from pathlib import Path
from typing import Annotated

import typer

from toolwire.cli.options import stops_on


def check(  # noqa: PLR0913, PLR0917 - each is an option of its own
    url: Annotated[str, typer.Argument(help="The address of an endpoint, with or without /v1.")] = "",
    api: Annotated[
        str, typer.Option("--api", "-a", help="APIs with commas: chat,responses,messages; all by default.")
    ] = "",
    model: Annotated[
        str, typer.Option("--model", "-m", help="The model to ask; the first one listed by default.")
    ] = "",
    key: Annotated[
        str, typer.Option("--key", "-k", envvar="TOOLWIRE_CHECK_KEY", help="The key to send.", show_envvar=True)
    ] = "",
    only: Annotated[list[str] | None, typer.Option(help="A rule, or an area of rules; may be repeated.")] = None,
    report: Annotated[
        list[Path] | None, typer.Option("--report", "-r", help="A file ending with .html, .json or .xml (JUnit).")
    ] = None,
    record: Annotated[Path | None, typer.Option(help="A directory for all requests and answers.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Check a captured stream or answer instead.")
    ] = None,
    har: Annotated[Path | None, typer.Option(help="Check the turns of a HAR archive instead.")] = None,
    budget: Annotated[int, typer.Option(help="The maximum number of requests.")] = 250,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 120.0,
) -> None:
    """Check how an endpoint handles tool calls, and show the bytes that break a rule."""
    from toolwire.check.command import Options, UsageError
    from toolwire.check.command import run as run_command

    with stops_on(UsageError):
        options = Options(
            url, file, har, api, model, key, tuple(only or ()), tuple(report or ()), record, budget, timeout
        )  # fmt: skip
        raise typer.Exit(run_command(options))
