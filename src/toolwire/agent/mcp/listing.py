"""Lists the tools and resources of a server, page by page."""

from typing import Any

import msgspec
from mcp import Client
from mcp_types import Tool

from toolwire.agent.mcp.interface import ListedTool

MAX_PAGES = 200
"""The most pages that are read of one list, in case it never ends."""
_ENDLESS = "its list has no end"


async def offers(client: Client) -> tuple[ListedTool, ...]:
    """All tools."""
    if client.server_capabilities.tools is None:
        return ()
    found: list[ListedTool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found.extend(map(_offer, page.tools))
        cursor = page.next_cursor
        if cursor is None:
            return tuple(found)
    raise RuntimeError(_ENDLESS)


def _offer(tool: Tool) -> ListedTool:
    hints = tool.annotations
    return ListedTool(
        tool.name,
        tool.description or tool.title or "",
        msgspec.Raw(msgspec.json.encode(tool.input_schema)),
        reads_only=hints is not None and bool(hints.read_only_hint),
    )


async def resources(client: Client) -> list[Any]:
    """All resources, as the server describes them."""
    if client.server_capabilities.resources is None:
        return []
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_resources(cursor=cursor)
        found.extend(each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in page.resources)
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise RuntimeError(_ENDLESS)
