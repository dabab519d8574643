"""All commands, and what happens to a command line that is wrong."""

import errno
import io
import os
import sys
from typing import Annotated

import typer

from toolwire import __version__
from toolwire.cli.check import check
from toolwire.cli.config import config_app
from toolwire.cli.doctor import doctor
from toolwire.cli.env import env
from toolwire.cli.init import init
from toolwire.cli.launch import launch
from toolwire.cli.models import models
from toolwire.cli.options import say
from toolwire.cli.replay import replay
from toolwire.cli.run import run
from toolwire.cli.serve import serve
from toolwire.cli.sessions import sessions
from toolwire.cli.store import store_app
from toolwire.imports import without_working_directory

app = typer.Typer(pretty_exceptions_enable=False, context_settings={"help_option_names": ["--help", "-h"]})


def _show_version(asked: bool) -> None:
    if asked:
        print(f"toolwire {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A gateway for LLM tool calls."""
    if context.invoked_subcommand is None:
        print(context.get_help())


_PASSED_ON = {"allow_interspersed_args": False, "ignore_unknown_options": True}

app.command()(serve)
app.command(context_settings=_PASSED_ON)(launch)
for command in (env, init, models, doctor, run, sessions, check, replay):
    app.command()(command)
app.add_typer(config_app, name="config")
app.add_typer(store_app, name="store")


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
    except typer.TyperException as error:
        context: typer.Context | None = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "toolwire"
        message = error.format_message()
        say(f"{message}{'' if message.endswith(('.', '?')) else '.'} See {path} --help")
        code = error.exit_code
    except typer.Abort:
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
