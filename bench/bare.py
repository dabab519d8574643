"""The least a Python gateway can do: Responses SSE in, Chat Completions SSE out, nothing else. A yardstick, not an example.

usage: bare.py PORT UPSTREAM_URL       (uvicorn, uvloop, httptools, aiohttp, msgspec)
No policies, no checks, no storage, no errors. `run.py` runs it beside the real gateway: the ratio of the two is stable on a noisy
machine.
"""

import sys

import aiohttp
import msgspec
import uvicorn

PORT, UPSTREAM = int(sys.argv[1]), sys.argv[2]


class Item(msgspec.Struct):
    type: str = ""
    id: str = ""
    call_id: str = ""
    name: str = ""


class Event(msgspec.Struct):
    type: str
    delta: str = ""
    item_id: str = ""
    item: Item | None = None


class Ask(msgspec.Struct):
    model: str
    stream: bool = False


decode_event, decode_ask, encode = (
    msgspec.json.Decoder(Event).decode,
    msgspec.json.Decoder(Ask).decode,
    msgspec.json.encode,
)


class Translator:
    def __init__(self, model):
        self.rest, self.calls, self.model = b"", {}, model

    def chunk(self, delta, finish=None):
        body = {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": self.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }
        return b"data: " + encode(body) + b"\n\n"

    def feed(self, data):
        *blocks, self.rest = (self.rest + data).split(b"\n\n")
        out = []
        for block in blocks:
            at = block.find(b"data: ")
            if at < 0 or block[at + 6 : at + 7] != b"{":
                continue
            event = decode_event(block[at + 6 :])
            match event.type:
                case "response.output_text.delta":
                    out.append(self.chunk({"content": event.delta}))
                case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                    out.append(self.chunk({"reasoning_content": event.delta}))
                case "response.function_call_arguments.delta":
                    out.append(
                        self.chunk(
                            {
                                "tool_calls": [
                                    {"index": self.calls[event.item_id], "function": {"arguments": event.delta}}
                                ]
                            }
                        )
                    )
                case "response.output_item.added" if event.item and event.item.type == "function_call":
                    index = self.calls[event.item.id] = len(self.calls)
                    call = {
                        "index": index,
                        "id": event.item.call_id,
                        "type": "function",
                        "function": {"name": event.item.name, "arguments": ""},
                    }
                    out.append(self.chunk({"tool_calls": [call]}))
                case "response.created":
                    out.append(self.chunk({"role": "assistant", "content": None}))
                case "response.completed":
                    out.append(self.chunk({}, "tool_calls" if self.calls else "stop") + b"data: [DONE]\n\n")
        return b"".join(out)


session = None


async def app(scope, receive, send):
    global session
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if scope["method"] == "GET":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})
        return
    ask = decode_ask(body)
    plain = not ask.stream
    kind = b"application/json" if plain else b"text/event-stream"
    async with session.post(UPSTREAM, data=body, headers={"content-type": "application/json"}) as reply:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        if plain:
            answer = msgspec.json.decode(await reply.read())
            await send(
                {
                    "type": "http.response.body",
                    "body": encode(
                        {"object": "chat.completion", "model": ask.model, "choices": answer.get("output", [])}
                    ),
                }
            )
            return
        translator = Translator(ask.model)
        async for data in reply.content.iter_any():
            if out := translator.feed(data):
                await send({"type": "http.response.body", "body": out, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


uvicorn.run(app, host="127.0.0.1", port=PORT, loop="uvloop", http="httptools", log_level="error", access_log=False)
