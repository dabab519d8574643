"""`toolwire check`: the options of the checker."""

from typing import Any

import click

from toolwire.cli.options import PATH, stop_on


@click.command()
@click.argument("url", default="", help="The address of an endpoint, with or without /v1.")
@click.option("--api", "-a", default="", help="APIs, separated by commas: chat,responses,messages; all by default.")
@click.option("--model", "-m", default="", help="The model to ask; the first one listed by default.")
@click.option("--key", "-k", default="", envvar="TOOLWIRE_CHECK_KEY", show_envvar=True, help="The key to send.")
@click.option("--only", multiple=True, help="A rule, or an area of rules; may be repeated.")
@click.option("--report", "-r", type=PATH, multiple=True, help="A file ending with .html, .json or .xml (JUnit).")
@click.option("--record", type=PATH, help="A directory for all requests and answers.")
@click.option("--file", "-f", type=PATH, help="Check a captured stream or answer instead.")
@click.option("--har", type=PATH, help="Check the turns of a HAR archive instead.")
@click.option("--budget", default=250, show_default=True, help="The maximum number of requests.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds to wait for an answer.")
def check(**options: Any) -> None:
    from toolwire.check.command import CheckOptions, CheckUsageError, run_check

    with stop_on(CheckUsageError):
        raise click.exceptions.Exit(run_check(CheckOptions(**options)))
