"""A real MCP server, made with the mcp package, for the tests of our client.

    python tests/agent/mcp_server.py                    over stdin and stdout
    python tests/agent/mcp_server.py --http [--port N]  over streamable HTTP; the first line of output is the address

--legacy   it does not know server/discover, as servers before 2026 did not, and over stdio it ends when it is asked that
--modern   it does not know the handshake, as servers need not since then
--many     it has 100 tools more, listed 30 at a time
--endless  its list of tools always goes on
--bare     it has nothing at all
--key KEY  over HTTP, it wants `Authorization: Bearer KEY`
"""

import argparse
import asyncio
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from mcp import MCPError
from mcp.server import Server
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Audio, Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp_types import (
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    BlobResourceContents,
    EmbeddedResource,
    ResourceLink,
    TextResourceContents,
    ToolAnnotations,
)
from pydantic import BaseModel
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

PAGE = 30
WRONG: dict[str, dict[str, Any]] = {
    "broken": {"content": "what is this", "resultType": "complete"},
    "liar": {"content": [], "structuredContent": {"city": 1}, "resultType": "complete"},
}
"""Results that no server should give."""
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000002000001000500010d0a2db40000000049454e44ae426082"
)

options = argparse.ArgumentParser()
options.add_argument("--http", action="store_true")
options.add_argument("--port", type=int, default=0)
options.add_argument("--legacy", action="store_true")
options.add_argument("--modern", action="store_true")
options.add_argument("--many", action="store_true")
options.add_argument("--endless", action="store_true")
options.add_argument("--bare", action="store_true")
options.add_argument("--key", default="")
chosen = options.parse_args()


