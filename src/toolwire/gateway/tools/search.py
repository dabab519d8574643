"""Searches for tools that the client leaves to the server, run by the gateway for a backend without tool search.

The client sees a search and its result as a server of its dialect would send them, and sends both back with its next
request, so nothing is kept.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from toolwire.adapt.lowering import SEARCH_PARAMETERS, make_search_parameters
from toolwire.core.events import CallKind, RawFrame
from toolwire.core.request import SEARCH, CallEntry, Omission, Request, ResultEntry, Tool, ToolPart
from toolwire.gateway.tools.ranking import BadPattern, SearchTooLong, search_by_pattern, search_by_words
from toolwire.protocols import PROTOCOLS, SearchFrames
from toolwire.turns.route import Route
from toolwire.turns.tools.call import ToolCall, ToolError, read_arguments
from toolwire.turns.tools.concurrency import run_in_thread
from toolwire.turns.tools.registry import Context, Result

DEFAULT_MATCHES, MAX_MATCHES = 5, 20
"""Matches of a search: the default number, and the maximum."""
MAX_LISTED_CHARS = 1000
"""Maximum characters of the list of tools in the description of a search."""

_DESCRIPTION = (
    "Searches for more tools {how} and makes the matches available. Search before you say that there is no "
    "tool for something. {count} tools can be found: {names}"
)
_PATTERN = make_search_parameters("A regular expression, such as get_.*_data or mail|message.")


class _Question(msgspec.Struct):
    query: str = ""
    pattern: str = ""
    limit: Any = None  # a model may write anything here, and its search still runs


class SearchTool:
    """The tool that finds others."""

    kind: CallKind = "search"
    parallel = True
    writes = False
    format: msgspec.Raw | None = None

    def __init__(self, name: str, tools: Sequence[Tool], way: Literal["words", "pattern"]) -> None:
        self.name = name
        self._tools = tools
        self._find = search_by_words if way == "words" else search_by_pattern
        self.parameters: msgspec.Raw | None = SEARCH_PARAMETERS if way == "words" else _PATTERN
        how = "by keywords" if way == "words" else "by a case-insensitive regular expression"
        names = ", ".join(dict.fromkeys(tool.namespace or tool.name for tool in tools)) + "."
        if len(names) > MAX_LISTED_CHARS + 1:
            names = f"{names[:MAX_LISTED_CHARS].rpartition(', ')[0]} and others."
        self.description = _DESCRIPTION.format(how=how, count=len(tools), names=names)
        self.timed_out: set[str] = set()
        """The ids of calls that were stopped by the time limit."""

    @property
    def declaration(self) -> Tool:
        """The tool as the model sees it."""
        return Tool(self.name, self.description, self.parameters, kind=self.kind)

    async def run(self, call: ToolCall, context: Context) -> Result:
        """Find tools, in a thread."""
        question = read_arguments(call, _Question)
        limit = min(max(question.limit, 1), MAX_MATCHES) if isinstance(question.limit, int) else DEFAULT_MATCHES
        try:
            found = await run_in_thread(partial(self._find, question.query or question.pattern, self._tools, limit))
        except BadPattern as error:
            raise ToolError(str(error)) from None
        except SearchTooLong:
            self.timed_out.add(call.call_id)
            raise ToolError("the search took too long; use a simpler regular expression") from None
        return Result(tuple(ToolPart(tool.name, tool.namespace) for tool in found))


class Search(msgspec.Struct, frozen=True):
    """The searches of one request that the gateway runs."""

    request: Request
    """The request, with the searches as gateway tools."""
    tools: Sequence[SearchTool]
    write: SearchFrames

    def show(self, call: CallEntry, result: ResultEntry) -> Sequence[RawFrame]:
        """A search and its result as a server of the client's dialect sends them."""
        timed_out = any(call.id in tool.timed_out for tool in self.tools)
        return self.write(call, result, "timed_out" if timed_out else "failed" if result.failed else "found")


class _Named(msgspec.Struct):
    name: str = SEARCH


def adopt_searches(request: Request, route: Route, refused: Sequence[Omission]) -> Search | None:
    """The searches that the client leaves to the server, if the server cannot run them and nothing else is lost."""
    hosted = [tool for tool in request.hosted_tools if tool.searches]
    deferred = tuple(tool for tool in request.tools if tool.deferred)
    choice = request.tool_choice
    if not hosted or not deferred or (choice is not None and (choice.mode != "auto" or choice.limited)):
        return None
    if route.facts.search == request.dialect and "tool_search" not in refused:
        return None
    others = tuple(tool for tool in request.hosted_tools if not tool.searches)
    if others and request.dialect in route.facts.hosts_tools:
        return None
    names = [msgspec.json.decode(tool.raw, type=_Named).name for tool in hosted]
    if set(names) & {tool.name for tool in request.tools}:
        return None
    tools = [
        SearchTool(name, deferred, "pattern" if "regex" in tool.type else "words")
        for name, tool in zip(names, hosted, strict=True)
    ]
    declared = (*request.tools, *(tool.declaration for tool in tools))
    own = msgspec.structs.replace(request, tools=declared, hosted_tools=others, dialect="")
    return Search(own, tools, PROTOCOLS[request.dialect].client.encode_search(request))
