"""Endpoints that read and change stored responses, their input items, and conversations."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive

from toolwire.core.errors import BadRequest
from toolwire.dialects import responses
from toolwire.dialects.reading import read
from toolwire.gateway.body import run_in_steps
from toolwire.gateway.endpoint import Endpoint
from toolwire.gateway.exchange import Exchange
from toolwire.gateway.http import read_number
from toolwire.gateway.responses.history import make_input_items
from toolwire.gateway.responses.operations import State
from toolwire.gateway.responses.stored_response import response_not_found
from toolwire.gateway.sinks import SSE_HEADERS, HttpSink
from toolwire.memory.store import Conversation, KeptItem, Page, Record, StoreFailed

Raw = msgspec.Raw
MAX_PAGE_ITEMS = 100
STOP_TIMEOUT = 20.0
"""Seconds for which a request that stops another process's run waits for its end."""
STOP_POLL_INTERVAL = 0.05

_encode = msgspec.json.Encoder().encode


class _NewConversation(msgspec.Struct):
    metadata: dict[str, str] | None = None
    items: list[Raw] | None = None


class _NewItems(msgspec.Struct):
    items: list[Raw]


class _Background(msgspec.Struct):
    background: bool | None = None


_decode_conversation = msgspec.json.Decoder(_NewConversation).decode
_decode_items = msgspec.json.Decoder(_NewItems).decode


def resource_routes(state: State) -> list[Route]:
    """The endpoints as routes."""

    def route(method: str, path: str, handler: Callable[[ResourceRequest], Awaitable[Response]]) -> Route:
        async def operation(exchange: Exchange, receive: Receive) -> None:
            sink = exchange.sink
            assert isinstance(sink, HttpSink)
            response = await handler(ResourceRequest(state, exchange, receive))
            await sink.send_response(response, exchange.scope, receive)

        return Route(path, Endpoint(state.shared, "responses", operation, is_turn=False), methods=[method])

    one, conversation = "/v1/responses/{response_id}", "/v1/conversations/{conversation_id}"
    return [
        route("POST", "/v1/responses/input_tokens", ResourceRequest.count_input_tokens),
        route("GET", one, ResourceRequest.retrieve),
        route("DELETE", one, ResourceRequest.delete),
        route("POST", f"{one}/cancel", ResourceRequest.cancel),
        route("GET", f"{one}/input_items", ResourceRequest.list_input_items),
        route("POST", "/v1/conversations", ResourceRequest.create_conversation),
        route("GET", conversation, ResourceRequest.retrieve_conversation),
        route("POST", conversation, ResourceRequest.update_conversation),
        route("DELETE", conversation, ResourceRequest.delete_conversation),
        route("POST", f"{conversation}/items", ResourceRequest.create_items),
        route("GET", f"{conversation}/items", ResourceRequest.list_items),
        route("GET", f"{conversation}/items/{{item_id}}", ResourceRequest.retrieve_item),
        route("DELETE", f"{conversation}/items/{{item_id}}", ResourceRequest.delete_item),
    ]


