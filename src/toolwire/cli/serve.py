"""`toolwire serve`: runs the gateway. A terminal shows the settings file, commands to try, and the backends."""

import asyncio
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from toolwire import __version__
from toolwire.cli.clients import PROGRAMS, choose_model, with_key_for
from toolwire.cli.gateway_address import GatewayAddress
from toolwire.cli.options import say, stop_on
from toolwire.config.files import user_file, user_path
from toolwire.config.settings import Settings, SettingsError, load_for_serving, with_address, with_workers
from toolwire.core.display import clean

MAX_MODELS_SHOWN = 5


@click.command()
@click.option("--config", "-c", help="Settings file; by default ./toolwire.toml or ~/.config/toolwire/toolwire.toml.")
@click.option("--host", help="Address to listen on.")
@click.option("--port", "-p", type=int, help="Port to listen on; 0 chooses a free one.")
@click.option("--workers", "-w", type=int, help="The number of worker processes.")
def serve(config: str | None, host: str | None, port: int | None, workers: int | None) -> None:
    def with_options(settings: Settings) -> Settings:
        return with_workers(with_address(settings, host, port), workers)

    with stop_on(SettingsError):
        read = load_for_serving(config)
        chosen = with_options(read)
        if chosen.server.workers > 1:
            from toolwire.gateway.workers.signals import hold_hangup

            hold_hangup()
        banner = Banner(read, chosen) if sys.stderr.isatty() else None
        if banner is not None:
            banner.show_head()
        from toolwire.gateway.serve import StartFailed
        from toolwire.gateway.serve import serve as run

        try:
            run(chosen, banner and banner.show_ready, lambda: with_options(load_for_serving(config)))
        except StartFailed as error:
            say(error)
            raise click.exceptions.Exit(1) from None  # the service manager may try again


class Banner:
    """The lines that a terminal shows when the gateway starts."""

    def __init__(self, read: Settings, chosen: Settings) -> None:
        """`read` are the settings of the file; `chosen` those with the options of the command line."""
        self._read = read
        self._chosen = chosen

    def show_head(self) -> None:
        """Show the version, the settings file and the store."""
        file = self._read.file
        _write(f"Toolwire {__version__}")
        _write(f"configuration  {Path(file).absolute() if file else f'none; toolwire init writes {user_path()}'}")
        _write(f"store          {self._read.store.shown}")

    async def show_ready(self, port: int) -> None:
        """Show commands to paste, then a line for each backend, in order and as soon as its state is known."""
        from toolwire.cli.doctor import Finding, check_backend, format_finding

        for line in ("", *self._list_commands(with_address(self._chosen, None, port)), ""):
            _write(line)
        backends = self._chosen.backends
        width = max(len(backend.name) for backend in backends)
        async with asyncio.TaskGroup() as group:
            checks = [group.create_task(check_backend(self._chosen, backend)) for backend in backends]
            for backend, check in zip(backends, checks, strict=True):
                state, text = await check
                models = list(dict.fromkeys((*backend.literal_models, *backend.aliases, *backend.models)))
                shown = ", ".join(models[:MAX_MODELS_SHOWN]) or f"{backend.name}/MODEL"
                if len(models) > MAX_MODELS_SHOWN:
                    shown += f" and {len(models) - MAX_MODELS_SHOWN} more"
                finding = Finding(backend.name, state, f"{shown}; {text}")
                line = format_finding(finding, width, coloured=not os.environ.get("NO_COLOR"))
                print(line, file=sys.stderr, flush=True)

    def _list_commands(self, serving: Settings) -> Iterator[str]:
        """Three commands that use this gateway."""
        model = next(iter(serving.model_names), "MODEL")
        gateway = with_key_for(serving, model, GatewayAddress.of(serving))
        key = f"${gateway.key_variable}" if gateway.key_variable else "KEY"  # a key in the file is not shown
        secret = f' -H "authorization: Bearer {key}"' if gateway.key else ""
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]}, ensure_ascii=False)
        kind = "-H content-type:application/json"
        yield f"curl {gateway.url}/v1/chat/completions {kind}{secret} -d {shlex.quote(body)}"

        # Without these options `toolwire launch` would look for the gateway at another address.
        read, options = self._read, ""
        file = Path(read.file).absolute() if read.file else None
        if file != user_file():
            options += f" -c {shlex.quote(str(file))}"
        if serving.server.port != read.server.port:
            options += f" -p {serving.server.port}"
        if gateway.url != GatewayAddress.of(with_address(serving, read.server.host, None)).url:
            options += f" --host {serving.server.host}"

        typed, found = sys.argv[0], shutil.which("toolwire")
        if found is not None and os.path.realpath(found) == os.path.realpath(typed):
            command = "toolwire"
        else:
            is_module = typed.endswith("__main__.py")
            command = f"{shlex.quote(sys.executable)} -m toolwire" if is_module else shlex.quote(typed)
        for program, client in PROGRAMS.items():
            if not client.own_model:  # the banner has no room for all
                continue
            try:
                choose_model(serving, client.own_model)
                chosen = ""
            except SettingsError:  # only globs are configured
                chosen = " -m MODEL"
            yield f"{command} launch{options}{chosen} {program}"


def _write(line: str) -> None:
    print(clean(line), file=sys.stderr, flush=True)
