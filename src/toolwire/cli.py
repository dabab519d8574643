"""The command line: `toolwire serve`, `toolwire run`, `toolwire check` and `toolwire replay`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from toolwire import __version__
from toolwire.core.terminal import clean
from toolwire.imports import without_working_directory

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _stop(message: object) -> typer.Exit:
    print(clean(f"toolwire: {message}"), file=sys.stderr)
    return typer.Exit(2)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"toolwire {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A gateway for LLM tool calls."""


@app.command()
def serve(
    config: Annotated[
        str | None, typer.Option(help="Settings file; else ./toolwire.toml, else ~/.config/toolwire/toolwire.toml.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
) -> None:
    """Run the gateway."""
    from toolwire.turns import settings

    try:
        chosen = settings.with_address(settings.load_for_serving(config), host, port)
        settings.check_workers(workers)
        from toolwire.gateway.serve import serve as run

        run(chosen)
    except settings.SettingsError as error:
        raise _stop(error) from None


@app.command()
def run(  # noqa: PLR0913, PLR0917 - each is an option of its own
    prompt: Annotated[str, typer.Argument(help="What to do; - reads it from standard input.")],
    model: Annotated[str, typer.Option(help="A model of your backends; demo needs none.")] = "",
    backend: Annotated[str, typer.Option(help="The backend by name, or as KIND:URL, such as chat:http://….")] = "",
    tools: Annotated[str | None, typer.Option(help="Tools by name, with commas: read,grep,…; or none.")] = None,
    mcp: Annotated[str, typer.Option(help="A file with MCP servers.")] = "",
    approve: Annotated[
        str, typer.Option(help="When to ask before a call runs: never, on-write or always.")
    ] = "on-write",
    cwd: Annotated[str, typer.Option(help="The working directory; that of the session, or this one.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Write events as lines of JSON.")] = False,
    resume: Annotated[str, typer.Option(help="The id of a session to resume.")] = "",
    read_only: Annotated[bool, typer.Option("--read-only", help="Change nothing.")] = False,
    effort: Annotated[str, typer.Option(help="The reasoning effort of the model.")] = "",
    max_turns: Annotated[int, typer.Option(help="The maximum number of turns.")] = 100,
    context_window: Annotated[
        int, typer.Option(help="The context window in tokens; 0: as reported by the backend.")
    ] = 0,
    config: Annotated[str | None, typer.Option(help="Settings file; else ~/.config/toolwire/toolwire.toml.")] = None,
) -> None:
    """Run an agent: the model calls tools, which run here, until the task is done."""
    from toolwire.agent import SessionError
    from toolwire.agent.command import Options, UsageError, config_from
    from toolwire.agent.command import run as run_command
    from toolwire.core.errors import BadRequest
    from toolwire.turns.settings import SettingsError

    try:
        agent_config = config_from(approve, effort, max_turns, context_window, read_only=read_only)
        options = Options(prompt, model, backend, tools, mcp, cwd, config, resume, json, agent_config)
        raise typer.Exit(run_command(options))
    except (SettingsError, SessionError, UsageError, BadRequest) as error:
        raise _stop(error) from None


@app.command()
def check(  # noqa: PLR0913, PLR0917 - each is an option of its own
    url: Annotated[str, typer.Argument(help="The address of an endpoint, with or without /v1.")] = "",
    api: Annotated[str, typer.Option(help="APIs with commas: chat,responses,messages; all by default.")] = "",
    model: Annotated[str, typer.Option(help="The model to ask; the first one listed by default.")] = "",
    key: Annotated[str, typer.Option(envvar="TOOLWIRE_CHECK_KEY", help="The key to send.", show_envvar=True)] = "",
    only: Annotated[list[str] | None, typer.Option(help="A rule, or an area of rules; may be repeated.")] = None,
    report: Annotated[list[Path] | None, typer.Option(help="A file ending with .html, .json or .xml (JUnit).")] = None,
    record: Annotated[Path | None, typer.Option(help="A directory for all requests and answers.")] = None,
    file: Annotated[Path | None, typer.Option(help="Check a captured stream or answer instead.")] = None,
    har: Annotated[Path | None, typer.Option(help="Check the turns of a HAR archive instead.")] = None,
    budget: Annotated[int, typer.Option(help="The maximum number of requests.")] = 250,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 120.0,
) -> None:
    """Check how an endpoint handles tool calls, and show the bytes that break a rule."""
    from toolwire.check.command import Options, UsageError
    from toolwire.check.command import run as run_command

    try:
        options = Options(
            url, file, har, api, model, key, tuple(only or ()), tuple(report or ()), record, budget, timeout
        )  # fmt: skip
        raise typer.Exit(run_command(options))
    except UsageError as error:
        raise _stop(error) from None


@app.command()
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
        raise _stop(f"{error.filename or path[0]}: {error.strerror}") from None
    except ValueError as error:
        raise _stop(error) from None


def main() -> None:
    """Run the command line."""
    without_working_directory()
    app()
