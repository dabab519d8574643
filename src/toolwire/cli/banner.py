"""What `toolwire serve` says on a terminal: what it reads and keeps, what to paste, and how its backends are."""

import asyncio
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from toolwire import __version__
from toolwire.cli.choice import asking, default_model
from toolwire.cli.health import Finding, shown, store_place
from toolwire.cli.health_backends import ask_backend
from toolwire.cli.programs import Program
from toolwire.cli.reach import access
from toolwire.config.files import user_file, user_path
from toolwire.config.settings import Backend, Settings, SettingsError, with_address
from toolwire.core.terminal import clean

_PROGRAMS: tuple[Program, ...] = ("claude", "codex")
_MODELS_SHOWN = 5


class Banner:
    """The lines for a gateway of settings that were read, at the address that the command line may have changed."""

    def __init__(self, read: Settings, chosen: Settings) -> None:
        self._read = read
        self._chosen = chosen

    def head(self) -> None:
        """What is known before anything is started."""
        file = self._read.file
        _say(f"Toolwire {__version__}")
        _say(f"configuration  {Path(file).absolute() if file else f'none; toolwire init writes {user_path()}'}")
        _say(f"store          {store_place(self._read)}")

    async def ready(self, port: int) -> None:
        """What to paste, and then a line for each backend, in their order, as soon as it is known."""
        for line in ("", *_pasted(self._read, with_address(self._chosen, None, port)), ""):
            _say(line)
        backends = self._chosen.backends
        width = max(len(backend.name) for backend in backends)
        async with asyncio.TaskGroup() as group:
            checks = [group.create_task(ask_backend(self._chosen, backend)) for backend in backends]
            for backend, check in zip(backends, checks, strict=True):
                good, said = await check
                _say_finding(Finding(backend.name, good, f"{_models(backend)}; {said}"), width)


def _say(line: str) -> None:
    print(clean(line), file=sys.stderr, flush=True)


def _say_finding(finding: Finding, width: int) -> None:
    print(shown(finding, width, coloured=not os.environ.get("NO_COLOR")), file=sys.stderr, flush=True)


def _models(backend: Backend) -> str:
    found = list(dict.fromkeys((*backend.literal_models, *backend.aliases, *backend.models)))
    if not found:
        return f"{backend.name}/MODEL"
    more = f" and {len(found) - _MODELS_SHOWN} more" if len(found) > _MODELS_SHOWN else ""
    return ", ".join(found[:_MODELS_SHOWN]) + more


def _pasted(read: Settings, serving: Settings) -> Iterator[str]:
    """Three commands that use this gateway."""
    yield _curl(serving)
    for program in _PROGRAMS:
        yield " ".join((_own_name(), "launch", *_where(read, serving), *_which(serving, program), program))


def _curl(serving: Settings) -> str:
    model = next(iter(serving.model_names), "MODEL")
    reached = asking(serving, model, access(serving))
    key = f"${reached.key_variable}" if reached.key_variable else "KEY"  # one that stands in the file is not shown
    secret = f' -H "authorization: Bearer {key}"' if reached.key else ""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]}, ensure_ascii=False)
    kind = "-H content-type:application/json"
    return f"curl {reached.url}/v1/chat/completions {kind}{secret} -d {shlex.quote(body)}"


def _own_name() -> str:
    """What to type for this program."""
    typed = sys.argv[0]
    found = shutil.which("toolwire")
    if found is not None and os.path.realpath(found) == os.path.realpath(typed):
        return "toolwire"
    return f"{shlex.quote(sys.executable)} -m toolwire" if typed.endswith("__main__.py") else shlex.quote(typed)


def _where(read: Settings, serving: Settings) -> Iterator[str]:
    """The options of `toolwire launch` without which it would look for a gateway elsewhere."""
    file = Path(read.file).absolute() if read.file else None
    if file != user_file():
        yield f"-c {shlex.quote(str(file))}"
    if serving.server.port != read.server.port:
        yield f"-p {serving.server.port}"
    if access(serving).url != access(with_address(serving, read.server.host, None)).url:
        yield f"--host {serving.server.host}"


def _which(serving: Settings, program: Program) -> Iterator[str]:
    """The option with which a model has to be named, where only globs are configured."""
    try:
        default_model(serving, program)
    except SettingsError:
        yield "-m MODEL"
