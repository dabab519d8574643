"""From a model's name to a backend that serves it."""

import os
import time
from collections.abc import Awaitable, Callable, Collection
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from typing import TypeAlias

import aiohttp
import msgspec

from toolwire.assembly import ServerFacts
from toolwire.backends import codex, demo
from toolwire.backends.lowered import LoweredConversation, ReplayProfile, answer_with
from toolwire.backoff import RetryBudget
from toolwire.config.settings import Backend, Settings, SettingsError, is_glob
from toolwire.core.backend import Post
from toolwire.core.cache import size_of
from toolwire.core.errors import BadRequest
from toolwire.core.events import Note
from toolwire.core.notes import TurnStats
from toolwire.core.recording import read_recording
from toolwire.core.request import Request
from toolwire.core.tenant_cache import TenantCache
from toolwire.core.tokens import estimate_tokens
from toolwire.memory.private_files import read_file
from toolwire.protocols import PROTOCOLS, HttpBackend, converse_as
from toolwire.turns.codex import codex_upstream
from toolwire.turns.explain import AskedBackend, KeySource
from toolwire.turns.validate import validate
from toolwire.upstream.codex.host import CodexHost, HostedCodexUpstream
from toolwire.upstream.credentials import ApiKey, CodexLogin
from toolwire.upstream.http import Credentials, HttpUpstream
from toolwire.upstream.in_process import ScriptUpstream
from toolwire.upstream.reply import Broken, Origin, Upstream

MODELS_KEPT = 60.0
"""Seconds an upstream's list of models is believed."""

LISTS_BYTES = 8 * 1024 * 1024
"""Most bytes of such lists."""

COOLING = 30.0
"""Seconds for which a backend that failed comes after the others that serve the same model."""


LONGEST_NAME = 1024
"""Characters of a model's name: every event of a stream repeats it."""

Converse: TypeAlias = Callable[[Request, str], LoweredConversation]
"""Begins a conversation, from a request and a seed for ids."""


class Route(msgspec.Struct, frozen=True):
    """One backend, ready to converse."""

    backend: Backend
    upstream: Upstream
    converse: Callable[[Request, str, str], LoweredConversation]
    """From a request, a seed for ids and the owner of the conversation."""
    recorded_as: str
    """Whose frames a recording of it holds."""
    facts: ServerFacts = ServerFacts()
    count_tokens: Callable[[Request, str], Awaitable[int | None]] | None = None
    """Asks the backend how many tokens a request has, with the client's key; None if it does not say."""
    models: Collection[str] | None = None
    """All models that it has, if that is known."""
    list_models: Callable[[str], Awaitable[bytes]] | None = None
    """Asks its server for the list of its models, with the client's key."""
    account_usage: Callable[[], Awaitable[bytes]] | None = None
    """Asks what the account behind a ChatGPT login has used."""
    shows_url: bool = False
    """Whether clients may see the address of its server."""

    def asked(self, key: str) -> AskedBackend:
        """What may be said of it when it fails; `key` is the client's own, if it was passed on."""
        backend = self.backend
        source: KeySource = "client" if key else "none"
        if backend.api_key_env:
            source = "environment"
        elif backend.auth:
            source = "login"
        return AskedBackend(backend.name, self.upstream.url, source, backend.api_key_env, self.shows_url)

    @property
    def origin(self) -> Origin | None:
        return self.upstream.origin

    @property
    def takes_client_key(self) -> bool:
        """Whether its server is asked with the key of the client, if that brings one."""
        return self.origin is not None and not self.backend.api_key_env and not self.backend.auth


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class _Counted(msgspec.Struct):
    input_tokens: int


