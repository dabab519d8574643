"""`toolwire sessions`: lists the sessions of `toolwire run`, newest first."""

import time
from itertools import islice
from pathlib import Path

import click

from toolwire.agent.session import folder, list_sessions, session_rows
from toolwire.cli.options import json_option, print_json


@click.command()
@click.option("--here", is_flag=True, help="Only sessions of the working directory.")
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Maximum number of sessions.",
)
@json_option
def sessions(here: bool, limit: int, json: bool) -> None:
    found = [*islice(list_sessions(folder(), Path.cwd().resolve() if here else None), limit)]
    if json:
        print_json({"sessions": found})
        return
    rows = session_rows(found, time.time())
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if not rows:
        print(f"There are no sessions {'of this directory' if here else 'yet'}; toolwire run starts one.")
