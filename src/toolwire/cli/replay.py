"""`toolwire replay`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from toolwire.cli.options import stop


def replay(  # noqa: PLR0913, PLR0917 - each is an option of its own
    path: Annotated[
        list[Path], typer.Argument(help="Recordings, as debug.record writes them, or directories of recordings.")
    ],
    request: Annotated[
        str, typer.Option("--request", "-r", help="Only turns whose id, as in the log, begins like this.")
    ] = "",
    dialect: Annotated[
        str, typer.Option("--dialect", "-d", help="Only turns of clients of chat, responses or messages.")
    ] = "",
    direction: Annotated[
        str,
        typer.Option(
            help="Only what the client asked, was sent to the backend, or was received: client, sent, received."
        ),
    ] = "",
    event: Annotated[
        list[str] | None,
        typer.Option(
            "--event",
            "-e",
            help="Only text, refusal, reasoning, call, result, note, usage, end, failure, request or other; "
            "may be repeated.",
        ),
    ] = None,
    call: Annotated[
        str, typer.Option("--call", "-c", help="Only calls of this tool, and their results; * is a wildcard.")
    ] = "",
    full: Annotated[bool, typer.Option("--full", help="Show long texts whole.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Write lines of JSON instead.")] = False,
    written_as: Annotated[
        str,
        typer.Option(
            "--as",
            help="Write the reply as turn events, or as a dialect sends it: events, chat, responses, messages, all.",
        ),
    ] = "",
) -> None:
    """Show recorded turns: who said what when, with calls and notes."""
    from toolwire.replay import Options
    from toolwire.replay import run as run_command

    try:
        events = tuple(event or ())
        options = Options(tuple(path), request, dialect, direction, events, call, json, full, written_as)
        run_command(options, sys.stdout)
    except OSError as error:
        raise stop(f"{error.filename or path[0]}: {error.strerror}") from None
    except ValueError as error:
        raise stop(error) from None
