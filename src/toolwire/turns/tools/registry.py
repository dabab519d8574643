"""Tools, sets of tools, and the registry that holds them by name. `@tool` makes a tool from a typed Python function.

@tool(parallel=True)
async def weather(city: str, unit: Literal["C", "F"] = "C") -> str:
    \"\"\"The weather in a city.\"\"\"
"""

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeAlias, cast, overload

import msgspec

from toolwire.adapt.names import SEPARATOR, flatten_name
from toolwire.core.collect import Call
from toolwire.core.events import CallKind, Usage
from toolwire.core.request import NO_PARAMETERS, ImagePart, Part, TextPart
from toolwire.turns.tools.call import LOCAL_SHELL, CustomPayload, FunctionPayload, ToolCall, read_arguments
from toolwire.turns.tools.concurrency import is_async_function, run_in_thread
from toolwire.turns.tools.schema import encode_value, parameters_of, parse_docstring, schema_of, written_function
from toolwire.upstream.credentials import inherit_environment

if TYPE_CHECKING:  # `typing` supports defaults of type variables only since Python 3.13
    from typing_extensions import ParamSpec, TypeVar

    Deps_co = TypeVar("Deps_co", default=Any, covariant=True)
    Value_co = TypeVar("Value_co", default=Any, covariant=True)
    Parameters = ParamSpec("Parameters", default=...)
else:
    from typing import ParamSpec, TypeVar

    Deps_co = TypeVar("Deps_co", covariant=True)
    Value_co = TypeVar("Value_co", covariant=True)
    Parameters = ParamSpec("Parameters")

Emit: TypeAlias = Callable[[str], None]
Inherit: TypeAlias = Callable[[], dict[str, str]]
Spend: TypeAlias = Callable[[Usage], None]

NAME_PREFIXES = ("mcp__", f"functions{SEPARATOR}")
"""Prefixes that some models add to the names of MCP tools, and of other tools."""


def ignore(_: object) -> None:
    """A callback that does nothing."""


class Result(msgspec.Struct, frozen=True):
    """What a tool returns."""

    parts: tuple[Part, ...]
    failed: bool = False

    @property
    def text(self) -> str:
        """The text parts, one per line, without images."""
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))


class FileChange(msgspec.Struct, frozen=True):
    """A file before and after a change; None where it does not exist."""

    name: str
    """Its path as the model wrote it."""
    path: Path
    before: bytes | None
    after: bytes | None
    status: os.stat_result | None = None
    """The status of the file before. If there was a file and `before` is None, its content is not known."""


class Context(msgspec.Struct, Generic[Deps_co], frozen=True):
    """The run as its tools see it. A function gets it in a parameter of this type."""

    cwd: Path
    emit: Emit = ignore
    """Takes output while the tool runs."""
    writable: bool = True
    """False in read-only mode: the tool must not change anything."""
    roots: tuple[Path, ...] = ()
    """Directories whose files may be read and written; empty: the working directory."""
    approved: bool = False
    """Whether every call is approved before it runs; if so, a command may start outside the roots."""
    inherit: Inherit = inherit_environment
    """Returns the environment variables for a process that the tool starts."""
    sandbox: tuple[str, ...] = ()
    """The program and arguments that run a command in a sandbox, if they precede it; empty: there is none."""
    deps: Deps_co = cast("Any", None)
    """The dependencies that the run was given for its tools."""
    spend: Spend = ignore
    """Adds tokens that the tool has used itself to those of the run."""
    changed: Callable[[FileChange], None] = ignore
    """Called by the built-in tools with every file that they have changed, in any thread."""
    stop: threading.Event = msgspec.field(default_factory=threading.Event)
    """Set when the call is cancelled, for a function that runs in a thread."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the call is cancelled. A thread cannot be stopped, so a long function should check this."""
        return self.stop.is_set()


