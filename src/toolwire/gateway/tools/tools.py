"""The tools that the operator declares for the gateway to run, and the requests to which they are offered."""

import asyncio
import importlib
import importlib.metadata
import inspect
import sys
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import msgspec

from toolwire.agent.errors import ServerFailed
from toolwire.agent.mcp import Server, Servers, read_config
from toolwire.config.settings import Settings, SettingsError, bytes_of
from toolwire.core.display import clean
from toolwire.core.errors import Failure, ToolwireError
from toolwire.core.events import CallKind, Note
from toolwire.core.request import Entry, Message, OtherEntry, OtherPart, Request, ResultEntry, TextPart
from toolwire.core.request import Tool as DeclaredTool
from toolwire.dialects.responses import compaction
from toolwire.gateway.tools.run import Begin, DeferredRun, OfferedTools, OnCall, RunWithTools
from toolwire.gateway.tools.search import Search
from toolwire.memory.pending_results import PendingResults
from toolwire.memory.private_files import read_file
from toolwire.turns.attempt import Confirm
from toolwire.turns.source import TurnSource
from toolwire.turns.tools.call import ToolCall, ToolError
from toolwire.turns.tools.registry import Context, Registry, Result, Tool, as_tool
from toolwire.upstream.credentials import inherit_environment

ENTRY_POINTS = "toolwire.tools"
"""The group in which installed packages name tools for the gateway."""


class TooManyTools(ToolwireError):
    """The gateway's tools and those of the request together exceed the limit."""

    def __init__(self, own: int, given: int, limit: int) -> None:
        super().__init__(own, given, limit)
        self._summary = f"The gateway adds {own} tools to the {given} of the request, but the limit is {limit}"

    @property
    def failure(self) -> Failure:
        message = f"{self._summary} (server.max_tools). List the tools you need in `allow` of the MCP server."
        return Failure(500, "too_many_tools", message)


class GatewayTools:
    """The tools that the gateway runs itself, and results kept until clients send theirs."""

    def __init__(self, settings: Settings, pending: PendingResults) -> None:
        """Load the tools of the settings. Raises `SettingsError`."""
        declared, folder = settings.gateway_tools, settings.folder
        try:
            self._registry = Registry(TimedTool(load_tool(name, folder), declared.timeout) for name in declared.tools)
        except ValueError as error:
            raise SettingsError(f"gateway_tools.tools: {error}") from None
        self._max_turns = declared.max_turns
        self._max_reply = bytes_of(settings.server.max_reply)
        self._max_tools = settings.server.max_tools
        self._inherit = partial(inherit_environment, settings.secret_variables, settings.agent.inherit)
        try:
            self._servers = Servers(load_servers(declared.mcp, folder), print_message) if declared.mcp else None
        except ServerFailed as error:
            raise SettingsError(f"gateway_tools.mcp: {error}") from None
        self._listing: asyncio.Task[None] | None = None
        self._pending = pending

    async def __aenter__(self) -> Self:
        """Start the MCP servers, without waiting for them."""
        if self._servers is not None:
            await self._servers.__aenter__()
            self._registry.follow(self._servers.update)
            self._listing = asyncio.get_running_loop().create_task(self._servers.ready())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listing is not None:
            self._listing.cancel()
        if self._servers is not None:
            await self._servers.__aexit__(None, None, None)

    def can_join(self, request: Request) -> bool:
        """Whether the request may be offered tools beside its own. Which ones is decided when its run starts."""
        choice = request.tool_choice
        if request.choices > 1 or (choice is not None and (choice.mode != "auto" or choice.limited)):
            return False
        last = request.entries[-1] if request.entries else None
        is_summary = isinstance(last, Message) and last.parts == (TextPart(compaction.SUMMARY_PROMPT),)
        return not is_summary and not compaction.is_requested(request)

    def run(
        self,
        owner: str,
        request: Request,
        begin: Begin,
        on_call: OnCall,
        confirm: Confirm | None = None,
        search: Search | None = None,
    ) -> TurnSource:
        """The run of a request with the gateway's tools.

        It starts when every MCP server has listed its tools or has failed. `begin` starts a turn of the model,
        `on_call` is called with the name and the outcome of every call of a gateway tool, and `confirm` before the tool
        is run. `search` has the searches for tools that the gateway also runs.
        """
        request = search.request if search is not None else request

        def start() -> TurnSource:
            self._registry.refresh()
            client_names = {each.name for each in request.tools}
            offered = [each for each in self._registry if each.name not in client_names]
            if not offered and search is None:
                return begin(request)
            unchanged = _run_unchanged(request, begin)
            if unchanged is not None:
                return unchanged
            if len(request.tools) + len(offered) > self._max_tools:
                raise TooManyTools(len(offered), len(request.tools), self._max_tools)
            own = [*offered, *(search.tools if search is not None else ())]
            declared = (
                *request.tools,
                *(
                    DeclaredTool(each.name, each.description, each.parameters, kind=each.kind, format=each.format)
                    for each in offered
                ),
            )
            entries = self._pending.merge_into(request.entries, owner)
            extended = msgspec.structs.replace(request, tools=declared, entries=entries, dialect="")
            tools = OfferedTools(
                self._registry if search is None else Registry(own),
                {each.name for each in own},
                self._max_turns,
                self._max_reply,
                self._inherit,
                on_call,
                partial(self._pending.keep, owner, entries),
                search,
                confirm,
            )
            return RunWithTools(tools, extended, begin)

        return start() if self._listing is None or self._listing.done() else DeferredRun(self._listing, start)


