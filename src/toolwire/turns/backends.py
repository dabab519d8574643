"""Makes the route of each configured backend: an HTTP server, a Codex worker, a recording or a built-in model."""

from functools import partial

import aiohttp
import msgspec

from toolwire.backends.decoder import UNREADABLE
from toolwire.backends.lowered import LoweredConversation, ReplayProfile, answer_with
from toolwire.config.settings import Backend, Settings, SettingsError
from toolwire.core.recording import read_recording
from toolwire.core.request import Request
from toolwire.memory.private_files import read_file
from toolwire.protocols import BackendSide, BuiltIn, HttpBackend, backend_kinds, converse_as
from toolwire.turns.codex import make_codex_route
from toolwire.turns.route import Route
from toolwire.turns.validate import validate
from toolwire.upstream.codex.host import CodexHost
from toolwire.upstream.credentials import ApiKey, CodexLogin
from toolwire.upstream.http import HttpUpstream
from toolwire.upstream.in_process import ScriptUpstream
from toolwire.upstream.reply import Broken


class _TokenCount(msgspec.Struct):
    input_tokens: int


def make_route(
    backend: Backend, settings: Settings, session: aiohttp.ClientSession, codex_host: CodexHost | None
) -> Route:
    """The route of a backend."""
    side = backend_kinds()[backend.kind]
    if side.http is not None:
        return _make_http_route(backend, side.http, settings, session)
    if side.is_recording:
        return _make_replay_route(backend)
    if side.built_in is not None:
        return _make_built_in_route(backend, side, side.built_in)
    return make_codex_route(backend, side.facts, settings, codex_host)


def check_backends(settings: Settings) -> None:
    """Check that every recording can be replayed. Raises `SettingsError`."""
    for index, backend in enumerate(settings.backends):
        try:
            if backend_kinds()[backend.kind].is_recording:
                _make_replay_route(backend)
        except (msgspec.ValidationError, ValueError) as error:
            raise SettingsError(f"{settings.file}: backends[{index}] ({backend.name}).file: {error}") from None


def _make_http_route(backend: Backend, http: HttpBackend, settings: Settings, session: aiohttp.ClientSession) -> Route:
    profile = http.profile_from(backend.profile, backend.auth)
    facts, encode_count = http.facts(profile), http.count_tokens
    own_key = "" if settings.keys else None  # with keys, the client's key is one of ours and is not passed on
    if backend.api_key_env:
        own_key = settings.environment[backend.api_key_env].strip()
    credentials = CodexLogin() if backend.auth else ApiKey(backend.key_header or http.key_header, own_key)
    upstream = HttpUpstream(
        session,
        backend.base_url or facts.base_url,
        credentials,
        {**facts.headers, **backend.headers},
        settings.server.batching,
        backend.query,
    )

    async def count_tokens(request: Request, key: str) -> int | None:
        assert encode_count is not None
        try:
            answer = await upstream.fetch_json(encode_count(request, profile), key)
            return msgspec.json.decode(answer, type=_TokenCount).input_tokens
        except (Broken, *UNREADABLE):
            return None

    usage = partial(upstream.beside(backend.auth).get_json, http.usage_path, "") if backend.auth else None
    return Route(
        backend,
        upstream,
        lambda request, seed, _: http.converse(request, seed, profile),
        backend.kind,
        facts,
        count_tokens=count_tokens if facts.counts_tokens and encode_count is not None else None,
        list_models=partial(upstream.get_json, http.models_path),
        account_usage=usage,
    )


def _make_replay_route(backend: Backend) -> Route:
    """Raises `ValueError` or `msgspec.ValidationError` if the recording cannot be replayed."""
    recording = read_recording(read_file(backend.file))
    profile = msgspec.convert(backend.profile, ReplayProfile)

    def converse(request: Request, seed: str, _owner: str) -> LoweredConversation:
        return answer_with(converse_as(recording.head.kind, request, seed), recording, profile.timing)

    converse(Request("", ()), "", "")
    return Route(backend, ScriptUpstream(), converse, recording.head.kind)


def _make_built_in_route(backend: Backend, side: BackendSide, converse: BuiltIn) -> Route:
    return Route(
        backend,
        ScriptUpstream(),
        lambda request, seed, _: converse(request, seed, validate),
        backend.kind,
        side.facts,
        models=side.models,
    )
