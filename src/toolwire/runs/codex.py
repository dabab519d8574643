"""A `codex` backend's settings as workers: what is started, in which home, and which versions will do."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial

from toolwire import __version__
from toolwire.backends import codex
from toolwire.core.terminal import clean
from toolwire.runs.settings import Backend, Settings
from toolwire.transport.codex.pool import Bounds
from toolwire.transport.codex.upstream import CodexUpstream
from toolwire.transport.codex.worker import Recipe
from toolwire.transport.credentials import login_file
from toolwire.transport.environment import inherited

CATALOGUE = "models.json"

_UNHEARD = ("thread/started", "thread/settings/updated", "thread/status/changed", "remoteControl/status/changed")
"""What workers need not tell."""

_HELLO = {
    "clientInfo": {"name": "toolwire", "title": "Toolwire", "version": __version__},
    "capabilities": {"experimentalApi": True, "optOutNotificationMethods": _UNHEARD},
}


def codex_upstream(backend: Backend, profile: codex.Profile, settings: Settings) -> CodexUpstream:
    """The workers of a backend, none of them started yet."""
    allowed = frozenset((*backend.inherit, backend.api_key_env, *codex.key_variables(backend.overrides)))
    recipe = Recipe(
        command=(*backend.command, "app-server", *codex.arguments(backend.overrides)),
        environment=partial(inherited, settings.secret_variables, allowed),
        files=partial(_files, backend, settings.timeouts.idle),
        links={"auth.json": str(login_file())},
        hello=_HELLO,
        accepts=_why_not,
        declined=codex.declined,
    )
    bounds = Bounds(backend.workers, profile.turns, profile.queue, profile.patience, profile.threads)
    return CodexUpstream(
        recipe,
        bounds,
        frozenset((*backend.literal_models, *backend.aliases.values())),
        profile.keep,
        profile.silence,
        codex.limit_headers,
        partial(_say, backend.name),
    )


def _files(backend: Backend, idle: float, home: str, models: Sequence[str]) -> Mapping[str, bytes]:
    config = codex.configuration(f"{home}/{CATALOGUE}", idle, backend.base_url, backend.api_key_env)
    return {"config.toml": config.encode(), CATALOGUE: codex.catalogue(models)}


def _why_not(agent: str) -> str:
    version = codex.version_of(agent)
    if version is None:
        return f"it calls itself {agent!r}, which names no version"
    if version < codex.OLDEST:
        found, needed = (".".join(map(str, each)) for each in (version, codex.OLDEST))
        return f"version {found} is too old, at least {needed} is needed"
    return ""


def _say(name: str, message: str) -> None:
    print(clean(f"toolwire: backend {name}: {message}"), file=sys.stderr, flush=True)