class Tool(Protocol):
    """Anything a model can call."""

    name: str
    description: str
    kind: CallKind
    parallel: bool
    """Whether it may run at the same time as other such tools."""
    writes: bool
    """Whether it may change something."""

    @property
    def parameters(self) -> msgspec.Raw | None:
        """The JSON Schema of a function's arguments."""
        ...

    @property
    def format(self) -> msgspec.Raw | None:
        """The format of a custom tool's input, as the Responses API declares it."""
        ...

    async def run(self, call: ToolCall, context: Context) -> Result:
        """Run a call. An exception becomes a failed result; only `FatalToolError` ends the turn.

        A tool may also have `check_call`, a method with the same parameters. It is called before the user is asked
        about a call, and raises `ToolError` if the arguments are not valid.
        """
        ...


class FunctionTool(Generic[Parameters, Value_co]):
    """A Python function as a tool. The engine fills in parameters of the types `Context` and `ToolCall`.

    Raises `TypeError` for a function without a name, a generator, and a parameter that cannot be read from JSON.
    """

    kind: CallKind = "function"
    format: msgspec.Raw | None = None

    def __init__(
        self,
        function: Callable[Parameters, Value_co],
        name: str = "",
        *,
        parallel: bool = False,
        writes: bool = False,
    ) -> None:
        self._function: Callable[..., Any] = function
        self.name = name or getattr(function, "__name__", "")
        if not self.name:
            raise TypeError(f'a tool of {function!r} needs a name: tool(name="…")(…)')
        inner = inspect.unwrap(function)
        callables = inner, getattr(inner, "__call__", None)  # noqa: B004 - of an object that can be called
        if any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in callables):
            raise TypeError(f"{self.name}: a generator cannot be a tool; return the result as a whole")
        self.parallel = parallel
        self.writes = writes
        self.description, descriptions = parse_docstring(inspect.getdoc(written_function(function)) or "")
        self._injected, self._type = parameters_of(function, self.name, descriptions, (Context, ToolCall))
        self.parameters: msgspec.Raw | None = msgspec.Raw(msgspec.json.encode(schema_of(self._type)))

    def check_call(self, call: ToolCall, context: Context) -> None:
        """Raise `ToolError` if the arguments of a call do not fit the function."""
        read_arguments(call, self._type)

    async def run(self, call: ToolCall, context: Context) -> Result:
        """Call the function with the arguments of a call; in a thread, unless it is async."""
        is_async = is_async_function(self._function)
        read = read_arguments(call, self._type)
        arguments: dict[str, Any] = {field: getattr(read, field) for field in read.__struct_fields__}
        stop = threading.Event()
        emit = context.emit if is_async else partial(asyncio.get_running_loop().call_soon_threadsafe, context.emit)
        own_context = msgspec.structs.replace(context, emit=emit, stop=stop)
        for name, kind in self._injected.items():
            arguments[name] = call if kind is ToolCall else own_context
        work = partial(self._function, **arguments)
        value = work() if is_async else await run_in_thread(work, stop)
        return as_result(await value if inspect.isawaitable(value) else value)

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Value_co:
        """Call the function itself."""
        return self._function(*args, **kwargs)


def as_result(value: Any) -> Result:
    """The return value of a function, as a result."""
    if isinstance(value, Result):
        return value
    if isinstance(value, ImagePart | TextPart):
        return Result((value,))
    if isinstance(value, list | tuple) and value and all(isinstance(each, Part) for each in cast("list[Any]", value)):
        return Result(tuple(cast("list[Part]", value)))
    if value is None or isinstance(value, str):
        return Result((TextPart(value or ""),))
    return Result((TextPart(encode_value(cast("object", value))),))


class Decorator(Protocol):
    """Makes a tool from a function."""

    def __call__(self, function: Callable[Parameters, Value_co], /) -> FunctionTool[Parameters, Value_co]: ...


@overload
def tool(function: Callable[Parameters, Value_co], /) -> FunctionTool[Parameters, Value_co]: ...


@overload
def tool(*, name: str = "", parallel: bool = False, writes: bool = False) -> Decorator: ...


