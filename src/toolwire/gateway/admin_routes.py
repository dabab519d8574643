"""The admin API: issues, lists, rotates and revokes keys, and shows usage. It is off unless it has a key.

POST /admin/v1/keys                 {"name":"ann","models":["gpt-*"],"expires_at":1798761600}
                                    {"object":"key","name":"ann","status":"active",…,"key":"sk-tw-…"}
GET  /admin/v1/keys                 {"object":"list","data":[…]}
GET  /admin/v1/keys/{name}
POST /admin/v1/keys/{name}          {"limits":{"requests_per_minute":60}}
POST /admin/v1/keys/{name}/rotate   {"expires_at":1798761600}, or nothing
POST /admin/v1/keys/{name}/revoke
GET  /admin/v1/usage?by=key,model&since=7d
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolwire.dialects.reading import read
from toolwire.gateway.body import read_body
from toolwire.gateway.issued_keys import Unauthorized
from toolwire.gateway.key_admin import ExpiryTime, KeyAdmin, KeyUpdate, NewKey
from toolwire.gateway.keys import find_key
from toolwire.gateway.memory_budget import Reservation
from toolwire.gateway.shared import Shared
from toolwire.gateway.usage_report import make_report, read_question

T = TypeVar("T")

Handler = Callable[[Request], Awaitable[object]]


class _Rotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    expires_at: ExpiryTime | None = None


_decode_update = msgspec.json.Decoder(KeyUpdate).decode
_decode_new, _decode_rotation = msgspec.json.Decoder(NewKey).decode, msgspec.json.Decoder(_Rotation).decode


class AdminRoutes:
    """The handlers, as routes."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._admin = KeyAdmin(shared.store, shared.settings)

    def make_routes(self) -> list[Route]:
        one, settings = "/admin/v1/keys/{name}", self._shared.settings
        usage = [Route("/admin/v1/usage", self._answer(self.show_usage), methods=["GET"])]
        if not settings.access.issued_keys:
            return usage
        return [
            *(usage if settings.usage.enabled else ()),
            Route("/admin/v1/keys", self._answer(self.list_keys), methods=["GET"]),
            Route("/admin/v1/keys", self._answer(self.create_key), methods=["POST"]),
            Route(one, self._answer(self.show_key), methods=["GET"]),
            Route(one, self._answer(self.update_key), methods=["POST"]),
            Route(f"{one}/rotate", self._answer(self.rotate_key), methods=["POST"]),
            Route(f"{one}/revoke", self._answer(self.revoke_key), methods=["POST"]),
        ]

    async def list_keys(self, request: Request) -> object:
        return {"object": "list", "data": await self._admin.list()}

    async def create_key(self, request: Request) -> object:
        return await self._admin.create(await self._read(request, _decode_new))

    async def show_key(self, request: Request) -> object:
        return await self._admin.find(request.path_params["name"])

    async def update_key(self, request: Request) -> object:
        changes = await self._read(request, _decode_update)
        return await self._admin.update(request.path_params["name"], changes)

    async def rotate_key(self, request: Request) -> object:
        rotation = await self._read(request, _decode_rotation)
        return await self._admin.rotate(request.path_params["name"], rotation.expires_at)

    async def revoke_key(self, request: Request) -> object:
        return await self._admin.revoke(request.path_params["name"])

    async def show_usage(self, request: Request) -> object:
        given = request.query_params
        question = read_question(given.get("by", "key,model"), given.get("since", "7d"), given.get("until", ""))
        rows = await make_report(self._shared.store, question)
        return {"object": "list", "since": question.since, "until": question.until, "data": rows}

    async def _read(self, request: Request, decode: Callable[[bytes], T]) -> T:
        """The body of a request; one without a body has an empty object."""
        shared, headers = self._shared, dict(request.scope["headers"])
        with Reservation(shared.memory_budget) as reservation:
            body = await read_body(headers, request.receive, shared.bounds, reservation)
            return read(decode, body or b"{}", "The body")

    def _answer(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """A route's endpoint: it admits only the admin key, and no cache keeps what it answers."""

        async def answer(request: Request) -> Response:
            presented = find_key(dict(request.scope["headers"]))
            if not self._shared.keys.is_admin(presented):
                raise Unauthorized("The admin API needs its own key: send `Authorization: Bearer KEY`.")
            found = await handler(request)
            return Response(msgspec.json.encode(found), 200, {"cache-control": "no-store"}, "application/json")

        return answer