class Router:
    """All backends, in the order of the settings."""

    def __init__(
        self,
        settings: Settings,
        session: aiohttp.ClientSession,
        codex_host: CodexHost | None = None,
        *,
        listing: str = "GET /v1/models lists them",
    ) -> None:
        self._settings = settings
        self._listing = listing  # where somebody finds out which models there are
        routes = (_route(backend, settings, session, codex_host) for backend in settings.backends)
        is_open = not settings.keys
        self._routes = {route.backend.name: msgspec.structs.replace(route, shows_url=is_open) for route in routes}
        self.budgets = {backend.name: RetryBudget(backend.retry_budget) for backend in settings.backends}
        self._cooling: dict[str, float] = {}
        self._listed: TenantCache[tuple[str, str], tuple[float, tuple[str, ...]]] = TenantCache(LISTS_BYTES)

    def start(self) -> None:
        """Start what should be ready before the first request."""
        for route in self._routes.values():
            route.upstream.start()

    def play(self, name: str, converse: Converse) -> None:
        """Let a model of this process answer in place of a backend of the kind demo."""
        self._routes[name] = msgspec.structs.replace(self._routes[name], converse=_ownerless(converse), models=None)

    async def stop(self) -> None:
        for route in self._routes.values():
            await route.upstream.stop()

    @property
    def routes(self) -> tuple[Route, ...]:
        return tuple(self._routes.values())

    def find(self, model: str) -> tuple[Route, str]:
        """The route for a model's name, and the name to ask its backend for."""
        return self.all_for(model)[0]

    def all_for(self, model: str) -> list[tuple[Route, str]]:
        """Every route for a model's name, in the order to try them: one that failed just now comes last."""
        found = self._serving(model)
        if len(found) > 1 and self._cooling:
            now = time.monotonic()
            found.sort(key=lambda each: self._cooling.get(each[0].backend.name, 0.0) > now)
        return found

    def _serving(self, model: str) -> list[tuple[Route, str]]:
        """Every route for a model's name, in the order of the settings."""
        if len(model) > LONGEST_NAME:
            raise BadRequest(f"model must have at most {LONGEST_NAME} characters; received {len(model)}.", "model")
        found = [(self._routes[backend.name], target) for backend, target in self._settings.serving(model)]
        if not found:
            raise self._no_model(model)
        return found

    def _no_model(self, model: str) -> BadRequest:
        """A model that nobody serves, with the names that look most like it."""
        backends = [route.backend for route in self._routes.values()]
        names = [name for backend in backends for name in (*backend.literal_models, *backend.aliases)]
        inner = model.partition("/")[2] or model
        names += [f"{backend.name}/{inner}" for backend in backends if backend.kind != "demo"]
        near = get_close_matches(model[:LONGEST_NAME], dict.fromkeys(names), n=3, cutoff=0.5)
        meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        message = f"There is no model {model!r} here.{meant} {self._listing}; BACKEND/MODEL asks one backend."
        return BadRequest(message, "model", "model_not_found", status=404)

    def key_for(self, route: Route, model: str, key: str) -> str:
        """The client's own key, if it may go to this backend: it is meant for the first that serves the model."""
        return key if key and self._serving(model)[0][0].origin == route.origin else ""

    def passes_key(self, model: str, key: str) -> bool:
        """Whether a backend that serves the model gets the client's own key."""
        return any(self.key_for(route, model, key) and route.takes_client_key for route, _ in self._serving(model))

    def cool(self, route: Route) -> None:
        """A backend failed: for a while others come first."""
        self._cooling[route.backend.name] = time.monotonic() + COOLING

    def url_of(self, name: str) -> str:
        """The address of a backend, as it may be shown."""
        return self._routes[name].upstream.url

    def cooling(self, route: Route) -> float:
        """Seconds for which others come before this backend."""
        return max(0.0, self._cooling.get(route.backend.name, 0.0) - time.monotonic())

    def owner(self, model: str) -> str:
        """The name of the backend that a model is asked of."""
        route, target = self.find(model)
        if not target or (route.models is not None and target not in route.models):
            raise self._no_model(model)
        return route.backend.name

    async def models(self, key: str, vendor: str) -> list[tuple[str, str]]:
        """Every model by name, with its backend's name: literal names, aliases, and what globs match upstream.

        A client's own key is meant for a server that takes this vendor's, if there is one, and goes to one origin only.
        """
        found: dict[str, str] = {}
        origin = self._meant(vendor)
        for route in self._routes.values():
            backend = route.backend
            matching = await self._matching(route, key if route.origin == origin else "")
            for name in (*backend.literal_models, *backend.aliases, *matching):
                found.setdefault(name, backend.name)
        return list(found.items())

    async def models_of(self, name: str) -> list[str]:
        """The models of one backend, listed with its own key."""
        route = self._routes[name]
        matching = await self._matching(route, "")
        return list(dict.fromkeys((*route.backend.literal_models, *route.backend.aliases, *matching)))

    def _meant(self, vendor: str) -> Origin | None:
        takers = [route for route in self._routes.values() if route.origin and not route.backend.has_key]
        takers.sort(key=lambda route: PROTOCOLS[route.backend.kind].vendor != vendor)
        return takers[0].origin if takers else None

    async def _matching(self, route: Route, key: str) -> list[str]:
        globs = [name for name in route.backend.models if is_glob(name)]
        if not globs or route.list_models is None:
            return []
        names = await self._ask((route.backend.name, key), route.list_models)
        return [name for name in names if any(fnmatchcase(name, glob) for glob in globs)]

    async def _ask(self, asker: tuple[str, str], list_models: Callable[[str], Awaitable[bytes]]) -> tuple[str, ...]:
        """A backend's models, for the key that asks: another key may see others."""
        kept = self._listed.get(asker)
        if kept is not None and time.monotonic() - kept[0] < MODELS_KEPT:
            return kept[1]
        try:
            names = names_in(await list_models(asker[1]))
        except (Broken, msgspec.DecodeError):
            return kept[1] if kept is not None else ()
        self._listed.put(asker[1], asker, (time.monotonic(), names), size_of((asker, names)))
        return names