class ResourceRequest:
    """One authenticated request, with a handler for each endpoint."""

    def __init__(self, state: State, exchange: Exchange, receive: Receive) -> None:
        self._state = state
        self._store = state.shared.store
        self._exchange = exchange
        self._receive = receive
        self._caller = exchange.enter()
        self._owner = self._caller.owner
        self._request = Request(exchange.scope, receive)
        self._params: Mapping[str, str] = self._request.path_params

    # Responses

    async def retrieve(self) -> Response:
        streamed = self._request.query_params.get("stream", "").lower() in ("true", "1")
        record = await self._state.stored.load(self._owner, self._params["response_id"])
        if not streamed:
            return await self._respond(record)
        after = read_number(self._request, "starting_after", -1, -1)
        stream = await self._state.stored.open_stream(self._owner, record, after + 1)
        headers = {name.decode(): value.decode() for name, value in SSE_HEADERS}
        return StreamingResponse(stream, headers=headers)

    async def delete(self) -> Response:
        id = self._params["response_id"]
        with suppress(StoreFailed):  # the store is asked again below
            await self._stop(id)
        is_known = self._state.runs.forget(self._owner, id)
        if not await self._store.delete(self._owner, id) and not is_known:
            raise response_not_found(id)
        return _json({"id": id, "object": "response", "deleted": True})

    async def cancel(self) -> Response:
        id = self._params["response_id"]
        await self._stop(id)
        unstored = self._state.runs.get_unstored(self._owner, id)
        record = unstored.turn.record if unstored is not None else await self._state.stored.load(self._owner, id)
        if not msgspec.json.decode(record.fields, type=_Background).background:
            message = "Only a response that was created with background: true can be cancelled."
            raise BadRequest(message, "response_id", "not_cancellable")
        return await self._respond(record)

    async def list_input_items(self) -> Response:
        record = await self._state.stored.load(self._owner, self._params["response_id"])
        return await self._list_page(record.id)

    async def count_input_tokens(self) -> Response:
        body, shared = await self._exchange.read_body(self._receive), self._state.shared
        parsed = await run_in_steps(responses.read_request_steps(body, shared.bounds, needs_input=False), len(body))
        opened = await self._state.history.open(self._owner, parsed, self._exchange.reservation)
        tokens, headers = await shared.engine.router.count_tokens(
            opened.request, self._caller.upstream_key, self._caller.grant
        )
        answer = _json({"object": "response.input_tokens", "input_tokens": tokens})
        answer.headers.update(headers)
        return answer

    async def _respond(self, record: Record) -> Response:
        stored = await self._state.stored.read_body(self._owner, record)
        response = _json_bytes(stored.body)
        response.raw_headers += stored.headers
        return response

    async def _stop(self, id: str) -> None:
        """Stop a background run, whichever process owns it, and wait for its end within a timeout."""
        running = self._state.runs.get(self._owner, id)
        if self._state.runs.get_unstored(self._owner, id) is not None:
            return
        try:
            is_running = await self._store.cancel(self._owner, id)
        except StoreFailed:
            if running is None:
                raise
            is_running = False
        if running is not None:
            await running.cancel_and_wait()
            return
        deadline = time.monotonic() + STOP_TIMEOUT
        while is_running and time.monotonic() < deadline:
            await asyncio.sleep(STOP_POLL_INTERVAL)
            record = await self._store.load(self._owner, id)
            is_running = record is not None and not record.is_over

    # Conversations

    async def create_conversation(self) -> Response:
        parsed = read(_decode_conversation, await self._exchange.read_body(self._receive) or b"{}")
        seed = token_hex(12)
        conversation = Conversation(f"conv_{seed}", int(time.time()), _encode(parsed.metadata or {}))
        await self._store.put_conversation(self._owner, conversation)
        await self._add(conversation.id, parsed.items or (), seed)
        return _json_conversation(conversation)

    async def retrieve_conversation(self) -> Response:
        return _json_conversation(await self._load_conversation())

    async def update_conversation(self) -> Response:
        conversation = await self._load_conversation()
        parsed = read(_decode_conversation, await self._exchange.read_body(self._receive))
        changed = msgspec.structs.replace(conversation, metadata=_encode(parsed.metadata or {}))
        await self._store.put_conversation(self._owner, changed)
        return _json_conversation(changed)

    async def delete_conversation(self) -> Response:
        conversation = await self._load_conversation()
        await self._store.delete(self._owner, conversation.id, "conversation")
        return _json({"id": conversation.id, "object": "conversation.deleted", "deleted": True})

    async def create_items(self) -> Response:
        conversation = await self._load_conversation()
        parsed = read(_decode_items, await self._exchange.read_body(self._receive))
        items = await self._add(conversation.id, parsed.items, token_hex(12))
        return _json_page(Page(items, has_more=False))

    async def list_items(self) -> Response:
        return await self._list_page((await self._load_conversation()).id)

    async def retrieve_item(self) -> Response:
        return _json_bytes(bytes(await self._load_item()))

    async def delete_item(self) -> Response:
        await self._load_item()
        await self._store.delete_item(self._owner, self._params["conversation_id"], self._params["item_id"])
        return _json_conversation(await self._load_conversation())

    async def _load_conversation(self) -> Conversation:
        id = self._params["conversation_id"]
        found = await self._store.load_conversation(self._owner, id)
        if found is None:
            message = f"There is no conversation {id!r} here."
            raise BadRequest(message, "conversation_id", "conversation_not_found", status=404)
        return found

    async def _load_item(self) -> Raw:
        conversation = await self._load_conversation()
        raw = await self._store.load_item(self._owner, conversation.id, self._params["item_id"])
        if raw is None:
            message = f"There is no item {self._params['item_id']!r} in this conversation."
            raise BadRequest(message, "item_id", "item_not_found", status=404)
        return raw

    async def _add(self, holder: str, items: Sequence[Raw], seed: str) -> list[KeptItem]:
        responses.check_items(items, "items")
        kept = make_input_items(items, seed)
        if kept:
            await self._store.add_items(self._owner, holder, kept)
        return kept

    async def _list_page(self, holder: str) -> Response:
        query = self._request.query_params
        after, order = query.get("after", ""), query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise BadRequest(f"order must be asc or desc; received {order!r}.", "order")
        limit = read_number(self._request, "limit", 20, 1)
        if limit > MAX_PAGE_ITEMS:
            raise BadRequest(f"limit must be at most {MAX_PAGE_ITEMS}; received {limit}.", "limit")
        max_bytes = self._state.shared.bounds.body
        page = await self._store.load_page(self._owner, holder, after, limit, order, max_bytes)
        if page is None:
            raise BadRequest(f"after: There is no item {after!r} here.", "after")
        return _json_page(page)


def _json_conversation(conversation: Conversation) -> Response:
    return _json(
        {
            "id": conversation.id,
            "object": "conversation",
            "created_at": int(conversation.created),
            "metadata": Raw(conversation.metadata),
        }
    )


def _json_page(page: Page) -> Response:
    items = page.items
    return _json(
        {
            "object": "list",
            "data": [item.raw for item in items],
            "first_id": items[0].id if items else None,
            "last_id": items[-1].id if items else None,
            "has_more": page.has_more,
        }
    )


def _json(value: object) -> Response:
    return _json_bytes(_encode(value))


def _json_bytes(body: bytes) -> Response:
    return Response(body, media_type="application/json")
