"""Starts a program on the gateway: on one that runs already, or on one of its own that ends with it."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from toolwire.cli.choice import check_model, client_setup_for, default_model
from toolwire.cli.options import say
from toolwire.cli.own_gateway import NotStarted, OwnGateway
from toolwire.cli.programs import INSTALL, OWN_MODELS, Program, model_in
from toolwire.cli.reach import Access, access, first_model, serves, version_at
from toolwire.config.settings import DEMO, Settings, load, with_address
from toolwire.upstream.environment import inherited

__all__ = ["NotStarted", "start"]


class Launch(msgspec.Struct, frozen=True):
    """What is to be started."""

    settings: Settings
    program: Program
    executable: str
    arguments: Sequence[str]
    model: str

    def on(self, reached: Access) -> tuple[list[str], dict[str, str]]:
        """The command line and the environment, with no secrets but its key and what `agent.inherit` names."""
        words = client_setup_for(self.settings, self.program, self.model, reached)
        environment = inherited(self.settings.secret_variables, self.settings.agent.inherit)
        return [self.executable, *words.arguments, *self.arguments], {**environment, **words.variables}

    def __str__(self) -> str:
        return f"{self.program} with {self.model or 'its own model'}"


def start(
    program: Program,
    arguments: Sequence[str],
    model: str,
    host: str | None,
    port: int | None,
    log: Path | None,
    config: str | None,
) -> int:
    """Run the program; returns its exit code. On a gateway that runs already it takes the place of this process."""
    settings = with_address(load(config), host, port)
    executable = shutil.which(program)
    if executable is None:
        raise NotStarted(f"{program} is not installed: {INSTALL[program]}")
    reached = access(settings)
    version = version_at(reached.url)
    running = reached if version else None
    launch = Launch(
        settings, program, executable, arguments, _model(settings, program, model or model_in(arguments), running)
    )
    asked = launch.model or OWN_MODELS[program]
    if running is not None and serves(running, asked):
        say(f"{launch} on the gateway at {running.url}")
        command, environment = launch.on(running)
        sys.stdout.flush()
        os.execve(executable, command, environment)  # noqa: S606 - it is what was asked for
    check_model(settings, asked)
    why = {None: "none answers", "": "something else answers"}.get(version, "another one answers")
    with OwnGateway(settings.file, log) as gateway:
        say(f"{launch} on a gateway of its own, {gateway.url} ({why} at {reached.url})")
        return gateway.run(*launch.on(msgspec.structs.replace(reached, url=gateway.url)))


def _model(settings: Settings, program: Program, asked: str, running: Access | None) -> str:
    """The model that was asked for, or else the first one of the settings or of the gateway that runs."""
    chosen = asked or default_model(settings, program)
    if not asked and running is not None and chosen in DEMO.models:
        return first_model(running) or chosen
    return chosen
