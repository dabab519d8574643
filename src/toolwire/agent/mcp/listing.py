"""Lists the tools and resources of a server, page by page."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from mcp import Client
from mcp_types import ListResourcesResult, ListToolsResult, Tool

from toolwire.agent.mcp.remote import ListedTool

MAX_PAGES = 200
"""The most pages that are read of one list, in case it never ends."""
Page = TypeVar("Page", ListToolsResult, ListResourcesResult)


async def offers(client: Client) -> tuple[ListedTool, ...]:
    """All tools."""
    if client.server_capabilities.tools is None:
        return ()
    return tuple([_offer(tool) async for page in _pages(client.list_tools) for tool in page.tools])


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
    found = [each async for page in _pages(client.list_resources) for each in page.resources]
    return [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in found]


async def _pages(list_page: Callable[..., Awaitable[Page]]) -> AsyncIterator[Page]:
    """All pages of a list. Raises `RuntimeError` if there is no end of them."""
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await list_page(cursor=cursor)
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return
    raise RuntimeError("its list has no end")
