"""Endpoints that read and change stored responses, their input items, and conversations."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive

from toolwire.core.errors import BadRequest
from toolwire.dialects import responses
from toolwire.dialects.reading import read
from toolwire.gateway.body import read_body, stepped
from toolwire.gateway.exchange import Endpoint, Exchange
from toolwire.gateway.http import number
from toolwire.gateway.keys import Caller
from toolwire.gateway.responses.history import given_items
from toolwire.gateway.responses.operations import State
from toolwire.gateway.responses.stored_response import response_not_found
from toolwire.gateway.sinks import SSE_HEADERS, HttpSink
from toolwire.memory.store import Conversation, KeptItem, Page, Record, StoreFailed
from toolwire.turns.routes import counted

Raw = msgspec.Raw
MAX_PAGE_ITEMS = 100
STOP_TIMEOUT = 20.0
"""Seconds for which a request that stops a run of another process waits for its end."""
STOP_POLL_INTERVAL = 0.05

_CLAIM = "toolwire.claim"
"""The key of a scope with the claim of its exchange."""

_encode = msgspec.json.Encoder().encode


class _NewConversation(msgspec.Struct):
    metadata: dict[str, str] | None = None
    items: list[Raw] | None = None


class _NewItems(msgspec.Struct):
    items: list[Raw]


_decode_conversation = msgspec.json.Decoder(_NewConversation).decode
_decode_items = msgspec.json.Decoder(_NewItems).decode


class _Background(msgspec.Struct):
    background: bool | None = None


class Resources:
    """The handlers, as routes."""

    def __init__(self, state: Callable[[], State]) -> None:
        self._get_state = state

    def routes(self) -> list[Route]:
        one, conversation = "/v1/responses/{response_id}", "/v1/conversations/{conversation_id}"
        table: list[tuple[str, str, Callable[[Request, Caller], Awaitable[Response]]]] = [
            ("GET", one, self._retrieve),
            ("DELETE", one, self._delete),
            ("POST", f"{one}/cancel", self._cancel),
            ("GET", f"{one}/input_items", self._input_items),
            ("POST", "/v1/conversations", self._create_conversation),
            ("GET", conversation, self._retrieve_conversation),
            ("POST", conversation, self._update_conversation),
            ("DELETE", conversation, self._delete_conversation),
            ("POST", f"{conversation}/items", self._create_items),
            ("GET", f"{conversation}/items", self._list_items),
            ("GET", f"{conversation}/items/{{item_id}}", self._retrieve_item),
            ("DELETE", f"{conversation}/items/{{item_id}}", self._delete_item),
        ]
        counting = Route("/v1/responses/input_tokens", self._endpoint(self._input_tokens), methods=["POST"])
        return [counting, *(Route(path, self._endpoint(handler), methods=[method]) for method, path, handler in table)]

    def _endpoint(self, handler: Callable[[Request, Caller], Awaitable[Response]]) -> Endpoint:
        """A handler behind authentication, without a log line of its own."""

        async def operation(exchange: Exchange, receive: Receive) -> None:
            exchange.is_reported = False
            caller = exchange.enter()
            request = Request({**exchange.scope, _CLAIM: exchange.claim}, receive)
            response = await handler(request, caller)
            sink = exchange.sink
            assert isinstance(sink, HttpSink)
            await sink.send_response(response, exchange.scope, receive)

        return Endpoint(lambda: self._state.shared, "responses", operation)

    @property
    def _state(self) -> State:
        return self._get_state()

    # Responses

    async def _record(self, request: Request, caller: Caller) -> Record:
        return await self._state.stored.load(caller.owner, request.path_params["response_id"])

    async def _respond(self, record: Record, caller: Caller) -> Response:
        stored = await self._state.stored.body(caller.owner, record)
        response = _json_bytes(stored.body)
        response.raw_headers += stored.headers
        return response

    async def _retrieve(self, request: Request, caller: Caller) -> Response:
        streamed = request.query_params.get("stream", "").lower() in ("true", "1")
        record = await self._record(request, caller)
        if not streamed:
            return await self._respond(record, caller)
        after = number(request, "starting_after", -1, -1)
        stream = await self._state.stored.stream(caller.owner, record, after + 1)
        headers = {name.decode(): value.decode() for name, value in SSE_HEADERS}
        return StreamingResponse(stream, headers=headers)

    async def _delete(self, request: Request, caller: Caller) -> Response:
        id, store = request.path_params["response_id"], self._state.shared.store
        with suppress(StoreFailed):  # the store is asked again below
            await self._stop(caller.owner, id)
        is_known = self._state.runs.forget(caller.owner, id)
        if not await store.delete(caller.owner, id) and not is_known:
            raise response_not_found(id)
        return _json({"id": id, "object": "response", "deleted": True})

    async def _cancel(self, request: Request, caller: Caller) -> Response:
        id = request.path_params["response_id"]
        await self._stop(caller.owner, id)
        unstored = self._state.runs.unstored(caller.owner, id)
        record = unstored.turn.record if unstored is not None else await self._record(request, caller)
        if not msgspec.json.decode(record.fields, type=_Background).background:
            message = "Only a response that was created with background: true can be cancelled."
            raise BadRequest(message, "response_id", "not_cancellable")
        return await self._respond(record, caller)

    async def _stop(self, owner: str, id: str) -> None:
        """Stop a background run, whichever process owns it, and wait for its end within a timeout."""
        store, running = self._state.shared.store, self._state.runs.get(owner, id)
        if self._state.runs.unstored(owner, id) is not None:
            return
        try:
            is_running = await store.cancel(owner, id)
        except StoreFailed:
            if running is None:
                raise
            is_running = False
        if running is not None:
            await running.cancel_and_wait()
            return
        ends = time.monotonic() + STOP_TIMEOUT
        while is_running and time.monotonic() < ends:
            await asyncio.sleep(STOP_POLL_INTERVAL)
            record = await store.load(owner, id)
            is_running = record is not None and not record.is_over

    async def _input_items(self, request: Request, caller: Caller) -> Response:
        record = await self._record(request, caller)
        return await self._page(request, caller, record.id)

    async def _page(self, request: Request, caller: Caller, holder: str) -> Response:
        after, order = request.query_params.get("after", ""), request.query_params.get("order", "desc")
        if order not in ("asc", "desc"):
            raise BadRequest(f"order must be asc or desc; received {order!r}.", "order")
        limit = number(request, "limit", 20, 1)
        if limit > MAX_PAGE_ITEMS:
            raise BadRequest(f"limit must be at most {MAX_PAGE_ITEMS}; received {limit}.", "limit")
        shared = self._state.shared
        page = await shared.store.page(caller.owner, holder, after, limit, order, shared.bounds.body)
        if page is None:
            raise BadRequest(f"after: There is no item {after!r} here.", "after")
        return _json(_listed(page))

    async def _input_tokens(self, request: Request, caller: Caller) -> Response:
        body, bounds = await self._body(request), self._state.shared.bounds
        asked = await stepped(responses.reading_request(body, bounds, needs_input=False), len(body))
        opened = await self._state.history.open(caller.owner, asked, request.scope[_CLAIM])
        tokens, headers = await counted(self._state.shared.engine.router, opened.request, caller.upstream_key)
        answer = _json({"object": "response.input_tokens", "input_tokens": tokens})
        answer.headers.update(headers)
        return answer

    async def _body(self, request: Request) -> bytes:
        claim = request.scope[_CLAIM]
        return await read_body(dict(request.scope["headers"]), request.receive, self._state.shared.bounds, claim)

    # Conversations

    async def _conversation(self, request: Request, caller: Caller) -> Conversation:
        id = request.path_params["conversation_id"]
        found = await self._state.shared.store.conversation(caller.owner, id)
        if found is None:
            message = f"There is no conversation {id!r} here."
            raise BadRequest(message, "conversation_id", "conversation_not_found", status=404)
        return found

    async def _create_conversation(self, request: Request, caller: Caller) -> Response:
        asked = read(_decode_conversation, await self._body(request) or b"{}")
        seed = token_hex(12)
        conversation = Conversation(f"conv_{seed}", int(time.time()), _encode(asked.metadata or {}))
        await self._state.shared.store.put_conversation(caller.owner, conversation)
        await self._add(caller, conversation.id, asked.items or (), seed)
        return _json(_shown(conversation))

    async def _retrieve_conversation(self, request: Request, caller: Caller) -> Response:
        return _json(_shown(await self._conversation(request, caller)))

    async def _update_conversation(self, request: Request, caller: Caller) -> Response:
        conversation = await self._conversation(request, caller)
        asked = read(_decode_conversation, await self._body(request))
        changed = msgspec.structs.replace(conversation, metadata=_encode(asked.metadata or {}))
        await self._state.shared.store.put_conversation(caller.owner, changed)
        return _json(_shown(changed))

    async def _delete_conversation(self, request: Request, caller: Caller) -> Response:
        conversation = await self._conversation(request, caller)
        await self._state.shared.store.delete(caller.owner, conversation.id, "conversation")
        return _json({"id": conversation.id, "object": "conversation.deleted", "deleted": True})

    async def _create_items(self, request: Request, caller: Caller) -> Response:
        conversation = await self._conversation(request, caller)
        asked = read(_decode_items, await self._body(request))
        items = await self._add(caller, conversation.id, asked.items, token_hex(12))
        return _json(_listed(Page(items, has_more=False)))

    async def _add(self, caller: Caller, holder: str, items: Sequence[Raw], seed: str) -> list[KeptItem]:
        responses.check_items(items, "items")
        kept = given_items(items, seed)
        if kept:
            await self._state.shared.store.add_items(caller.owner, holder, kept)
        return kept

    async def _list_items(self, request: Request, caller: Caller) -> Response:
        conversation = await self._conversation(request, caller)
        return await self._page(request, caller, conversation.id)

    async def _item(self, request: Request, caller: Caller) -> tuple[str, Raw]:
        conversation = await self._conversation(request, caller)
        id = request.path_params["item_id"]
        raw = await self._state.shared.store.item(caller.owner, conversation.id, id)
        if raw is not None:
            return id, raw
        message = f"There is no item {id!r} in this conversation."
        raise BadRequest(message, "item_id", "item_not_found", status=404)

    async def _retrieve_item(self, request: Request, caller: Caller) -> Response:
        _, raw = await self._item(request, caller)
        return _json_bytes(bytes(raw))

    async def _delete_item(self, request: Request, caller: Caller) -> Response:
        id, _ = await self._item(request, caller)
        holder = request.path_params["conversation_id"]
        await self._state.shared.store.delete_item(caller.owner, holder, id)
        return _json(_shown(await self._conversation(request, caller)))


def _shown(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": int(conversation.created),
        "metadata": Raw(conversation.metadata),
    }


def _listed(page: Page) -> dict[str, Any]:
    items = page.items
    return {
        "object": "list",
        "data": [item.raw for item in items],
        "first_id": items[0].id if items else None,
        "last_id": items[-1].id if items else None,
        "has_more": page.has_more,
    }


def _json(value: object) -> Response:
    return _json_bytes(_encode(value))


def _json_bytes(body: bytes) -> Response:
    return Response(body, media_type="application/json")
