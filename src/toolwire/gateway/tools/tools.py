"""The gateway's tools: those that the operator has declared, and which requests they are offered to."""

import asyncio
import importlib
import importlib.metadata
import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec

from toolwire.agent.errors import ServerFailed
from toolwire.agent.mcp import Server, Servers, read_config
from toolwire.config.settings import Settings, SettingsError, bytes_of
from toolwire.core.errors import Failure, ToolwireError
from toolwire.core.events import CallKind, Note
from toolwire.core.request import Entry, Message, OtherEntry, OtherPart, Request, ResultEntry, TextPart
from toolwire.core.request import Tool as Declared
from toolwire.dialects.responses import compaction
from toolwire.gateway.tools.deferred import DeferredRun
from toolwire.gateway.tools.run import Begin, OfferedTools, Ran, RunWithTools
from toolwire.gateway.tools.search import Search
from toolwire.memory.pending_results import PendingResults
from toolwire.memory.private_files import read_file
from toolwire.turns.attempt import Confirm
from toolwire.turns.source import TurnSource
from toolwire.turns.tools.call import ToolCall, ToolError
from toolwire.turns.tools.registry import Context, Registry, Result, Tool, as_tool
from toolwire.upstream.environment import inherited

ENTRY_POINTS = "toolwire.tools"
"""The group in which installed packages name tools for the gateway."""


class TooManyTools(ToolwireError):
    """The gateway has more tools than a request may have."""

    def __init__(self, own: int, given: int, limit: int) -> None:
        super().__init__(own, given, limit)
        self._said = f"The gateway adds {own} tools to the {given} of the request, and {limit} is the most"

    @property
    def failure(self) -> Failure:
        message = f"{self._said} (server.max_tools). Name those that are needed in `allow` of the MCP server."
        return Failure(500, "too_many_tools", message)


class GatewayTools:
    """The tools that the gateway runs itself, and their results that wait for those of clients."""

    def __init__(self, settings: Settings, say: Callable[[str, str], None], kept: PendingResults) -> None:
        declared, folder = settings.gateway_tools, settings.folder
        try:
            self._registry = Registry(Timed(found_tool(name, folder), declared.timeout) for name in declared.tools)
        except ValueError as error:
            raise SettingsError(f"gateway_tools.tools: {error}") from None
        self._max_turns = declared.max_turns
        self._max_reply = bytes_of(settings.server.max_reply)
        self._max_tools = settings.server.max_tools
        self._inherit = partial(inherited, settings.secret_variables, settings.agent.inherit)
        try:
            self._servers = Servers(found_servers(declared.mcp, folder), say) if declared.mcp else None
        except ServerFailed as error:
            raise SettingsError(f"gateway_tools.mcp: {error}") from None
        self._listing: asyncio.Task[None] | None = None
        self._kept = kept

    async def open(self) -> None:
        """Start the MCP servers, without waiting for them."""
        if self._servers is not None:
            await self._servers.__aenter__()
            self._registry.follow(self._servers.update)
            self._listing = asyncio.get_running_loop().create_task(self._servers.ready())

    async def close(self) -> None:
        """Stop the MCP servers."""
        if self._listing is not None:
            self._listing.cancel()
        if self._servers is not None:
            await self._servers.__aexit__(None, None, None)

    def may_join(self, request: Request) -> bool:
        """Whether the request may be offered tools beside its own. Which ones there are is found out by its run."""
        choice = request.tool_choice
        if request.choices > 1 or (choice is not None and (choice.mode != "auto" or choice.limited)):
            return False
        return not _is_about_compaction(request)

    def run(
        self,
        owner: str,
        request: Request,
        begin: Begin,
        ran: Ran,
        confirm: Confirm | None = None,
        search: Search | None = None,
    ) -> TurnSource:
        """The run of a request with the gateway's tools, for whoever has a request and can begin a turn of the model.

        It begins when every MCP server has listed its tools or has failed. `ran` is called for every call of a gateway
        tool with its outcome, `confirm` before its tool begins.
        """
        start = partial(self._begin, owner, request, begin, ran, confirm, search)
        return start() if self._listing is None or self._listing.done() else DeferredRun(self._listing, start)

    def _begin(
        self,
        owner: str,
        request: Request,
        begin: Begin,
        ran: Ran,
        confirm: Confirm | None,
        search: Search | None,
    ) -> TurnSource:
        self._registry.refresh()
        request = search.request if search is not None else request
        client_names = {each.name for each in request.tools}
        offered = {each.name: each for each in self._registry if each.name not in client_names}
        if not offered and search is None:
            return begin(request)
        unchanged = _run_without(request, begin)
        if unchanged is not None:
            return unchanged
        if len(request.tools) + len(offered) > self._max_tools:
            raise TooManyTools(len(offered), len(request.tools), self._max_tools)
        own = [*offered.values(), *(search.tools if search is not None else ())]
        declared = (*request.tools, *map(_declared, offered.values()))
        entries = self._kept.merge_into(request.entries, owner)
        extended = msgspec.structs.replace(request, tools=declared, entries=entries, dialect="")
        keep = partial(self._kept.keep, owner, entries)
        tools = OfferedTools(
            self._registry if search is None else Registry(own),
            {each.name for each in own},
            self._max_turns,
            keep,
            ran,
            self._inherit,
            self._max_reply,
            search.show if search is not None else None,
            confirm,
        )
        return RunWithTools(tools, extended, begin)


def _declared(tool: Tool) -> Declared:
    return Declared(tool.name, tool.description, tool.parameters, kind=tool.kind, format=tool.format)


