"""Makes the route of each configured backend: an HTTP server, a Codex worker, a recording or a built-in model."""

import shutil
from functools import partial

import msgspec

from toolwire.backends.decoder import UNREADABLE
from toolwire.backends.lowered import LoweredConversation, ReplayProfile, answer_with
from toolwire.config.settings import Backend, Settings, SettingsError
from toolwire.core.recording import Head, Recording, read_recording
from toolwire.core.request import Request
from toolwire.memory.private_files import read_file
from toolwire.protocols import BackendSide, BuiltIn, HttpBackend, backend_kinds, converse_as
from toolwire.turns.codex import make_codex_route
from toolwire.turns.route import Route
from toolwire.turns.validate import validate
from toolwire.upstream.codex.host import CodexHost
from toolwire.upstream.credentials import ApiKey
from toolwire.upstream.http import HttpSession, HttpUpstream
from toolwire.upstream.in_process import ScriptUpstream
from toolwire.upstream.logins import LOGINS
from toolwire.upstream.reply import Broken


def make_route(backend: Backend, settings: Settings, session: HttpSession, codex_host: CodexHost | None) -> Route:
    """The route of a backend, even if the backend cannot be asked."""
    side = backend_kinds()[backend.kind]
    if side.http is not None:
        return _make_http_route(backend, side.http, settings, session)
    if side.is_recording:
        return _make_replay_route(backend)
    if side.built_in is not None:
        return _make_built_in_route(backend, side, side.built_in)
    route = make_codex_route(backend, side.facts, settings, codex_host)
    return msgspec.structs.replace(route, obstacle=partial(find_obstacle, backend, settings))


def find_obstacle(backend: Backend, settings: Settings) -> str:
    """Why a backend cannot be asked, as far as this machine knows: its key, login, program or recording is missing.

    Empty if it can be asked. Whether its server answers, its upstream knows.
    """
    side, environment = backend_kinds()[backend.kind], settings.environment
    if backend.api_key_env and not environment.get(backend.api_key_env, "").strip():
        return f"{backend.api_key_env} is not set; start Toolwire with the key of its server in it"
    if backend.auth and (obstacle := LOGINS[backend.auth].find_obstacle(environment)):
        return obstacle
    if side.is_recording:
        try:
            _read_replay(backend)
        except SettingsError as error:
            return str(error)
    is_program = side.http is None and side.built_in is None and not side.is_recording
    if is_program and shutil.which(backend.command[0], path=environment.get("PATH")) is None:
        return f"the program {backend.command[0]} is not installed"
    return ""


def find_obstacles(settings: Settings) -> dict[str, str]:
    """The backends that cannot be asked, each with the reason."""
    found = ((backend.name, find_obstacle(backend, settings)) for backend in settings.backends)
    return {name: obstacle for name, obstacle in found if obstacle}


def check_backends(settings: Settings) -> None:
    """Check that every backend can be asked, if `server.strict_start` is set. Raises `SettingsError`."""
    if settings.server.strict_start:
        for name, obstacle in find_obstacles(settings).items():
            raise SettingsError(f"{settings.file or 'server.strict_start'}: backend {name} is unavailable: {obstacle}")


def _make_http_route(backend: Backend, http: HttpBackend, settings: Settings, session: HttpSession) -> Route:
    profile = http.profile_from(backend.profile, backend.auth)
    facts, encode_count = http.facts(profile), http.count_tokens
    own_key = "" if settings.needs_key else None  # with keys, the client's key is one of ours and is not passed on
    if backend.api_key_env:
        own_key = settings.environment.get(backend.api_key_env, "").strip()
    obstacle = find_obstacle(backend, settings)
    key_header = backend.key_header or http.key_header
    credentials = LOGINS[backend.auth].make() if backend.auth else ApiKey(key_header, own_key)
    upstream = HttpUpstream(
        session,
        backend.base_url or facts.base_url,
        credentials,
        {**facts.headers, **backend.headers},
        backend.query,
    )

    async def count_tokens(request: Request, key: str) -> int | None:
        assert encode_count is not None
        try:
            answer = await upstream.fetch_json(encode_count(request, profile), key)
            return http.read_count(answer)
        except (Broken, *UNREADABLE):
            return None

    async def list_models(key: str) -> bytes:
        return http.convert_models(await upstream.get_json(http.models_path, key))

    has_usage = bool(backend.auth and http.usage_path)
    usage = partial(upstream.at_parent(backend.auth).get_json, http.usage_path, "") if has_usage else None
    return Route(
        backend,
        upstream,
        lambda request, seed, _: http.converse(request, seed, profile),
        backend.kind,
        facts,
        count_tokens=count_tokens if facts.counts_tokens and encode_count is not None else None,
        list_models=list_models,
        account_usage=usage,
        # A login may come while the gateway runs; the key is read once, above.
        obstacle=partial(find_obstacle, backend, settings) if backend.auth else lambda: obstacle,
    )


def _make_replay_route(backend: Backend) -> Route:
    profile, obstacle = msgspec.convert(backend.profile, ReplayProfile), ""
    try:
        recording = _read_replay(backend)
    except SettingsError as error:
        recording, obstacle = Recording(Head(1, backend.kind, "", 0), []), str(error)

    def converse(request: Request, seed: str, _owner: str) -> LoweredConversation:
        return answer_with(converse_as(recording.head.kind, request, seed), recording, profile.timing)

    return Route(backend, ScriptUpstream(), converse, recording.head.kind, obstacle=lambda: obstacle)


def _read_replay(backend: Backend) -> Recording:
    """The recording that a backend replays. Raises `SettingsError`, which says why there is none."""
    try:
        recording = read_recording(read_file(backend.file))
        converse_as(recording.head.kind, Request("", ()), "")
    except OSError as error:
        raise SettingsError(f"there is no recording {backend.file!r}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"the recording {backend.file!r} cannot be replayed: {error}") from None
    return recording


def _make_built_in_route(backend: Backend, side: BackendSide, converse: BuiltIn) -> Route:
    return Route(
        backend,
        ScriptUpstream(),
        lambda request, seed, _: converse(request, seed, validate),
        backend.kind,
        side.facts,
        models=side.models,
    )
