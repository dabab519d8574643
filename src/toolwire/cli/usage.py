"""`toolwire usage`: what turns used, from the store of the settings."""

import asyncio
import csv
import sys
from typing import Literal

import click

from toolwire.cli.options import config_option, print_json, say
from toolwire.cli.store import load_settings, open_store
from toolwire.config.settings import Settings
from toolwire.core.errors import BadRequest
from toolwire.gateway.usage_report import FIELDS, NUMBERS, UsageQuestion, make_report, read_question


@click.command()
@click.option("--by", default="key,model", show_default=True, help=f"Fields with commas: {', '.join(FIELDS)}.")
@click.option("--since", default="7d", show_default=True, help="7d, 12h, 30m, or a day such as 2027-01-31.")
@click.option("--until", default="", help="The same; by default now.")
@click.option("--format", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True)
@config_option
def usage(by: str, since: str, until: str, format: Literal["table", "csv", "json"], config: str | None) -> None:
    with load_settings(config, BadRequest) as settings:
        if not settings.usage.enabled:
            say("turns are recorded only with enabled = true in [usage]")
        question = read_question(by, since, until)
        found = asyncio.run(_report(settings, question))
    if format == "json":
        print_json({"usage": found})
        return
    headings = [*question.by, *NUMBERS]
    rows = [headings, *([str(row[name]) for name in headings] for row in found)]
    if format == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    names = len(question.by)
    for row in rows:
        cells = zip(row, widths, strict=True)
        print("  ".join(cell.ljust(width) if n < names else cell.rjust(width) for n, (cell, width) in enumerate(cells)))


async def _report(settings: Settings, question: UsageQuestion) -> list[dict[str, str | int]]:
    async with open_store(settings) as store:
        return await make_report(store, question)
