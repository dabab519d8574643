"""A `codex` backend's settings as workers: what is started, and in which home."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from toolwire import __version__
from toolwire.backends.codex import Profile, config
from toolwire.config.settings import Backend, Settings
from toolwire.core.display import clean
from toolwire.upstream.codex.app_server import AppServerSpec
from toolwire.upstream.codex.upstream import CodexUpstream
from toolwire.upstream.credentials import inherited, login_file, read_login_tokens

CATALOGUE = "models.json"


def codex_upstream(backend: Backend, profile: Profile, settings: Settings) -> CodexUpstream:
    """The app-servers of a backend, none of them started yet."""
    allowed = frozenset((*backend.inherit, backend.api_key_env, *config.find_key_variables(backend.overrides)))
    spec = AppServerSpec(
        command=(*backend.command, "app-server", *config.arguments(backend.overrides)),
        environment=partial(inherited, settings.secret_variables, allowed),
        files=partial(_files, backend, settings.timeouts.idle),
        links={"auth.json": str(login_file())},
        credentials=partial(_credentials, allowed),
        version=__version__,
    )
    models = frozenset((*backend.literal_models, *backend.aliases.values()))
    say = partial(_say, backend.name)
    return CodexUpstream(spec, backend.workers, profile, models, say)


def _files(backend: Backend, idle: float, home: str, models: Sequence[str]) -> Mapping[str, bytes]:
    toml = config.configuration(f"{home}/{CATALOGUE}", idle, backend.base_url, backend.api_key_env)
    return {"config.toml": toml.encode(), CATALOGUE: config.catalogue(models)}


def _credentials(variables: Iterable[str]) -> tuple[str, ...]:
    """What workers are given as credentials: in variables, and in the login that they share."""
    return (*read_login_tokens(), *(os.environ[name].strip() for name in variables if name in os.environ))


def _say(name: str, message: str) -> None:
    print(clean(f"toolwire: backend {name}: {message}"), file=sys.stderr, flush=True)
