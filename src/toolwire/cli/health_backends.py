"""Whether a backend can be reached, takes its key, and is where its base_url says.

An empty request tells all of that and costs nothing: a server that takes the key complains about the request, one that
does not complains about the key, and an address that is wrong knows no such operation.
"""

import asyncio
import re
from urllib.parse import urlsplit

import msgspec

from toolwire.cli.choice import own_key, own_key_variable
from toolwire.cli.health_codex import codex_of
from toolwire.config.settings import Backend, Settings
from toolwire.config.validate import OPERATIONS
from toolwire.core.backend import Post
from toolwire.turns.routes import Route, Router, names_in
from toolwire.upstream.http import HttpUpstream, SmallAnswer, make_session
from toolwire.upstream.reply import Broken

PATIENCE = 6.0
"""Seconds for all that one backend is asked."""

_KEY_REFUSED = re.compile(
    rb"(incorrect|invalid|missing|expired)\W+api.?key|api.?key\W+(is\W+)?(not valid|invalid)", re.IGNORECASE
)
"""How some servers refuse a key with a status that says something else: xAI and Gemini answer 400."""


async def ask_backend(settings: Settings, backend: Backend) -> tuple[bool, str]:
    """Whether all is well with a backend, and a line about it."""
    if backend.kind == "codex":
        return await codex_of(backend)
    if backend.kind not in OPERATIONS:
        return True, "built in" if backend.kind == "demo" else f"replays {backend.file}"
    async with make_session(settings.timeouts) as session:
        [route] = Router(msgspec.structs.replace(settings, backends=(backend,)), session).routes
        assert isinstance(route.upstream, HttpUpstream)
        try:
            async with asyncio.timeout(PATIENCE):
                good, said = await _ask(route, route.upstream)
        except Broken as error:
            message = error.failure.message.replace("The backend", "it", 1)
            good, said = False, f"{message} {error.failure.hint}".rstrip()
        except TimeoutError:
            good, said = False, f"no answer in {PATIENCE:.0f} seconds; is base_url right, or a proxy needed?"
        return good, f"{route.upstream.url}: {said}"


async def _ask(route: Route, upstream: HttpUpstream) -> tuple[bool, str]:
    backend, key = route.backend, own_key(route.backend)
    answer = await _try(route, upstream, key)
    if answer.status in (401, 403) or _KEY_REFUSED.search(answer.body[:2000]):
        return _refused(route, answer.status)
    if answer.status == 402:
        return False, "the account has no credit (402)"
    if answer.status >= 500:
        return False, f"it answers with status {answer.status}; try again later"
    if not _knows_operation(answer):
        return await _misplaced(route, upstream, key, answer)
    if not backend.has_key and not key:
        return True, f"it answers{await _counted(route, key)}; clients bring their own key, if it needs one"
    return True, f"it answers, and takes the key{await _counted(route, key)}"


async def _try(route: Route, upstream: HttpUpstream, key: str) -> SmallAnswer:
    return await upstream.fetch(Post(OPERATIONS[route.backend.kind], b"{}"), key)


def _knows_operation(answer: SmallAnswer) -> bool:
    """Whether an answer is that of a server with this operation, which complains about the empty request."""
    return answer.status not in (404, 405) and not 300 <= answer.status < 400 and "html" not in answer.content_type


def _refused(route: Route, status: int) -> tuple[bool, str]:
    backend = route.backend
    if backend.auth:
        return False, f"the login was refused ({status}); run codex login"
    variable = backend.api_key_env or own_key_variable(backend)
    if not variable:
        return True, "it answers, and wants a key, which clients bring; api_key_env gives it one of its own"
    return False, f"the key in {variable} was refused ({status}); put a valid one there"


async def _misplaced(route: Route, upstream: HttpUpstream, key: str, answer: SmallAnswer) -> tuple[bool, str]:
    """What to say where the operation is not: perhaps it is at another path of the same server."""
    if await _counted(route, key):  # some servers answer 404 where a model is missing
        return True, f"it answers{await _counted(route, key)}"
    base = upstream.url
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(base))
    for other in dict.fromkeys((f"{base}/v1", f"{origin}/v1", f"{origin}/api/v1", origin)):
        found = await _try(route, upstream.at(other), key) if other != base else None
        if found is not None and found.status in (400, 401, 403, 422) and _knows_operation(found):
            return False, f"base_url looks wrong ({answer.status}); write {other}"
    return False, f"base_url looks wrong: {OPERATIONS[route.backend.kind]} is not there ({answer.status})"


async def _counted(route: Route, key: str) -> str:
    """How many models its server lists; nothing if it does not tell."""
    try:
        names = names_in(await route.list_models(key)) if route.list_models and not route.backend.auth else ()
    except (Broken, msgspec.DecodeError):
        return ""
    return f", with {len(names)} models" if names else ""
