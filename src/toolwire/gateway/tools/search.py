"""A search for tools that the client leaves to the server, run here for a backend that knows none.

The client sees the search and what it found as it would see them of a server of its own dialect, and sends both back
with its next request, so nothing is kept.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from toolwire.adapt.lowering import SEARCH_PARAMETERS, search_parameters
from toolwire.core.events import CallKind, RawFrame
from toolwire.core.request import SEARCH, CallEntry, HostedTool, Omission, Request, ResultEntry, Tool, ToolPart
from toolwire.dialects.messages.search import TOO_LONG
from toolwire.gateway.tools.ranking import BadPattern, SearchTooLong, by_pattern, by_words
from toolwire.protocols import PROTOCOLS
from toolwire.turns.routes import Route
from toolwire.turns.tools.call import ToolCall, ToolError, read_arguments
from toolwire.turns.tools.concurrency import run_in_thread
from toolwire.turns.tools.registry import Context, Result

Show: TypeAlias = Callable[[CallEntry, ResultEntry], Sequence[RawFrame]]
"""Writes a search and its result as the client's dialect has them."""

USUAL, MOST = 5, 20
"""How many tools a search finds, unless it asks for fewer or more, and at most."""
LISTED_CHARS = 1000
"""Characters of the list of what can be found, in the description of a search."""

_DESCRIPTION = (
    "Searches for more tools {how} and makes the matches available. Search before you say that there is no "
    "tool for something. {count} tools can be found: {names}"
)
_PATTERN = search_parameters("A regular expression, such as get_.*_data or mail|message.")


class _Question(msgspec.Struct):
    query: str = ""
    pattern: str = ""
    limit: Any = None  # a model may write anything, which is no reason to refuse the search


class SearchTool:
    """The tool that finds others."""

    kind: CallKind = "search"
    parallel = True
    writes = False
    format: msgspec.Raw | None = None

    def __init__(self, name: str, tools: Sequence[Tool], way: Literal["words", "pattern"]) -> None:
        self.name = name
        self._tools = tools
        self._find = by_words if way == "words" else by_pattern
        self.parameters: msgspec.Raw | None = SEARCH_PARAMETERS if way == "words" else _PATTERN
        how = "by keywords" if way == "words" else "by a case-insensitive regular expression"
        self.description = _DESCRIPTION.format(how=how, count=len(tools), names=_listed(tools))

    @property
    def declared(self) -> Tool:
        """The tool as the model sees it."""
        return Tool(self.name, self.description, self.parameters, kind=self.kind)

    async def run(self, call: ToolCall, context: Context) -> Result:
        """Find tools, beside the event loop."""
        asked = read_arguments(call, _Question)
        limit = min(max(asked.limit, 1), MOST) if isinstance(asked.limit, int) else USUAL
        try:
            found = await run_in_thread(partial(self._find, asked.query or asked.pattern, self._tools, limit))
        except BadPattern as error:
            raise ToolError(str(error)) from None
        except SearchTooLong:
            raise ToolError(TOO_LONG) from None
        return Result(tuple(ToolPart(tool.name, tool.namespace) for tool in found))


def _listed(tools: Sequence[Tool]) -> str:
    """The namespaces of these tools, and the names of those that have none."""
    names = ", ".join(dict.fromkeys(tool.namespace or tool.name for tool in tools))
    return f"{names}." if len(names) <= LISTED_CHARS else f"{names[:LISTED_CHARS].rpartition(', ')[0]} and others."


class Search(msgspec.Struct, frozen=True):
    """The searches of one request that are run here."""

    request: Request
    """The request that declares them as tools of the gateway."""
    tools: Sequence[SearchTool]
    show: Show


def take_over(request: Request, route: Route, refused: Sequence[Omission]) -> Search | None:
    """The searches that the client leaves to the server, if its server runs none and nothing is lost by that."""
    hosted = [tool for tool in request.hosted_tools if tool.searches]
    deferred = tuple(tool for tool in request.tools if tool.deferred)
    choice = request.tool_choice
    if not hosted or not deferred or (choice is not None and (choice.mode != "auto" or choice.limited)):
        return None
    if route.search == request.dialect and "tool_search" not in refused:
        return None
    others = tuple(tool for tool in request.hosted_tools if not tool.searches)
    if others and request.dialect in route.hosts_tools:
        return None
    tools = [SearchTool(_name(tool), deferred, "pattern" if "regex" in tool.type else "words") for tool in hosted]
    if {tool.name for tool in tools} & {tool.name for tool in request.tools}:
        return None
    declared = (*request.tools, *(tool.declared for tool in tools))
    own = msgspec.structs.replace(request, tools=declared, hosted_tools=others, dialect="")
    return Search(own, tools, PROTOCOLS[request.dialect].client.search_frames(request))


class _Named(msgspec.Struct):
    name: str = SEARCH


def _name(tool: HostedTool) -> str:
    return msgspec.json.decode(tool.raw, type=_Named).name
