"""`toolwire replay`: the options for showing recordings."""

import sys
from contextlib import nullcontext
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
@click.option("--assert", "asserts", is_flag=True, help="Run test cases; the exit code is 1 if one differs.")
@click.option("--junit", type=PATH, metavar="FILE", help="With --assert: write the results as JUnit XML.")
def replay(
    path: tuple[Path, ...], event: tuple[str, ...], *, asserts: bool, junit: Path | None, **options: Any
) -> None:
    from toolwire.memory.private_files import open_private
    from toolwire.replay import ReplayOptions, run_cases, run_replay

    chosen = ReplayOptions(path, events=event, **options)
    if junit is not None and not asserts:
        raise stop("--junit is for --assert only")
    try:
        if not asserts:
            run_replay(chosen, sys.stdout)
            return
        with open_private(junit, "w") if junit is not None else nullcontext() as report:
            is_ok = run_cases(chosen, sys.stdout, report)
    except OSError as error:
        raise stop(f"{error.filename or path[0]}: {error.strerror}") from None
    except ValueError as error:
        raise stop(error) from None
    raise click.exceptions.Exit(0 if is_ok else 1)
