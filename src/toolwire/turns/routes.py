"""The router: finds the backends that serve a model, and lists the models."""

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

import msgspec

from toolwire.backends.decoder import UNREADABLE
from toolwire.backends.lowered import LoweredConversation
from toolwire.backoff import RetryBudget
from toolwire.config.presets import PRESETS
from toolwire.config.settings import Backend, Settings, is_glob
from toolwire.core.cache import TenantCache, size_of
from toolwire.core.errors import UNAVAILABLE, BackendFault, BadRequest, Failure
from toolwire.core.events import Note
from toolwire.core.notes import TurnStats
from toolwire.core.request import Request
from toolwire.core.tokens import estimate_tokens
from toolwire.protocols import PROTOCOLS
from toolwire.turns.backends import make_route
from toolwire.turns.grants import Grant
from toolwire.turns.route import Route
from toolwire.upstream.codex.host import CodexHost
from toolwire.upstream.http import HttpSession
from toolwire.upstream.reply import Broken, Origin

MODEL_LIST_TTL = 60.0
"""Seconds for which an upstream's list of models is cached."""

MAX_MODEL_LIST_BYTES = 8 * 1024 * 1024
"""Maximum bytes of all cached lists."""

COOLDOWN = 30.0
"""Seconds for which a failed backend is tried last."""

MAX_COMPARED_NAMES = 1000
"""Maximum names of models that the name of an unknown one is compared with."""

