"""What a server has, page by page."""

from typing import Any

import msgspec
from mcp import Client
from mcp_types import Tool

from toolwire.agent.mcp.life import Offer

MOST_PAGES = 200
"""Pages that are read of one list: a server that always names a next one must not keep us."""
_ENDLESS = "its list has no end"


async def offers(client: Client) -> tuple[Offer, ...]:
    """All tools."""
    if client.server_capabilities.tools is None:
        return ()
    found: list[Offer] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found.extend(map(_offer, page.tools))
        cursor = page.next_cursor
        if cursor is None:
            return tuple(found)
    raise RuntimeError(_ENDLESS)


def _offer(tool: Tool) -> Offer:
    hints = tool.annotations
    return Offer(
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
    for _ in range(MOST_PAGES):
        page = await client.list_resources(cursor=cursor)
        found.extend(each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in page.resources)
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise RuntimeError(_ENDLESS)
