"""Probes of a model server: empty requests, which cost nothing.

The server rejects a missing or wrong key, or else the request itself; at a wrong address there is no such operation.
Every request goes to the origin of the given address: redirects are not followed.
"""

import asyncio
import re
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec

from toolwire.backends.decoder import UNREADABLE
from toolwire.config.presets import with_preset
from toolwire.config.settings import Backend, Settings
from toolwire.core.backend import Post
from toolwire.protocols import PROTOCOLS, http_backends
from toolwire.turns.backends import make_route
from toolwire.turns.route import Route
from toolwire.upstream.http import HttpSession, HttpUpstream, SmallAnswer
from toolwire.upstream.reply import Broken

PROBE_TIMEOUT = 6.0
"""Seconds for all requests to one server."""

_KEY_REFUSED = re.compile(
    rb"(incorrect|invalid|missing|expired)\W+api.?key|api.?key\W+(is\W+)?(not valid|invalid)"
    rb"|(missing|invalid)\W+authorization",
    re.IGNORECASE,
)
"""Errors of servers that refuse a key with another status: xAI and Gemini answer 400."""
_ERROR = re.compile(rb'\s*\{\s*"error"')


class ServerNotFound(Exception):
    """No API was found; the message is one line for the user."""


class ModelServer(msgspec.Struct, frozen=True):
    """A server, as it answered."""

    base_url: str
    kinds: tuple[str, ...]
    """The protocols that it speaks, as kinds of backends; while it refuses the key, those that it may speak."""
    refuses_key: bool
    """Whether it wants a key, or another one."""
    models: tuple[str, ...] = ()
    owner: str = ""
    """The `owned_by` of its models."""

    def __str__(self) -> str:
        apis = ", ".join(PROTOCOLS[kind].title for kind in self.kinds)
        models = f"; {len(self.models)} models" if self.models else ""
        return f"{self.base_url}: {'a key is needed' if self.refuses_key else f'{apis}{models}'}"


class _Model(msgspec.Struct):
    id: str
    owned_by: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


def refuses_key(answer: SmallAnswer) -> bool:
    """Whether a server refuses the key, or the lack of one."""
    return answer.status in (401, 403) or bool(_KEY_REFUSED.search(answer.body[:2000]))


def has_operation(answer: SmallAnswer) -> bool:
    """Whether the server has the operation, so that it rejects only the empty request."""
    if answer.status < 300 and _ERROR.match(answer.body):  # LM Studio's answer for an unknown path
        return False
    return answer.status not in (404, 405) and not 300 <= answer.status < 400 and "html" not in answer.content_type


def list_nearby_urls(base: str) -> list[str]:
    """Other addresses of the same origin where an API may be."""
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(base))
    other = base.removesuffix("/v1") if base.endswith("/v1") else f"{base}/v1"
    others = dict.fromkeys((other, f"{origin}/v1", f"{origin}/api/v1", origin))
    return [url for url in others if url != base]


def explain_silence(error: Broken | TimeoutError) -> str:
    """Why there is no answer."""
    if isinstance(error, TimeoutError):
        return f"no answer in {PROBE_TIMEOUT:.0f} seconds; is base_url right, or a proxy needed?"
    message = error.failure.message.replace("The backend", "it", 1)
    return f"{message} {error.failure.hint}".rstrip()


async def find_server(url: str, key: str = "", preset: str = "") -> ModelServer:
    """Find out which protocols a server speaks at an address or near it. Raises `ServerNotFound`."""
    faults: list[str] = []
    try:
        async with asyncio.timeout(PROBE_TIMEOUT), HttpSession(Settings().timeouts) as session:
            for base in (url, *list_nearby_urls(url)):
                entries = [{"name": "", "kind": kind, "base_url": base, "api_key_env": ""} for kind in http_backends()]
                filled = [with_preset(entry, preset) if preset else entry for entry in entries]
                routes = [make_route(msgspec.convert(each, Backend), Settings(), session, None) for each in filled]
                answers = await asyncio.gather(*(_send_empty_request(route, key) for route in routes))
                found: list[tuple[Route, SmallAnswer]] = []
                for route, answer in zip(routes, answers, strict=True):
                    if isinstance(answer, Broken):
                        faults.append(explain_silence(answer))
                    elif has_operation(answer):
                        found.append((route, answer))
                    else:
                        to = f", to {answer.location}" if answer.location else ""
                        faults.append(f"no known API answers here (status {answer.status}{to})")
                if found and any(isinstance(answer, SmallAnswer) and answer.status < 500 for answer in answers):
                    return await _describe(base, found, key)
                faults += [f"it answers with status {answer.status}; try again later" for _, answer in found]
                if all(isinstance(answer, Broken) for answer in answers):
                    break
    except TimeoutError as error:
        faults.insert(0, explain_silence(error))
    raise ServerNotFound(f"{url}: {faults[0]}")


async def _send_empty_request(route: Route, key: str) -> SmallAnswer | Broken:
    assert isinstance(route.upstream, HttpUpstream)
    try:
        return await route.upstream.fetch(Post(http_backends()[route.backend.kind].path, b"{}"), key)
    except Broken as error:
        return error


async def _describe(base: str, found: list[tuple[Route, SmallAnswer]], key: str) -> ModelServer:
    usable = [route for route, answer in found if not refuses_key(answer)]
    routes = usable or [route for route, _ in found]
    models: list[_Model] = []
    if routes[0].list_models is not None:
        with suppress(Broken, *UNREADABLE):
            models = msgspec.json.decode(await routes[0].list_models(key), type=_Models).data
    return ModelServer(
        base,
        tuple(route.backend.kind for route in routes),
        not usable,
        tuple(model.id for model in models),
        next((model.owned_by for model in models if model.owned_by), ""),
    )
