"""Chat clients on a server of the Responses API.

    RESPONSES_URL=https://api.openai.com/v1 RESPONSES_KEY=… uvicorn service:app
    curl localhost:8000/v1/chat/completions -d '{"model": "gpt-5", "stream": true, "messages": […], "tools": […]}'

The request is converted, the server's answer is translated back, streamed or not, and calls arrive with the names and
ids of the client. Errors of the server become errors of Chat Completions.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from toolwire import BadRequest, ConvertedRequest, Failure, convert_request, encode_error

URL = os.environ.get("RESPONSES_URL", "https://api.openai.com/v1").rstrip("/")
KEY = os.environ.get("RESPONSES_KEY", "")
TIMEOUT = httpx.Timeout(300, connect=10)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep one pool of connections to the server."""
    async with httpx.AsyncClient(timeout=TIMEOUT) as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """One turn."""
    try:
        converted = convert_request("chat", "responses", await request.body())
    except BadRequest as error:
        return refused(error.failure)
    headers = {**converted.headers, "content-type": "application/json", "authorization": f"Bearer {KEY}"}
    client: httpx.AsyncClient = app.state.client
    asked = client.build_request("POST", URL + converted.path, content=converted.body, headers=headers)
    try:
        reply = await client.send(asked, stream=True)
    except httpx.HTTPError as error:
        return refused(Failure(502, "backend_unreachable", f"The server cannot be reached: {error}"))
    if reply.status_code != 200 or not converted.stream:
        return await whole(converted, reply)
    return StreamingResponse(streamed(converted, reply), media_type="text/event-stream")


async def streamed(converted: ConvertedRequest, reply: httpx.Response) -> AsyncIterator[bytes]:
    """The server's stream as a chat stream. A client that leaves closes both."""
    translator = converted.translator()
    try:
        async for chunk in reply.aiter_bytes():
            if data := translator.feed(chunk):
                yield data
            if translator.ended:
                return
    except httpx.HTTPError:
        pass  # a stream that breaks off has ended too early, which the client is told
    finally:
        await reply.aclose()
    yield translator.end()


async def whole(converted: ConvertedRequest, reply: httpx.Response) -> Response:
    """An answer in one piece, or an error of the server."""
    body = await reply.aread()
    if reply.status_code != 200:
        return refused(converted.failure(reply.status_code, body, reply.headers))
    turn = converted.decode_body(body)
    if turn.failure is not None:
        return refused(turn.failure)
    return Response(converted.translate_body(body), media_type="application/json")


def refused(failure: Failure) -> Response:
    """A failure as a chat client knows it."""
    headers = {"retry-after": failure.retry_after} if failure.retry_after else None
    return Response(encode_error("chat", failure), failure.status, headers, "application/json")