def names_in(body: bytes) -> tuple[str, ...]:
    """The names in a server's list of models."""
    return tuple(model.id for model in msgspec.json.decode(body, type=_Models).data)


def check_backends(settings: Settings) -> None:
    """Find out now whether every recording can be replayed."""
    for index, backend in enumerate(settings.backends):
        try:
            if backend.kind == "replay":
                _replay(backend)
        except (msgspec.ValidationError, ValueError) as error:
            raise SettingsError(f"{settings.file}: backends[{index}] ({backend.name}).file: {error}") from None


def _route(backend: Backend, settings: Settings, session: aiohttp.ClientSession, codex_host: CodexHost | None) -> Route:
    side = PROTOCOLS[backend.kind].backend
    if side is not None and side.http is not None:
        return _http_route(backend, side.http, settings, session)
    match backend.kind:
        case "codex":
            return _codex(backend, settings, codex_host)
        case "replay":
            return _replay(backend)
        case _:
            converse = _ownerless(partial(demo.Conversation, validate=validate))
            return Route(
                backend, ScriptUpstream(), converse, "demo", ServerFacts(results_anywhere=True), models=demo.MODELS
            )


def _ownerless(converse: Converse) -> Callable[[Request, str, str], LoweredConversation]:
    """A backend that keeps nothing between turns."""
    return lambda request, seed, _: converse(request, seed)


def _codex(backend: Backend, settings: Settings, host: CodexHost | None) -> Route:
    profile = codex.profile_from(backend.profile)
    if host is None:
        upstream = codex_upstream(backend, profile, settings)
    else:
        upstream = HostedCodexUpstream(backend.name, host, profile)
    provider = str(backend.overrides.get("model_provider", codex.PROVIDER))

    def converse(request: Request, seed: str, owner: str) -> LoweredConversation:
        waiting = upstream.waiting(codex.find_awaited_calls(request, owner))
        return codex.Conversation(request, seed, profile, owner, waiting, provider=provider)

    return Route(
        backend, upstream, converse, "codex", ServerFacts(results_anywhere=True, hides_schemas=True, acts=True)
    )


def _http_route(backend: Backend, http: HttpBackend, settings: Settings, session: aiohttp.ClientSession) -> Route:
    profile = http.profile_from(backend.profile, backend.auth)
    facts = http.facts(profile)
    upstream = HttpUpstream(
        session,
        backend.base_url or facts.base_url,
        _credentials(backend, settings, backend.key_header or http.key_header),
        {**facts.headers, **backend.headers},
        settings.server.batching,
        backend.query,
    )
    asks_count = http.count_tokens

    def converse(request: Request, seed: str) -> LoweredConversation:
        return http.converse(request, seed, profile)

    async def count_tokens(request: Request, key: str) -> int | None:
        assert asks_count is not None
        return await _counted(upstream, asks_count(request, profile), key)

    usage = partial(upstream.beside(backend.auth).get_json, http.usage_path, "") if backend.auth else None
    return Route(
        backend,
        upstream,
        _ownerless(converse),
        backend.kind,
        facts,
        count_tokens=count_tokens if facts.counts_tokens and asks_count is not None else None,
        list_models=partial(upstream.get_json, http.models_path),
        account_usage=usage,
    )


def _replay(backend: Backend) -> Route:
    """Raises `ValueError` or `msgspec.ValidationError` if the recording cannot be replayed."""
    recording = read_recording(read_file(backend.file))
    profile = msgspec.convert(backend.profile, ReplayProfile)

    def converse(request: Request, seed: str) -> LoweredConversation:
        return answer_with(converse_as(recording.head.kind, request, seed), recording, profile.timing)

    converse(Request("", ()), "")
    return Route(backend, ScriptUpstream(), _ownerless(converse), recording.head.kind)


async def counted(router: Router, request: Request, key: str) -> tuple[int, dict[str, str]]:
    """How many tokens a request has, by its backend's count or by an estimate, which a header says."""
    route, target = router.find(request.model)
    if route.count_tokens is not None:
        key = router.key_for(route, request.model, key)
        tokens = await route.count_tokens(msgspec.structs.replace(request, model=target), key)
        if tokens is not None:
            return tokens, {}
    stats = TurnStats()
    stats.note(Note("tokens_estimated"))
    return estimate_tokens(request), {"x-toolwire-notes": msgspec.json.encode(stats.figures.notes).decode()}


async def _counted(upstream: HttpUpstream, question: Post, key: str) -> int | None:
    try:
        return msgspec.json.decode(await upstream.fetch_json(question, key), type=_Counted).input_tokens
    except (Broken, msgspec.DecodeError):
        return None


def _credentials(backend: Backend, settings: Settings, header: str) -> Credentials:
    if backend.auth == "codex":
        return CodexLogin()
    if backend.api_key_env:
        return ApiKey(header, os.environ[backend.api_key_env].strip())
    # With keys of our own the client's key is ours, and stays here.
    return ApiKey(header, "" if settings.keys else None)