MAX_MODEL_NAME_CHARS = 1024
"""Every event of a stream repeats the name."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class Router:
    """All backends, in the order of the settings."""

    def __init__(
        self,
        settings: Settings,
        session: HttpSession,
        codex_host: CodexHost | None = None,
        *,
        listing: str = "GET /v1/models lists them",
    ) -> None:
        """`listing` says in error messages where the models are listed."""
        self._settings = settings
        self._listing = listing
        routes = (make_route(backend, settings, session, codex_host) for backend in settings.backends)
        is_open = not settings.needs_key
        self._routes = {route.backend.name: msgspec.structs.replace(route, shows_url=is_open) for route in routes}
        self.budgets = {backend.name: RetryBudget(backend.retry_budget) for backend in settings.backends}
        self._cooling: dict[str, float] = {}
        self._listed: TenantCache[tuple[str, str], tuple[float, tuple[str, ...]]] = TenantCache(MAX_MODEL_LIST_BYTES)

    def start(self) -> None:
        """Start workers, so that they are ready before the first request."""
        for route in self._routes.values():
            if not route.obstacle():
                route.upstream.start()

    def play(self, name: str, converse: Callable[[Request, str], LoweredConversation]) -> None:
        """Let a model of this process answer in place of a built-in one."""

        def begin(request: Request, seed: str, _owner: str) -> LoweredConversation:
            return converse(request, seed)

        self._routes[name] = msgspec.structs.replace(self._routes[name], converse=begin, models=None)

    async def stop(self) -> None:
        for route in self._routes.values():
            await route.upstream.stop()

    @property
    def routes(self) -> tuple[Route, ...]:
        return tuple(self._routes.values())

    def find(self, model: str, grant: Grant | None = None) -> tuple[Route, str]:
        """The first route for a model, and the model's name at that backend."""
        return self.all_for(model, grant)[0]

    def all_for(self, model: str, grant: Grant | None = None) -> list[tuple[Route, str]]:
        """Every route for a model, in the order to try them: those that failed recently come last.

        Backends that cannot be asked, or that the client may not use, are left out. Raises `BadRequest` if no backend
        serves the model to the client, and `BackendFault` if none of those that do can be asked.
        """
        serving = self._serving(model) if grant is None else self._serving_to(grant, model)
        found = [each for each in serving if not each[0].obstacle()]
        if not found:
            route, _ = serving[0]
            message = f"Backend `{route.backend.name}` is unavailable: {route.obstacle()}."
            raise BackendFault(Failure(503, UNAVAILABLE, message, "api_error"))
        if len(found) > 1 and self._cooling:
            now = time.monotonic()
            found.sort(key=lambda each: self._cooling.get(each[0].backend.name, 0.0) > now)
        return found

    def _serving(self, model: str, grant: Grant | None = None) -> list[tuple[Route, str]]:
        """Every route for a model, in the order of the settings. Raises `BadRequest` if there is none."""
        if len(model) > MAX_MODEL_NAME_CHARS:
            message = f"model must have at most {MAX_MODEL_NAME_CHARS} characters; received {len(model)}."
            raise BadRequest(message, "model")
        found = [(self._routes[backend.name], target) for backend, target in self._settings.serving(model)]
        if not found:
            raise self._no_model(model, grant)
        return found

    def _serving_to(self, grant: Grant, model: str) -> list[tuple[Route, str]]:
        """The same for a client that may not use every model or backend."""
        name, _, inner = model[:MAX_MODEL_NAME_CHARS].partition("/")
        grant.check_model(inner if name in self._routes else model[:MAX_MODEL_NAME_CHARS])
        serving = self._serving(model, grant)
        allowed = grant.check_backends(model, [route.backend.name for route, _ in serving])
        return [each for each in serving if each[0].backend.name in allowed]

    def _no_model(self, model: str, grant: Grant | None) -> BadRequest:
        """The error for an unknown model, with the key that is missing, or with similar names of models that exist."""
        name, mark, rest = re.split("([:/]|$)", model, maxsplit=1)
        is_with_colon = mark == ":" and name in {**self._routes, **PRESETS}  # as other libraries write it
        unset = self._settings.find_unset_key(f"{name}/{rest}" if is_with_colon else model)
        names: list[str] = []
        for route in self._routes.values():
            _, listed = self._listed.get((route.backend.name, "")) or (0.0, ())
            known = [] if route.obstacle() else _name_models(route.backend, listed, grant)
            names += [*known, *(f"{route.backend.name}/{name}" for name in known if "/" in model)]
        near = get_close_matches(model, dict.fromkeys(names[:MAX_COMPARED_NAMES]), n=3, cutoff=0.5)
        meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        if unset or is_with_colon:
            meant = f" Write {name}/{rest}." if is_with_colon else ""
        if unset:
            meant += f" {unset} is not set."
        elif mark and name in PRESETS and name not in self._routes:
            meant += f' No backend is named {name!r}: add one with preset = "{name}" to the settings.'
        message = f"There is no model {model!r} here.{meant} {self._listing}; BACKEND/MODEL asks one backend."
        return BadRequest(message, "model", "model_not_found", status=404)

    def key_for(self, route: Route, model: str, key: str) -> str:
        """The client's own key if this backend may get it: the key is for the first server of the model."""
        return key if key and self._serving(model)[0][0].origin == route.origin else ""

    def passes_key(self, model: str, key: str) -> bool:
        """Whether a backend that serves the model gets the client's own key."""
        return any(self.key_for(route, model, key) and route.takes_client_key for route, _ in self._serving(model))

    def cool(self, route: Route) -> None:
        """Try a failed backend last, for a while."""
        self._cooling[route.backend.name] = time.monotonic() + COOLDOWN

    def cooling(self, route: Route) -> float:
        """The remaining seconds for which a backend is tried last."""
        return max(0.0, self._cooling.get(route.backend.name, 0.0) - time.monotonic())

    def unavailable(self) -> dict[str, str]:
        """The backends that cannot be asked, or whose servers did not answer lately, each with the reason."""
        reasons = {name: route.obstacle() or route.upstream.unreachable() for name, route in self._routes.items()}
        return {name: reason.removeprefix("The backend ").rstrip(".") for name, reason in reasons.items() if reason}

    def url_of(self, name: str) -> str:
        """The address of a backend, as it may be shown."""
        return self._routes[name].upstream.url

    def owner(self, model: str, grant: Grant | None) -> str:
        """The name of the backend that serves a model. Raises `BadRequest` if there is none."""
        route, target = self.find(model, grant)
        if not target or (route.models is not None and target not in route.models):
            raise self._no_model(model, grant)
        return route.backend.name

    async def count_tokens(self, request: Request, key: str, grant: Grant | None) -> tuple[int, dict[str, str]]:
        """The tokens of a request as its backend counts them; else an estimate, and the header that says so."""
        route, target = self.find(request.model, grant)
        if route.count_tokens is not None:
            key = self.key_for(route, request.model, key)
            tokens = await route.count_tokens(msgspec.structs.replace(request, model=target), key)
            if tokens is not None:
                return tokens, {}
        stats = TurnStats()
        stats.add_note(Note("tokens_estimated"))
        return estimate_tokens(request), {"x-toolwire-notes": msgspec.json.encode(stats.figures.notes).decode()}

    async def models(self, key: str, vendor: str, grant: Grant | None) -> list[tuple[str, str]]:
        """Every model that the client may use, with the name of its backend.

        These are literal names, aliases, and the models that match globs. The client's own key goes to one origin only:
        that of a server of this vendor if there is one.
        """
        found: dict[str, str] = {}
        takers = [route for route in self._routes.values() if route.takes_client_key]
        takers.sort(key=lambda route: PROTOCOLS[route.backend.kind].vendor != vendor)
        origin: Origin | None = takers[0].origin if takers else None
        for route in self._routes.values():
            for name in await self._list_models(route, key if route.origin == origin else "", grant):
                found.setdefault(name, route.backend.name)
        return list(found.items())

    async def models_of(self, name: str) -> list[str]:
        """The models of one backend, listed with its own key."""
        return list(dict.fromkeys(await self._list_models(self._routes[name], "")))

    async def _list_models(self, route: Route, key: str, grant: Grant | None = None) -> list[str]:
        """The literal names, the aliases and the matching models of one backend; none if it cannot be asked."""
        backend = route.backend
        if route.obstacle() or (grant is not None and grant.backends and backend.name not in grant.backends):
            return []
        listed: tuple[str, ...] = ()
        if any(map(is_glob, backend.models)) and route.list_models is not None:
            listed = await self._fetch_models((backend.name, key), route.list_models)
        return _name_models(backend, listed, grant)

    async def _fetch_models(
        self, asker: tuple[str, str], list_models: Callable[[str], Awaitable[bytes]]
    ) -> tuple[str, ...]:
        """The list of a backend's server, cached by key: another key may see other models."""
        cached = self._listed.get(asker)
        if cached is not None and time.monotonic() - cached[0] < MODEL_LIST_TTL:
            return cached[1]
        try:
            names = read_model_names(await list_models(asker[1]))
        except (Broken, *UNREADABLE):
            return cached[1] if cached is not None else ()
        self._listed.put(asker[1], asker, (time.monotonic(), names), size_of((asker, names)))
        return names


def _name_models(backend: Backend, listed: Sequence[str], grant: Grant | None) -> list[str]:
    """The literal names, the aliases, and those of the names that its server lists that a glob matches."""
    globs = [name for name in backend.models if is_glob(name)]
    matching = (name for name in listed if any(fnmatchcase(name, glob) for glob in globs))
    names = [*backend.literal_models, *backend.aliases, *matching]
    return names if grant is None else [name for name in names if grant.allows(backend.name, name)]


def read_model_names(body: bytes) -> tuple[str, ...]:
    """The names in a server's list of models."""
    return tuple(model.id for model in msgspec.json.decode(body, type=_Models).data)