def _run_without(request: Request, begin: Begin) -> TurnSource | None:
    """The run of a request as its client sent it, if something in it would be lost beside the gateway's tools.

    Lost would be tools that the backend runs itself, and parts of the history that only the client's dialect has. None
    if there are none, or if the backend takes no such tools in any case.
    """
    hosted = {each.type for each in request.hosted_tools}
    if not hosted and not any(map(_is_of_its_dialect, request.entries)):
        return None
    run = begin(msgspec.structs.replace(request, notes=(*request.notes, Note("gateway_tools_left_out"))))
    dropped = {note.subject for note in run.assembly.stats.notes if note.code == "tool_dropped"}
    if not hosted or not hosted <= dropped:
        return run
    run.close()
    return None


def _is_of_its_dialect(entry: Entry) -> bool:
    """Whether an entry holds something that only the dialect it came in can express."""
    if isinstance(entry, Message | ResultEntry):
        return any(isinstance(part, OtherPart) for part in entry.parts)
    return isinstance(entry, OtherEntry) and entry.means is None


class Timed:
    """A tool with a time limit. A function in a thread cannot be stopped; what it returns afterwards is dropped."""

    def __init__(self, tool: Tool, seconds: float) -> None:
        self._tool = tool
        self._seconds = seconds
        self.name = tool.name
        self.description = tool.description
        self.kind: CallKind = tool.kind
        self.parallel = tool.parallel
        self.writes = tool.writes
        self.parameters = tool.parameters
        self.format = tool.format

    async def run(self, call: ToolCall, context: Context) -> Result:
        """Run the tool, and fail when its time is over."""
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                return await self._tool.run(call, context)
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"{self.name} did not answer within {self._seconds:g} seconds and was cancelled"
            raise ToolError(message) from None


def _is_about_compaction(request: Request) -> bool:
    """Whether the request asks for a compaction, or for the summary that we make one of."""
    last = request.entries[-1] if request.entries else None
    return compaction.is_asked(request) or (isinstance(last, Message) and last.parts == (TextPart(compaction.ASK),))


def found_tool(name: str, folder: Path) -> Tool:
    """A tool by the name of an entry point, or as `module:object`. A plain function is made into one.

    Modules are looked for in this folder too.
    """
    module, colon, path = name.partition(":")
    found = _imported(name, module, path, str(folder)) if colon else _installed(name)
    fault = _fault(found)
    if fault:
        raise _unusable(name, f"is no tool: {fault}")
    try:
        return as_tool(found)
    except (TypeError, ValueError, AttributeError, NameError) as error:
        raise _unusable(name, f"is no tool: {_line(error)}") from None


def _unusable(name: str, reason: str) -> SettingsError:
    return SettingsError(f"gateway_tools.tools: {name!r} {reason}")


def _imported(name: str, module: str, path: str, folder: str) -> Any:
    if not module or not path:
        raise _unusable(name, "cannot be found: it must be module:object")
    if folder not in sys.path:
        sys.path.append(folder)  # at the end: what is installed comes first
    found = _loaded(name, partial(importlib.import_module, module))
    for step in path.split("."):
        if not hasattr(found, step):
            raise _unusable(name, f"cannot be found: the module {module} has no {path}")
        found = getattr(found, step)
    return found


def _installed(name: str) -> Any:
    points = list(importlib.metadata.entry_points(group=ENTRY_POINTS, name=name))
    if not points:
        message = f"it is neither module:object nor an entry point of the group {ENTRY_POINTS}"
        raise _unusable(name, f"cannot be found: {message}")
    if len(points) > 1:
        raise _unusable(name, f"is ambiguous: {len(points)} installed packages have an entry point of this name")
    return _loaded(name, points[0].load)


def _loaded(name: str, load: Callable[[], Any]) -> Any:
    """Load the operator's code, in which anything may happen; an error becomes one line."""
    try:
        return load()
    except ImportError as error:
        raise _unusable(name, f"cannot be found: {_line(error)}") from None
    except SystemExit:
        raise _unusable(name, "cannot be loaded: its module ends the program") from None
    except Exception as error:  # noqa: BLE001 - whatever it is, it is shown to the operator
        raise _unusable(name, f"cannot be loaded: {type(error).__name__}: {_line(error)}") from None


_TOOL = ("name", "description", "kind", "parallel", "writes", "parameters", "format")
"""The attributes of a tool beside `run`."""


def _fault(found: Any) -> str:
    """Why something cannot be a tool."""
    kind = cast("type[Any]", type(found)).__name__
    if inspect.isclass(found):
        return "it is a class; a function is needed, or an object"
    if hasattr(found, "run"):
        missing = [each for each in _TOOL if not hasattr(found, each)]
        return f"this {kind} has no {', '.join(missing)}" if missing else ""
    if not callable(found) or not hasattr(found, "__name__"):
        return f"it is of the type {kind}, and no function"
    return ""


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def found_servers(path: str, folder: Path) -> tuple[Server, ...]:
    """The MCP servers of a file. Each works in the folder of that file, unless its entry names another."""
    file = folder / path
    try:
        servers = read_config(read_file(file).decode("utf-8"), beside=file.parent)
    except FileNotFoundError:
        raise SettingsError(f"gateway_tools.mcp: {path}: there is no such file in {folder}") from None
    except OSError as error:
        raise SettingsError(f"gateway_tools.mcp: {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"gateway_tools.mcp: {path}: it is not text in UTF-8") from None
    except ValueError as error:
        raise SettingsError(f"gateway_tools.mcp: {path}: {_line(error)}") from None
    return tuple(msgspec.structs.replace(each, cwd=each.cwd or str(file.parent)) for each in servers)
