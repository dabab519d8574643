"""Makes the route of a `codex` backend, and the command and home directory of its workers."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial

from toolwire import __version__
from toolwire.assembly import ServerFacts
from toolwire.backends import codex
from toolwire.backends.codex import config
from toolwire.backends.lowered import LoweredConversation
from toolwire.config.settings import Backend, Settings
from toolwire.core.display import clean
from toolwire.core.request import Request
from toolwire.turns.route import Route
from toolwire.upstream.codex.app_server import AppServerSpec
from toolwire.upstream.codex.host import CodexHost, HostedCodexUpstream
from toolwire.upstream.codex.upstream import CodexUpstream
from toolwire.upstream.credentials import find_login_file, inherit_environment, read_login_tokens

CATALOGUE = "models.json"


def make_codex_route(backend: Backend, facts: ServerFacts, settings: Settings, host: CodexHost | None) -> Route:
    """The route of a backend whose workers run in this process, or at the host."""
    profile = codex.profile_from(backend.profile)
    upstream = (
        make_codex_upstream(backend, settings) if host is None else HostedCodexUpstream(backend.name, host, profile)
    )
    provider = str(backend.overrides.get("model_provider", codex.PROVIDER))

    def converse(request: Request, seed: str, owner: str) -> LoweredConversation:
        waiting = upstream.find_waiting(codex.find_awaited_calls(request, owner))
        return codex.Conversation(request, seed, profile, owner, waiting, provider=provider)

    return Route(backend, upstream, converse, backend.kind, facts)


def make_codex_upstream(backend: Backend, settings: Settings) -> CodexUpstream:
    """The upstream of a backend in this process; `start` starts its workers."""
    environment = settings.environment
    allowed = frozenset((*backend.inherit, backend.api_key_env, *config.find_key_variables(backend.overrides)))

    def make_files(home: str, models: Sequence[str]) -> Mapping[str, bytes]:
        path, idle = f"{home}/{CATALOGUE}", settings.timeouts.idle
        toml = config.write_configuration(path, idle, backend.base_url, backend.api_key_env)
        return {"config.toml": toml.encode(), CATALOGUE: config.write_catalogue(models)}

    def find_credentials() -> tuple[str, ...]:
        """The values of the allowed variables, and the credentials of the shared login."""
        return (*read_login_tokens(), *(environment[name].strip() for name in allowed if name in environment))

    def warn(message: str) -> None:
        print(clean(f"toolwire: backend {backend.name}: {message}"), file=sys.stderr, flush=True)

    spec = AppServerSpec(
        command=(*backend.command, "app-server", *config.make_arguments(backend.overrides)),
        environment=partial(inherit_environment, settings.secret_variables, allowed, environment),
        files=make_files,
        links={"auth.json": str(find_login_file())},
        credentials=find_credentials,
        version=__version__,
    )
    models = frozenset((*backend.literal_models, *backend.aliases.values()))
    return CodexUpstream(spec, backend.workers, codex.profile_from(backend.profile), models, warn)
