"""Clients whose every answer of the Responses endpoints is overheard, and held against the rules of the protocol."""

import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
import openai

from tests.sdk.turns import TIME, WEATHER
from tests.support.checked import responses_faults
from tests.support.gateway import Gateway
from tests.support.schemas import event_errors, response_errors

SETTINGS = {"api_key": "test", "max_retries": 0, "timeout": 30}

GET_WEATHER = {"type": "function", **WEATHER["function"], "strict": False}
GET_TIME = {"type": "function", **TIME["function"], "strict": False}
RUN = {"type": "custom", "name": "run"}


def output_of(call_id: str, output: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def user(*words: str) -> list[dict[str, Any]]:
    """Input items: what the user said, one message each."""
    return [{"role": "user", "content": each} for each in words]


def read_events(body: bytes | bytearray) -> tuple[list[tuple[str | None, Any]], bool]:
    """The named events of a stream, and whether `[DONE]` came last. Each is one `event` and one `data` line."""
    lines = [line for line in body.decode().split("\n") if not line.startswith(": ")]
    *blocks, rest = "\n".join(lines).split("\n\n")
    assert rest == "", f"the stream ends in mid-event: {rest!r}"
    blocks = [block for block in blocks if block]  # after a comment
    done = blocks[-1:] == ["data: [DONE]"]
    frames: list[tuple[str | None, Any]] = []
    for block in blocks[: len(blocks) - done]:
        name, data = block.split("\n")
        assert (name[:7], data[:6]) == ("event: ", "data: "), block
        frames.append((name[7:], json.loads(data[6:])))
    return frames, done


def stream_faults(body: bytes | bytearray) -> list[str]:
    """Everything that is wrong with a whole stream."""
    frames, done = read_events(body)
    return [*responses_faults(frames, done=done), *schema_faults(data for _, data in frames)]


def schema_faults(events: Iterable[Any]) -> list[str]:
    return [fault for data in events for fault in event_errors(data)]


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
        if "starting_after" in self.url.params:
            return schema_faults(data for _, data in read_events(self.body)[0])
        # A client that has read [DONE] reads no further; one that left before is not told everything.
        return stream_faults(self.body) if self.is_whole or b"data: [DONE]\n\n" in self.body else []


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