def tool(
    function: Callable[..., Any] | None = None, /, *, name: str = "", parallel: bool = False, writes: bool = False
) -> Any:
    """Make a tool from a function: its signature becomes the schema, its docstring the description.

    `parallel`: it may run beside other such tools. `writes`: it changes something, and may need approval.
    Raises `TypeError` if the function cannot be a tool.
    """
    make = partial(FunctionTool, name=name, parallel=parallel, writes=writes)
    return make if function is None else make(function)


def as_tool(each: Tool | Callable[..., Any]) -> Tool:
    """A tool as it is, or a plain function as a tool. Raises `TypeError` for anything else."""
    if hasattr(each, "as_tool"):
        raise TypeError("an agent is not a tool: pass `agent.as_tool(name, description)`")
    if hasattr(each, "run"):
        return cast("Tool", each)
    if not callable(each):
        raise TypeError(f"tools: a tool or a function is needed, not {type(each).__name__}")
    return tool(each)


def declare(tool: Tool) -> dict[str, Any]:
    """The declaration of a tool in a request of the Responses API."""
    if tool.name == LOCAL_SHELL:
        return {"type": "local_shell"}
    fields: dict[str, Any] = {"type": tool.kind, "name": tool.name, "description": tool.description}
    if tool.kind == "custom":
        return {**fields, "format": tool.format} if tool.format is not None else fields
    return {**fields, "parameters": tool.parameters or NO_PARAMETERS, "strict": False}


class Toolset:
    """Tools with a lifetime: entered before the first run that uses them, exited after the last.

    A subclass opens what its tools need in `__aenter__` and closes it in `__aexit__`:

        class Database(Toolset):
            def __init__(self, path: str) -> None:
                super().__init__([self.count])
                self.path = path

            async def __aenter__(self) -> Self:
                self.connection = sqlite3.connect(self.path)
                return self

            async def __aexit__(self, *_: object) -> None:
                self.connection.close()

            async def count(self, table: str) -> int:
                …
    """

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        self._tools = [as_tool(each) for each in tools]

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools; read when a run begins."""
        return self._tools

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class Registry:
    """Tools by name, in the order in which they were added."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._sources: list[Callable[[Registry], None]] = []
        self._advice: dict[str, str] = {}
        for each in tools:
            self.add(each)

    def add(self, tool: Tool) -> None:
        """Add a tool. Raises `ValueError` if the name is taken."""
        if tool.name in self._tools:
            raise ValueError(f"there are two tools named {tool.name!r}")
        self._tools[tool.name] = tool

    def follow(self, source: "Callable[[Registry], None]") -> None:
        """Let a source whose tools may change update them before each request."""
        self._sources.append(source)

    def refresh(self) -> None:
        """Let every source update its tools."""
        for source in self._sources:
            source(self)

    def advise(self, source: str, text: str) -> None:
        """Set the advice to the model about the tools of a source."""
        self._advice[source] = text

    @property
    def advice(self) -> str:
        """The advice about all tools, for the model's instructions."""
        return "\n\n".join(f"About the tools of {source}:\n{text}" for source, text in self._advice.items() if text)

    def remove(self, name: str) -> None:
        """Remove a tool, if it exists."""
        self._tools.pop(name, None)

    def get(self, name: str) -> Tool | None:
        """The tool with this name, or None."""
        return self._tools.get(name)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)


def tool_call_from(call: Call, registry: Registry) -> ToolCall:
    """A call of the model, under the name that the registry has for its tool.

    An unknown name stays as it is: running it produces the error that the model reads.
    """
    flat = flatten_name(call.namespace, call.name)
    names = [flat, *(flat.removeprefix(prefix) for prefix in NAME_PREFIXES if flat.startswith(prefix))]
    name = next((name for name in names if registry.get(name) is not None), names[0])
    payload = CustomPayload(call.arguments) if call.kind == "custom" else FunctionPayload(call.arguments)
    return ToolCall(name, call.id, payload)
