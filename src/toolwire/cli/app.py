"""All commands, and what happens to a command line that is wrong."""

import errno
import io
import os
import sys

import click

from toolwire import __version__
from toolwire.cli.check import check
from toolwire.cli.completion import install_completion_option, show_completion_option
from toolwire.cli.config import config
from toolwire.cli.doctor import doctor
from toolwire.cli.env import env
from toolwire.cli.init import init
from toolwire.cli.launch import launch
from toolwire.cli.models import models
from toolwire.cli.options import Commands, say
from toolwire.cli.replay import replay
from toolwire.cli.run import run
from toolwire.cli.serve import serve
from toolwire.cli.sessions import sessions
from toolwire.cli.store import store
from toolwire.imports import without_working_directory


def _show_version(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        print(f"toolwire {__version__}")
        context.exit()


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["--help", "-h"]})
@click.option(
    "--version",
    "-V",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@install_completion_option
@show_completion_option
@click.pass_context
def app(context: click.Context) -> None:
    """A gateway for LLM tool calls."""
    if context.invoked_subcommand is None:
        print(context.get_help())


for command in (serve, launch, env, init, models, doctor, run, sessions, check, replay, config, store):
    app.add_command(command)


def main() -> None:
    """Run the command line. What is wrong with it is one line."""
    without_working_directory()
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - Python has none where it is closed
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a letter shows another
    try:
        code = app(prog_name="toolwire", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        code = error.exit_code
    except click.ClickException as error:
        context: click.Context | None = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "toolwire"
        message = error.format_message()
        say(f"{message}{'' if message.endswith(('.', '?', '?)')) else '.'} See {path} --help")
        code = error.exit_code
    except click.Abort:
        say("cancelled")
        code = 130
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still to be flushed cannot be written either
        if error.errno != errno.EPIPE:
            say(error.strerror)
        code = 1
    sys.exit(code or 0)