async def odd_ways(context: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Pages, and what an old server does not know."""
    if chosen.legacy and context.method == "server/discover":
        if not chosen.http:
            os._exit(1)  # as those made with rmcp before 3.0 do
        raise MCPError(METHOD_NOT_FOUND, "Method not found")
    if chosen.modern and context.method == "initialize":
        data = {"supported": ["2026-07-28"], "requested": "2025-11-25"}
        raise MCPError(UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version", data)
    if context.method == "tools/call" and (context.params or {}).get("name") in WRONG:
        return WRONG[(context.params or {})["name"]]
    result = await call_next(context)
    if context.method != "tools/list":
        return result
    listed = result if isinstance(result, dict) else result.model_dump(by_alias=True, mode="json", exclude_none=True)
    start = int((context.params or {}).get("cursor") or 0)
    page = {**listed, "tools": listed["tools"][start : start + PAGE]}
    if start + PAGE < len(listed["tools"]) or chosen.endless:
        page["nextCursor"] = str(start + PAGE)
    return page


server = MCPServer("tests", instructions="Echo before you grow.", log_level="ERROR", middleware=[odd_ways])


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def slow(seconds: float, context: Context, mark: str = "", gate: str = "") -> list[float]:
    """Take some time, at most until the file `gate` is there, and say from when to when. The file `mark` tells what becomes of it."""
    began = time.monotonic()
    await context.report_progress(0, 1, "it begins")
    note(mark, "begun")
    try:
        with anyio.move_on_after(seconds):
            while not is_there(gate):  # noqa: ASYNC110 - another process makes the file
                await anyio.sleep(0.01 if gate else seconds)
    except BaseException:
        note(mark, "cancelled")
        raise
    note(mark, "done")
    return [began, time.monotonic()]


def is_there(gate: str) -> bool:
    return bool(gate) and Path(gate).exists()


def note(mark: str, word: str) -> None:
    if mark:
        Path(mark).write_text(word)


@server.tool()
def fails() -> str:
    """Fail."""
    raise ToolError("no such luck")


@server.tool()
def refuses() -> str:
    """Answer with an error of the protocol."""
    raise MCPError(-32000, "not today")


@server.tool()
def image() -> Image:
    """Give a picture."""
    return Image(data=PIXEL, format="png")


@server.tool(structured_output=False)
def big_image(bytes: int) -> list[Any]:
    """Give a picture that is not small, and some words."""
    return ["here it is", Image(data=PIXEL + b"\0" * bytes, format="png")]


@server.tool()
def audio() -> Audio:
    """Give a sound."""
    return Audio(data=b"RIFF", format="wav")


@server.tool()
def resources() -> list[Any]:
    """Give resources of all kinds."""
    return [
        EmbeddedResource(resource=TextResourceContents(uri="notes://one", text="first note", mime_type="text/plain")),
        EmbeddedResource(
            resource=BlobResourceContents(uri="file:///a/b.pdf", blob="JVBERg==", mime_type="application/pdf")
        ),
        EmbeddedResource(resource=BlobResourceContents(uri="file:///a.png", blob="iVBORw==", mime_type="image/png")),
        ResourceLink(uri="file:///c.txt", name="c", description="the third", mime_type="text/plain"),
    ]


class Weather(BaseModel):
    city: str
    degrees: float


@server.tool()
def structured(city: str) -> Weather:
    """Give an object."""
    return Weather(city=city, degrees=18.5)


@server.tool()
def broken() -> str:
    """Give what is no result."""
    raise AssertionError


@server.tool()
def liar() -> Weather:
    """Give another object than it says."""
    raise AssertionError


@server.tool()
def environment(name: str) -> str:
    """A variable of the server's environment."""
    return os.environ.get(name, "(not set)")


@server.tool()
def folder() -> str:
    """The folder that the server works in."""
    return str(Path.cwd())


@server.tool()
def pid() -> int:
    """The server's process."""
    return os.getpid()


@server.tool()
def dies() -> str:
    """End the process."""
    print("I am dying", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
async def grow(name: str, context: Context) -> str:
    """Have another tool from now on."""
    server.add_tool(lambda: name, name=name, description=f"The new tool {name}.")
    await context.notify_tools_changed()  # to those who have subscribed
    await context.session.send_tool_list_changed()  # to those of before 2026
    return "grown"


@server.tool()
def hush() -> str:
    """End all subscriptions."""
    listening = server._lowlevel_server.get_request_handler("subscriptions/listen")
    assert listening is not None
    listening.handler.close()
    return "hushed"


@server.resource("notes://{name}")
def one_note(name: str) -> str:
    """A note."""
    return f"the note {name}"


@server.resource("notes://list", mime_type="text/plain")
def notes() -> str:
    """All notes."""
    return "one, two"


def _numbered(number: int) -> Any:
    def numbered() -> str:
        return str(number)

    return numbered


if chosen.many:
    for number in range(100):
        server.add_tool(_numbered(number), name=f"many_{number}", description=f"Tool {number} of many.")


def guarded_by_rules(app: ASGIApp) -> ASGIApp:
    """The app, for those who have the key; an old one does not let sessions be ended, as many do not."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        wanted = (b"authorization", f"Bearer {chosen.key}".encode())
        if scope["type"] == "http" and chosen.key and wanted not in scope["headers"]:
            await PlainTextResponse("no", 401)(scope, receive, send)
            return
        if scope["type"] == "http" and chosen.legacy and scope["method"] == "DELETE":
            await PlainTextResponse("no", 405)(scope, receive, send)
            return
        await app(scope, receive, send)

    return guarded


async def serve_nothing() -> None:
    bare = Server("bare")
    async with stdio_server() as (reading, writing):
        await bare.run(reading, writing, bare.create_initialization_options())


async def serve_old_stdio() -> None:
    """As servers before 2026 do, which know the handshake only."""
    async with stdio_server() as (reading, writing):
        await serve_loop(server._lowlevel_server, reading, writing, lifespan_state={})


def serve_http() -> None:
    listening = socket.create_server(("127.0.0.1", chosen.port))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(
        guarded_by_rules(server.streamable_http_app()), log_level="error", timeout_graceful_shutdown=1
    )
    asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))


if __name__ == "__main__":
    if chosen.http:
        serve_http()
    elif chosen.bare:
        anyio.run(serve_nothing)
    elif chosen.legacy:
        anyio.run(serve_old_stdio)
    else:
        server.run("stdio")
