"""`toolwire run`: the options of the agent."""

from typing import Any

import click

from toolwire.cli.options import complete_session, config_option, stop_on


@click.command()
@click.argument(
    "prompt",
    default=None,
    help="The task; - reads it from standard input. Without it the session is interactive.",
)
@click.option("--model", "-m", default="", help="A model of your backends; demo needs no backend.")
@click.option("--backend", "-b", default="", help="The backend by name, or as KIND:URL, such as chat:http://….")
@click.option("--tools", "-t", help="Tools or families, separated by commas, such as read,grep or claude; or none.")
@click.option("--mcp", default="", help="A file with MCP servers; needs the extra toolwire[mcp].")
@click.option(
    "--approve",
    default="on-write",
    show_default=True,
    help="When to ask before a call runs: never, on-write or always.",
)
@click.option("--cwd", default="", help="The working directory; by default that of the session, or the current one.")
@click.option("--json", is_flag=True, help="Write events as lines of JSON.")
@click.option("--resume", "-r", default="", shell_complete=complete_session, help="The id of a session to resume.")
@click.option("--continue", "-C", "continues", is_flag=True, help="Resume the last session of the working directory.")
@click.option("--read-only", is_flag=True, help="Refuse calls that may change something.")
@click.option("--sandbox", default="auto", help="The sandbox for commands: auto, workspace, read-only or off.")
@click.option("--network", is_flag=True, help="Let commands in the sandbox use the network.")
@click.option("--effort", default="", help="The reasoning effort of the model.")
@click.option("--max-turns", default=100, show_default=True, help="The maximum number of turns.")
@click.option("--verbose", "-v", is_flag=True, help="Show notes too.")
@click.option("--quiet", "-q", is_flag=True, help="Show only the answer and failures.")
@click.option("--context-window", default=0, help="The context window in tokens; 0: as reported by the backend.")
@config_option
def run(json: bool, config: str | None, **options: Any) -> None:
    from toolwire.agent import SessionError
    from toolwire.agent.command import RunOptions, UsageError
    from toolwire.agent.command import run as run_command
    from toolwire.config.settings import SettingsError
    from toolwire.core.errors import BackendFault, BadRequest

    with stop_on(SettingsError, SessionError, UsageError, BadRequest, BackendFault):
        raise click.exceptions.Exit(run_command(RunOptions(settings_path=config, as_json=json, **options)))
