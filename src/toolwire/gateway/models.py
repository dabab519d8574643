"""The models that can be asked, in OpenAI's shape or, for whoever sends `anthropic-version`, in Anthropic's.

{"object":"list","data":[{"id":"demo","object":"model","created":0,"owned_by":"demo"}]}
{"data":[{"type":"model","id":"demo","display_name":"demo",…}],"has_more":false,"first_id":"demo","last_id":"demo"}
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolwire.core.errors import BadRequest
from toolwire.gateway.exchange import Shared
from toolwire.gateway.http import number

MOST_MODELS = 1000
"""Models of one page, at most, as at Anthropic."""

# What is not known of a model. Anthropic has the epoch for a release date that is unknown.
_UNKNOWN: dict[str, Any] = {
    "created_at": "1970-01-01T00:00:00Z",
    "lifecycle": "active",
    "capabilities": None,
    "line": None,
    "max_input_tokens": None,
    "max_tokens": None,
    "deprecated_at": None,
    "retires_at": None,
}


def is_anthropic(request: Request) -> bool:
    """Whether a client of Anthropic's API asks."""
    return "anthropic-version" in request.headers


class Models:
    """The handlers, as routes."""

    def __init__(self, shared: Callable[[], Shared]) -> None:
        self._shared = shared

    def routes(self) -> list[Route]:
        return [Route("/v1/models", self._list), Route("/v1/models/{model:path}", self._retrieve)]

    async def _list(self, request: Request) -> Response:
        caller = self._shared().keys.check(dict(request.scope["headers"]))
        vendor = "anthropic" if is_anthropic(request) else "openai"
        found = await self._shared().engine.router.models(caller.upstream_key, vendor)
        if is_anthropic(request):
            return _json(_page(request, [name for name, _ in found]))
        return _json({"object": "list", "data": [_as_openai(*each) for each in found]})

    async def _retrieve(self, request: Request) -> Response:
        self._shared().keys.check(dict(request.scope["headers"]))
        name = request.path_params["model"]
        owner = self._shared().engine.router.owner(name)
        return _json(_as_anthropic(name) if is_anthropic(request) else _as_openai(name, owner))


def _as_openai(name: str, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}


def _as_anthropic(name: str) -> dict[str, Any]:
    return {"type": "model", "id": name, "display_name": name, **_UNKNOWN}


def _page(request: Request, names: Sequence[str]) -> dict[str, Any]:
    """The page that is asked for: the first, or the one after or before a model."""
    limit = number(request, "limit", 20, 1)
    if limit > MOST_MODELS:
        raise BadRequest(f"limit must be at most {MOST_MODELS}; received {limit}.", "limit")
    after, before = (_cursor(request, field, names) for field in ("after_id", "before_id"))
    if after is not None and before is not None:
        raise BadRequest("after_id and before_id cannot both be sent.", "before_id")
    if before is not None:
        start, end = max(0, before - limit), before
        has_more = start > 0
    else:
        start = 0 if after is None else after + 1
        end = start + limit
        has_more = end < len(names)
    shown = names[start:end]
    return {
        "data": [_as_anthropic(name) for name in shown],
        "has_more": has_more,
        "first_id": shown[0] if shown else None,
        "last_id": shown[-1] if shown else None,
    }


def _cursor(request: Request, field: str, names: Sequence[str]) -> int | None:
    """The index of the model that a page begins or ends at."""
    name = request.query_params.get(field)
    if not name:
        return None
    if name not in names:
        raise BadRequest(f"{field}: There is no model {name!r} here.", field)
    return names.index(name)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
