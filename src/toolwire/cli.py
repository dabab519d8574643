"""The command line: `toolwire serve`, `toolwire run`, `toolwire check` and `toolwire replay`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from toolwire.core.terminal import clean
from toolwire.imports import without_working_directory

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="A gateway for LLM tool calls."
)


def _stop(message: object) -> typer.Exit:
    print(clean(f"toolwire: {message}"), file=sys.stderr)
    return typer.Exit(2)


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
    from toolwire.runs import settings

    try:
        chosen = settings.with_address(settings.load_for_serving(config), host, port)
        settings.check_workers(workers)
        from toolwire.service.serve import serve as run

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
    resume: Annotated[str, typer.Option(help="The id of a session to go on with.")] = "",
    read_only: Annotated[bool, typer.Option("--read-only", help="Change nothing.")] = False,
    effort: Annotated[str, typer.Option(help="How hard the model shall think.")] = "",
    rounds: Annotated[int, typer.Option(help="Most turns of the model.")] = 100,
    context_window: Annotated[int, typer.Option(help="Tokens that the model takes; 0: as is known of it.")] = 0,
    config: Annotated[str | None, typer.Option(help="Settings file; else ~/.config/toolwire/toolwire.toml.")] = None,
) -> None:
    """Work on something: the model calls tools, which run here, until it is done."""
    from toolwire.agent import SessionError
    from toolwire.agent.command import Order, OrderError, setup_from
    from toolwire.agent.command import run as carry_out
    from toolwire.core.errors import BadRequest
    from toolwire.runs.settings import SettingsError

    try:
        setup = setup_from(approve, effort, rounds, context_window, read_only=read_only)
        order = Order(prompt, model, backend, tools, mcp, cwd, config, resume, json, setup)
        raise typer.Exit(carry_out(order))
    except (SettingsError, SessionError, OrderError, BadRequest) as error:
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
    budget: Annotated[int, typer.Option(help="Most requests.")] = 250,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 120.0,
) -> None:
    """Tell what an endpoint does wrong about tool calls, with the bytes to prove it."""
    from toolwire.check.command import Order, OrderError
    from toolwire.check.command import run as carry_out

    try:
        order = Order(
            url, file, har, api, model, key, tuple(only or ()), tuple(report or ()), record, budget, timeout
        )  # fmt: skip
        raise typer.Exit(carry_out(order))
    except OrderError as error:
        raise _stop(error) from None


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A recording, as [debug] record writes it.")],
) -> None:
    """Print what each dialect makes of a recorded turn."""
    from toolwire.replay import show

    try:
        show(file.read_bytes(), sys.stdout)
    except (OSError, ValueError) as error:
        raise _stop(f"{file}: {error}") from None


def main() -> None:
    without_working_directory()
    app()
