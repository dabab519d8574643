"""Requests and answers of the console, and threads for long work.

No other page may frame, read or cache an answer, or load anything into it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from toolwire.core.errors import BadRequest, Failure
from toolwire.gateway.http import PREFIX, ClientGone, send_pieces
from toolwire.gateway.memory_budget import MemoryBudget, Reservation

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
SEND_TIMEOUT = 120.0
"""Seconds within which the viewer must read an answer."""

T = TypeVar("T")
P = ParamSpec("P")
_threads = ThreadPoolExecutor(2, "console")
"""The console has its own threads, so that it never takes those that the rest of the process needs."""


async def run_in_thread(work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Run long work in a thread, so that it does not block the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(work, *given, **named))


def port_of(request: Request) -> int:
    server = request.scope.get("server")
    return int(server[1]) if server and server[1] else 0


def prefix_of(request: Request) -> str:
    """The prefix that the gateway is mounted at, as a URL writes it; empty if there is none."""
    return quote(request.scope.get(PREFIX, ""))


def address_of(request: Request) -> str:
    """The address of this gateway for programs on this machine."""
    host, port = request.scope["server"]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{prefix_of(request)}"


async def read_body(request: Request, limit: int, claim: Reservation | None = None) -> bytes:
    """The body of a request; its bytes are added to the claim. Raises `BadRequest` beyond the limit."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if claim is not None:
            claim.grow(len(piece))
        if len(body) > limit:
            raise BadRequest("The body is too large.", code="request_too_large", status=413)
    return bytes(body)


def make_error(failure: Failure) -> Response:
    body = msgspec.json.encode({"error": {"code": failure.code, "message": failure.message}})
    return Response(body, failure.status, HEADERS, "application/json")


class _SharedAnswer(msgspec.Struct):
    """An answer that is being built, or sent to the viewers that requested it."""

    task: asyncio.Task[Response]
    claim: Reservation
    users: int = 0


class SharedAnswers:
    """Answers whose bytes count against the memory budget.

    Identical requests that arrive while an answer is built share it: it is built, held and counted once. A later
    request gets a new one.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._shared: dict[object, _SharedAnswer] = {}

    async def send(self, key: object, make: Callable[[], Coroutine[None, None, Response]], send: Send) -> None:
        """Send the answer for this key, which `make` builds if no request is waiting for it."""
        shared = self._shared.get(key)
        if shared is None or shared.task.done():
            claim = Reservation(self._budget)

            async def build() -> Response:
                response = await make()
                claim.grow(len(response.body))
                return response

            shared = self._shared[key] = _SharedAnswer(asyncio.create_task(build()), claim)
        shared.users += 1
        try:
            response = await asyncio.shield(shared.task)  # a viewer that disconnects does not cancel it for others
            async with asyncio.timeout(SEND_TIMEOUT):
                start = {"status": response.status_code, "headers": response.raw_headers}
                await send({"type": "http.response.start", **start})
                await send_pieces(send, (bytes(response.body),), last=True)
        except TimeoutError:
            raise ClientGone from None
        finally:
            shared.users -= 1
            if not shared.users:
                shared.task.cancel()
                shared.claim.release()
                if self._shared.get(key) is shared:
                    del self._shared[key]
