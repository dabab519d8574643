"""`toolwire run`."""

from typing import Annotated

import typer

from toolwire.cli.options import Config, complete_session, stops_on


def run(  # noqa: PLR0913, PLR0917 - each is an option of its own
    prompt: Annotated[
        str | None,
        typer.Argument(help="What to do; - reads it from standard input. Without it an interactive session begins."),
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="A model of your backends; demo needs none.")] = "",
    backend: Annotated[
        str, typer.Option("--backend", "-b", help="The backend by name, or as KIND:URL, such as chat:http://….")
    ] = "",
    tools: Annotated[
        str | None, typer.Option("--tools", "-t", help="Tools by name, with commas: read,grep,…; or none.")
    ] = None,
    mcp: Annotated[str, typer.Option(help="A file with MCP servers.")] = "",
    approve: Annotated[
        str, typer.Option(help="When to ask before a call runs: never, on-write or always.")
    ] = "on-write",
    cwd: Annotated[str, typer.Option(help="The working directory; that of the session, or this one.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Write events as lines of JSON.")] = False,
    resume: Annotated[
        str, typer.Option("--resume", "-r", help="The id of a session to resume.", autocompletion=complete_session)
    ] = "",
    continues: Annotated[
        bool, typer.Option("--continue", "-C", help="Resume the last session of the working directory.")
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Change nothing.")] = False,
    effort: Annotated[str, typer.Option(help="The reasoning effort of the model.")] = "",
    max_turns: Annotated[int, typer.Option(help="The maximum number of turns.")] = 100,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show notes too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show the answer and failures alone.")] = False,
    context_window: Annotated[
        int, typer.Option(help="The context window in tokens; 0: as reported by the backend.")
    ] = 0,
    config: Config = None,
) -> None:
    """Run an agent: the model calls tools, which run here. Without a prompt it is an interactive session."""
    from toolwire.agent import SessionError
    from toolwire.agent.command import run as run_command
    from toolwire.agent.options import Options, UsageError, config_from
    from toolwire.core.errors import BadRequest
    from toolwire.turns.settings import SettingsError

    with stops_on(SettingsError, SessionError, UsageError, BadRequest):
        agent_config = config_from(approve, effort, max_turns, context_window, read_only=read_only)
        options = Options(
            prompt, model, backend, tools, mcp, cwd, config, resume, continues, json, verbose, quiet, agent_config
        )  # fmt: skip
        raise typer.Exit(run_command(options))
