"""Clients whose every answer of the Responses endpoints is overheard, and held against the rules of the protocol."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
import openai

from tests.sdk.turns import TIME, WEATHER
from tests.support.checked import responses_faults
from tests.support.client_readers import event_faults, read_stream
from tests.support.gateway import Gateway
from tests.support.schemas import response_errors

SETTINGS = {"api_key": "test", "max_retries": 0, "timeout": 30}

GET_WEATHER = {"type": "function", **WEATHER["function"], "strict": False}
GET_TIME = {"type": "function", **TIME["function"], "strict": False}
RUN = {"type": "custom", "name": "run"}


def output_of(call_id: str, output: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def user(*words: str) -> list[dict[str, Any]]:
    """Input items: what the user said, one message each."""
    return [{"role": "user", "content": each} for each in words]


class Heard:
    """One answer, as far as the client read it."""

    def __init__(self, url: httpx2.URL, content_type: str) -> None:
        self.url = url
        self.content_type = content_type
        self.body = bytearray()
        self.is_whole = False

    def faults(self) -> list[str]:
        if self.content_type.startswith("application/json"):
            data = json.loads(self.body)
            is_response = data.get("object") == "response" and not data.get("deleted")
            return response_errors(data) if is_response else []
        if not self.content_type.startswith("text/event-stream"):
            return [f"{self.url} answers in {self.content_type!r}."]
        is_part = "starting_after" in self.url.params
        # A client that has read [DONE] reads no further; one that left before is not told everything.
        if not (is_part or self.is_whole or b"data: [DONE]\n\n" in self.body):
            return []
        stream = read_stream(bytes(self.body))
        faults = event_faults(data for _, data in stream.frames)
        return faults if is_part else [*responses_faults(stream.frames, done=stream.done), *faults]


class Ears:
    """All answers of one client."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []

    def listen(self, request: httpx2.Request, response: httpx2.Response) -> Heard | None:
        if response.status_code != 200 or "/responses" not in request.url.path:
            return None
        heard = Heard(request.url, response.headers.get("content-type", ""))
        self.heard.append(heard)
        return heard

    def check(self) -> None:
        faults = [fault for heard in self.heard for fault in heard.faults()]
        assert not faults, faults


class _Tee(httpx2.SyncByteStream):
    def __init__(self, inner: Any, heard: Heard) -> None:
        self._inner = inner
        self._heard = heard

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._inner:
            self._heard.body += piece
            yield piece
        self._heard.is_whole = True

    def close(self) -> None:
        self._inner.close()


class _AsyncTee(httpx2.AsyncByteStream):
    def __init__(self, inner: Any, heard: Heard) -> None:
        self._inner = inner
        self._heard = heard

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            self._heard.body += piece
            yield piece
        self._heard.is_whole = True

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Wire(httpx2.HTTPTransport):
    def __init__(self, ears: Ears) -> None:
        super().__init__(verify=False)
        self._ears = ears

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = super().handle_request(request)
        heard = self._ears.listen(request, response)
        if heard is not None:
            response.stream = _Tee(response.stream, heard)
        return response


class _AsyncWire(httpx2.AsyncHTTPTransport):
    def __init__(self, ears: Ears) -> None:
        super().__init__(verify=False)
        self._ears = ears

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        heard = self._ears.listen(request, response)
        if heard is not None:
            response.stream = _AsyncTee(response.stream, heard)
        return response


def transports(gateway: Gateway, ids: list[str]) -> list[str | None]:
    """How each of these responses was asked for, by the gateway's own log."""
    end = time.monotonic() + 60
    while True:
        known = {f"resp_{line['turn']}": line.get("transport", "http") for line in gateway.turns()}
        if set(ids) <= set(known) or time.monotonic() > end:
            return [known.get(id) for id in ids]
        time.sleep(0.02)


@contextmanager
def watched_http() -> Iterator[httpx2.Client]:
    """A connection pool for clients that take one; what was heard is checked at the end."""
    ears = Ears()
    with httpx2.Client(transport=_Wire(ears), timeout=120) as http:
        yield http
    ears.check()


@asynccontextmanager
async def watched_async_http() -> AsyncIterator[httpx2.AsyncClient]:
    ears = Ears()
    async with httpx2.AsyncClient(transport=_AsyncWire(ears), timeout=120) as http:
        yield http
    ears.check()


@contextmanager
def watched_client(base_url: str) -> Iterator[openai.OpenAI]:
    with watched_http() as http, openai.OpenAI(base_url=base_url, http_client=http, **SETTINGS) as client:
        yield client


@asynccontextmanager
async def watched_async_client(base_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with watched_async_http() as http:
        async with openai.AsyncOpenAI(base_url=base_url, http_client=http, **SETTINGS) as client:
            yield client
