"""`toolwire replay`: the options for showing recordings."""

import sys
from pathlib import Path
from typing import Any

import click

from toolwire.cli.options import PATH, stop


@click.command()
@click.argument(
    "path",
    type=PATH,
    nargs=-1,
    required=True,
    help="Recordings, as debug.record writes them, or directories of recordings.",
)
@click.option("--request", "-r", default="", help="Only turns whose id, as in the log, starts with this.")
@click.option("--dialect", "-d", default="", help="Only turns of clients of chat, responses or messages.")
@click.option(
    "--direction",
    default="",
    help="Only one direction: client (its request), sent (to the backend) or received (the reply).",
)
@click.option(
    "--event",
    "-e",
    multiple=True,
    help="Only text, refusal, reasoning, call, result, note, usage, end, failure, request or other; may be repeated.",
)
@click.option("--call", "-c", default="", help="Only calls of this tool, and their results; * is a wildcard.")
@click.option("--full", is_flag=True, help="Do not shorten long texts.")
@click.option("--json", is_flag=True, help="Write lines of JSON instead.")
@click.option(
    "--as",
    "written_as",
    default="",
    help="Write the reply as turn events, or as a dialect sends it: events, chat, responses, messages, all.",
)
def replay(path: tuple[Path, ...], event: tuple[str, ...], **options: Any) -> None:
    from toolwire.replay import ReplayOptions, run_replay

    try:
        run_replay(ReplayOptions(path, events=event, **options), sys.stdout)
    except OSError as error:
        raise stop(f"{error.filename or path[0]}: {error.strerror}") from None
    except ValueError as error:
        raise stop(error) from None