def _run_unchanged(request: Request, begin: Begin) -> TurnSource | None:
    """The run of a request without the gateway's tools, if it would lose something with them.

    That would be its hosted tools, or parts of its history that only its dialect has. None if it has neither, or if the
    backend drops all hosted tools anyway.
    """
    hosted = {each.type for each in request.hosted_tools}
    if not hosted and not any(map(_is_dialect_specific, request.entries)):
        return None
    run = begin(msgspec.structs.replace(request, notes=(*request.notes, Note("gateway_tools_left_out"))))
    dropped = {note.subject for note in run.assembly.stats.notes if note.code == "tool_dropped"}
    if not hosted or not hosted <= dropped:
        return run
    run.close()
    return None


def _is_dialect_specific(entry: Entry) -> bool:
    """Whether an entry holds something that only the dialect it came in can express."""
    if isinstance(entry, Message | ResultEntry):
        return any(isinstance(part, OtherPart) for part in entry.parts)
    return isinstance(entry, OtherEntry) and entry.means is None


class TimedTool:
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
        """Run the tool. Raises `ToolError` at the time limit."""
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                return await self._tool.run(call, context)
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"{self.name} did not answer within {self._seconds:g} seconds and was cancelled"
            raise ToolError(message) from None


_ATTRIBUTES = ("name", "description", "kind", "parallel", "writes", "parameters", "format")
"""The attributes of a tool beside `run`."""


def load_tool(name: str, folder: Path) -> Tool:
    """Load a tool by the name of an entry point, or as `module:object`. A plain function becomes a tool.

    Modules are also looked for in this folder. Raises `SettingsError`.
    """
    try:
        found = _load_object(name, str(folder))
        _check_tool(found)
        return as_tool(found)
    except SettingsError as error:
        reason = str(error)
    except (TypeError, ValueError, AttributeError, NameError) as error:
        reason = f"is not a tool: {_one_line(error)}"
    raise SettingsError(f"gateway_tools.tools: {name!r} {reason}")


def _load_object(name: str, folder: str) -> Any:
    """The object with this name. Raises `SettingsError` with the reason if it cannot be found or loaded."""
    module, colon, path = name.partition(":")
    points = list(importlib.metadata.entry_points(group=ENTRY_POINTS, name=name)) if not colon else []
    if colon and not (module and path):
        raise SettingsError("cannot be found: it must be module:object")
    if not colon and not points:
        message = f"it is neither module:object nor an entry point of the group {ENTRY_POINTS}"
        raise SettingsError(f"cannot be found: {message}")
    if len(points) > 1:
        raise SettingsError(f"is ambiguous: {len(points)} installed packages have an entry point of this name")
    if colon and folder not in sys.path:
        sys.path.append(folder)  # at the end: installed modules come first
    try:
        found: Any = importlib.import_module(module) if colon else points[0].load()
    except ImportError as error:
        raise SettingsError(f"cannot be found: {_one_line(error)}") from None
    except SystemExit:
        raise SettingsError("cannot be loaded: its module ends the program") from None
    except Exception as error:  # noqa: BLE001 - whatever the operator's code raises is shown to the operator
        raise SettingsError(f"cannot be loaded: {type(error).__name__}: {_one_line(error)}") from None
    for step in path.split(".") if colon else ():
        if not hasattr(found, step):
            raise SettingsError(f"cannot be found: the module {module} has no {path}")
        found = getattr(found, step)
    return found


def _check_tool(found: Any) -> None:
    """Raise `TypeError` if an object cannot be a tool."""
    kind = cast("type[Any]", type(found)).__name__
    if inspect.isclass(found):
        raise TypeError("it is a class; a function is needed, or an object")
    if hasattr(found, "run"):
        missing = [each for each in _ATTRIBUTES if not hasattr(found, each)]
        if missing:
            raise TypeError(f"this {kind} has no {', '.join(missing)}")
    elif not callable(found) or not hasattr(found, "__name__"):
        raise TypeError(f"it is of the type {kind}, not a function")


def print_message(server: str, message: str) -> None:
    """Print the message of an MCP server for the operator."""
    print(clean(f"toolwire: MCP server {server}: {message}"), file=sys.stderr, flush=True)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def load_servers(path: str, folder: Path) -> tuple[Server, ...]:
    """The MCP servers of a file. Each works in the folder of that file, unless its entry names another.

    Raises `SettingsError`.
    """
    file = folder / path
    try:
        servers = read_config(read_file(file).decode("utf-8"), beside=file.parent)
    except FileNotFoundError:
        reason = f"there is no such file in {folder}"
    except OSError as error:
        reason = str(error.strerror or error)
    except UnicodeDecodeError:
        reason = "it is not text in UTF-8"
    except ValueError as error:
        reason = _one_line(error)
    else:
        return tuple(msgspec.structs.replace(each, cwd=each.cwd or str(file.parent)) for each in servers)
    raise SettingsError(f"gateway_tools.mcp: {path}: {reason}")
