"""`toolwire check`: checks an endpoint or captured turns, prints the report and writes it to files."""

import asyncio
import os
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from toolwire.check import text
from toolwire.check.address import normalise_url
from toolwire.check.apis import APIS
from toolwire.check.captured import NothingFound, read_file, read_har
from toolwire.check.endpoint import Target, Unreachable
from toolwire.check.report import FORMS, write_report
from toolwire.check.run import check as check_endpoint
from toolwire.check.run import check_captured, choose_rules
from toolwire.check.verdicts import Report
from toolwire.cli.options import PATH, stop_on
from toolwire.memory import private_files

SOUND, BROKEN = 0, 1
MAX_REASON = 400
"""Characters shown of the reason why nothing could be checked."""


class CheckUsageError(Exception):
    """The command line cannot be carried out; the message is one line for the user."""


class CheckOptions(msgspec.Struct, frozen=True):
    """The options of the command line."""

    url: str
    file: Path | None
    har: Path | None
    api: str
    model: str
    key: str
    only: tuple[str, ...]
    report: tuple[Path, ...]
    record: Path | None
    budget: int
    timeout: float


@click.command()
@click.argument("url", default="", help="The address of an endpoint, with or without /v1.")
@click.option("--api", "-a", default="", help=f"APIs, separated by commas: {','.join(APIS)}; all by default.")
@click.option("--model", "-m", default="", help="The model to use; by default demo, or the first one listed.")
@click.option("--key", "-k", default="", envvar="TOOLWIRE_CHECK_KEY", show_envvar=True, help="The key to send.")
@click.option("--only", multiple=True, help="A rule, or an area of rules; may be repeated.")
@click.option("--report", "-r", type=PATH, multiple=True, help="A file ending with .html, .json or .xml (JUnit).")
@click.option("--record", type=PATH, help="A directory for all requests and answers.")
@click.option("--file", "-f", type=PATH, help="Check a captured stream or answer instead.")
@click.option("--har", type=PATH, help="Check the turns of a HAR archive instead.")
@click.option("--budget", default=300, show_default=True, help="The maximum number of requests.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds to wait for an answer.")
def check(**values: Any) -> None:
    options = CheckOptions(**values)
    with stop_on(CheckUsageError):
        try:
            choose_rules(options.only)
            for path in options.report:  # before any request is made
                if path.suffix not in FORMS:
                    raise CheckUsageError(f"--report: {path}: the name must end with one of {', '.join(FORMS)}")
                if not path.parent.is_dir():
                    raise CheckUsageError(f"--report: {path.parent} is not a directory")
            report = _check_captured(options) if options.file or options.har else _check_live(options)
        except (ValueError, Unreachable, NothingFound) as error:
            raise CheckUsageError(text.to_line(str(error), MAX_REASON)) from None
        for path in options.report:  # before the text, because a pipe may close
            try:
                write_report(report, path)
            except OSError as error:
                raise CheckUsageError(f"--report: {path}: {error.strerror}") from None
        text.show(report, Console(highlight=False))
        raise click.exceptions.Exit(SOUND if report.is_sound else BROKEN)


def _check_captured(options: CheckOptions) -> Report:
    path = options.file or options.har
    assert path is not None
    if options.url or (options.file and options.har):
        raise CheckUsageError("give only one of an address, --file and --har")
    apis = _choose_apis(options.api)
    data = _read(path)
    if options.har:
        exchanges = [each for each in read_har(data) if each.api in apis]
        if not exchanges:
            raise NothingFound(f"there is no turn of {', '.join(apis)} in this archive")
        return check_captured(exchanges, str(path), options.only)
    request = path.with_suffix(".request.json")  # written beside it by --record
    body = _read(request) if request.is_file() and request != path else b""
    exchange = read_file(data, APIS[apis[0]].name if options.api else None, body)
    return check_captured([exchange], str(path), options.only)


def _read(path: Path) -> bytes:
    try:
        return private_files.read_file(path)
    except OSError as error:
        raise CheckUsageError(f"{path}: {error.strerror}") from None


def _check_live(options: CheckOptions) -> Report:
    if not options.url:
        raise CheckUsageError("give the address of an endpoint, such as 127.0.0.1:8787, or --file or --har")
    target = Target(
        normalise_url(options.url),
        options.model,
        options.key,
        options.budget,
        options.timeout,
        options.record,
        _read_variable("TOOLWIRE_CHECK_HEADERS"),
        _read_variable("TOOLWIRE_CHECK_QUERY"),
    )
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("")

        def show_progress(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, completed=done, total=of)

        try:
            return asyncio.run(check_endpoint(target, _choose_apis(options.api), options.only, show_progress))
        except OSError as error:  # only records are written meanwhile
            raise CheckUsageError(f"--record: {options.record}: {error.strerror}") from None


def _read_variable(name: str) -> dict[str, str]:
    """Headers or query parameters from an environment variable, where other users cannot read them."""
    try:
        return msgspec.json.decode(os.environ.get(name) or "{}", type=dict[str, str])
    except msgspec.DecodeError:
        raise CheckUsageError(f"{name} must be a JSON object of strings") from None


def _choose_apis(names: str) -> list[str]:
    chosen = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip())) or list(APIS)
    unknown = [name for name in chosen if name not in APIS]
    if unknown:
        raise CheckUsageError(f"--api: {unknown[0]!r} is not one of {', '.join(APIS)}")
    return chosen
