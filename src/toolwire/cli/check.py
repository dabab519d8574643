"""`toolwire check`."""

from pathlib import Path

import click

from toolwire.cli.options import PATH, stops_on


@click.command()
@click.argument("url", default="", help="The address of an endpoint, with or without /v1.")
@click.option("--api", "-a", default="", help="APIs with commas: chat,responses,messages; all by default.")
@click.option("--model", "-m", default="", help="The model to ask; the first one listed by default.")
@click.option("--key", "-k", default="", envvar="TOOLWIRE_CHECK_KEY", show_envvar=True, help="The key to send.")
@click.option("--only", multiple=True, help="A rule, or an area of rules; may be repeated.")
@click.option("--report", "-r", type=PATH, multiple=True, help="A file ending with .html, .json or .xml (JUnit).")
@click.option("--record", type=PATH, help="A directory for all requests and answers.")
@click.option("--file", "-f", type=PATH, help="Check a captured stream or answer instead.")
@click.option("--har", type=PATH, help="Check the turns of a HAR archive instead.")
@click.option("--budget", default=250, show_default=True, help="The maximum number of requests.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds to wait for an answer.")
def check(  # noqa: PLR0913, PLR0917 - each is an option of its own
    url: str,
    api: str,
    model: str,
    key: str,
    only: tuple[str, ...],
    report: tuple[Path, ...],
    record: Path | None,
    file: Path | None,
    har: Path | None,
    budget: int,
    timeout: float,
) -> None:
    """Check how an endpoint handles tool calls, and show the bytes that break a rule."""
    from toolwire.check.command import Options, UsageError
    from toolwire.check.command import run as run_command

    with stops_on(UsageError):
        options = Options(url, file, har, api, model, key, only, report, record, budget, timeout)
        raise click.exceptions.Exit(run_command(options))
