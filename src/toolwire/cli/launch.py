"""`toolwire launch`: runs a program with the gateway that is running, or with a temporary one for this program."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import click
import msgspec

from toolwire.cli.clients import ANY_PROGRAM, PROGRAMS, check_model, choose_model, find_model, set_up_client
from toolwire.cli.gateway_address import GatewayAddress, fetch_first_model, fetch_version, has_model
from toolwire.cli.options import PATH, client_options, say, stop_on
from toolwire.cli.temporary_gateway import NotStarted, TemporaryGateway
from toolwire.config.decode import did_you_mean, join_reasons
from toolwire.config.settings import DEMO, SettingsError, load, with_address
from toolwire.turns.backends import find_obstacles
from toolwire.upstream.credentials import inherit_environment

_FORWARDED_SIGNALS = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def complete_program(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of known programs."""
    return [name for name in PROGRAMS if name.startswith(incomplete)]


@click.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
@click.argument(
    "program",
    shell_complete=complete_program,
    help=f"One of {', '.join(PROGRAMS)}, or any other command; later arguments are passed to it.",
)
@click.argument("arguments", nargs=-1, help="Options and arguments of the program.")
@client_options
@click.option("--log", type=PATH, help="A file for the log of the gateway, if one is started.")
def launch(
    program: str,
    arguments: tuple[str, ...],
    model: str,
    host: str | None,
    port: int | None,
    log: Path | None,
    config: str | None,
) -> None:
    arguments = arguments[arguments[:1] == ("--",) :]
    client = PROGRAMS.get(program, ANY_PROGRAM)

    def start(gateway: GatewayAddress, run: Callable[[list[str], dict[str, str]], int]) -> int:
        """Run the program, with no secrets but the key and what `agent.inherit` names. Returns its exit code."""
        environment = inherit_environment(settings.secret_variables, settings.agent.inherit)
        setup = set_up_client(settings, client, model, gateway)
        if not setup.files:
            return run([executable, *setup.arguments, *arguments], {**environment, **setup.variables})
        with TemporaryDirectory(prefix="toolwire-") as folder:
            setup = setup.with_files_in(Path(folder))
            command = [executable, *setup.arguments, *arguments]
            return run_program(command, {**environment, **setup.variables})

    def become(command: list[str], environment: dict[str, str]) -> int:
        sys.stdout.flush()
        os.execve(executable, command, environment)  # noqa: S606 - the user's own command

    with stop_on(SettingsError, NotStarted):
        settings = with_address(load(config), host, port)
        executable = shutil.which(program) or ""
        if not executable:
            if client.install:
                raise NotStarted(f"{program} is not installed: {client.install}")
            raise NotStarted(join_reasons(f"there is no command {program}", did_you_mean(program, [*PROGRAMS])))
        obstacles = find_obstacles(settings)
        usable = msgspec.structs.replace(
            settings, backends=tuple(each for each in settings.backends if each.name not in obstacles)
        )
        gateway = GatewayAddress.of(settings)
        version = fetch_version(gateway.url)
        if client is not ANY_PROGRAM:  # whose arguments can mean anything
            model = model or find_model(arguments).removeprefix(client.model_prefix)
        if not model and client is not ANY_PROGRAM:
            model = choose_model(settings if version else usable, client.own_model)
            if version and model in DEMO.models:  # the gateway that answers may have different settings
                model = fetch_first_model(gateway) or model
        described = f"{program} with {model or 'its own model'}"
        needed = model or client.own_model
        if version and (not needed or has_model(gateway, needed)):
            say(f"{described} on the gateway at {gateway.url}")
            raise click.exceptions.Exit(start(gateway, become))
        for name, obstacle in obstacles.items():
            say(f"backend {name} is unavailable: {obstacle}")
        if needed:
            check_model(usable, needed)
        why = {None: "none answers", "": "something else answers"}.get(version, "another one answers")
        with TemporaryGateway(settings.file, log) as own:
            say(f"{described} on a gateway of its own, {own.url} ({why} at {gateway.url})")
            code = start(msgspec.structs.replace(gateway, url=own.url), run_program)
        raise click.exceptions.Exit(code)


def run_program(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program and forward the signals of this process to it. Returns its exit code, as a shell does."""
    child = subprocess.Popen(command, env=environment)  # noqa: S603 - the user's own command

    def forward(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    for name in _FORWARDED_SIGNALS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), forward)
    # In the foreground, the terminal sends Ctrl-C to the program too.
    signal.signal(signal.SIGINT, signal.SIG_IGN if _is_in_foreground() else forward)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _is_in_foreground() -> bool:
    """Whether a terminal sends its signals to this process and its children."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
