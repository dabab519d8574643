"""Tools, and where they are kept by name. `@tool` makes one of a typed Python function.

@tool(parallel=True)
async def weather(city: str, unit: Literal["C", "F"] = "C") -> str:
    \"\"\"The weather in a city.\"\"\"
"""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Never, Protocol, TypeAlias, cast, overload

import msgspec

from toolwire.core.events import CallKind, Usage
from toolwire.core.request import ImagePart, Part, TextPart
from toolwire.turns.tools.call import ToolCall, read_arguments
from toolwire.turns.tools.signature import documented, parameters_of, written_function
from toolwire.turns.tools.types import encoded, schema_of
from toolwire.upstream.environment import inherited

if TYPE_CHECKING:  # `typing` has defaults of type variables from Python 3.13 on only
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
T = TypeVar("T")


def ignore(_: object) -> None:
    """Take something that nobody asks for."""


class Result(msgspec.Struct, frozen=True):
    """What a tool returns."""

    parts: tuple[Part, ...]
    failed: bool = False

    @property
    def text(self) -> str:
        """Its texts, each on a line of its own, without images."""
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))


class Context(msgspec.Struct, Generic[Deps_co], frozen=True):
    """What a tool may know of the run it is part of. A function gets it for a parameter of this type."""

    cwd: Path
    emit: Emit = ignore
    """Takes output while the tool runs."""
    writable: bool = True
    """False in read-only mode: nothing may be changed."""
    roots: tuple[Path, ...] = ()
    """Where files may be touched; the working directory if there are none."""
    approved: bool = False
    """Every call is approved before it runs, so a command may start outside the roots."""
    inherit: Inherit = inherited
    """Gives the variables of a process that the tool starts."""
    deps: Deps_co = cast("Any", None)
    """What the run was given for its tools."""
    spend: Spend = ignore
    """Counts tokens that the tool has used itself, as those of the run."""
    stop: threading.Event = msgspec.field(default_factory=threading.Event)
    """Set when the call is cancelled, for a function that runs in a thread."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the call is cancelled: a thread cannot be stopped, so a long function looks here."""
        return self.stop.is_set()


class Tool(Protocol):
    """Anything a model can call."""

    name: str
    description: str
    kind: CallKind
    parallel: bool
    """It may run at the same time as other such tools."""
    writes: bool
    """It may change something."""

    @property
    def parameters(self) -> msgspec.Raw | None:
        """The JSON Schema of a function's arguments."""
        ...

    @property
    def format(self) -> msgspec.Raw | None:
        """The format of a custom tool's input, as the Responses API declares it."""
        ...

    async def run(self, call: ToolCall, context: Context) -> Result:
        """Run a call. An exception becomes a failed result; only `FatalToolError` ends the turn."""
        ...


class FunctionTool(Generic[Parameters, Value_co]):
    """A Python function as a tool. Parameters of the types `Context` and `ToolCall` are given by the engine."""

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
        self.name = name or _own_name(function)
        if _is_generator(function):
            raise TypeError(f"{self.name}: a generator cannot be a tool; return the result as a whole")
        self.parallel = parallel
        self.writes = writes
        self.description, described = documented(inspect.getdoc(written_function(function)) or "")
        self._given, self._type = parameters_of(function, self.name, described, (Context, ToolCall))
        self.parameters: msgspec.Raw | None = msgspec.Raw(msgspec.json.encode(schema_of(self._type)))

    async def run(self, call: ToolCall, context: Context) -> Result:
        """Call the function with the arguments of a call; in a thread, unless it is async."""
        is_async = is_async_function(self._function)
        read = read_arguments(call, self._type)
        arguments: dict[str, Any] = {field: getattr(read, field) for field in read.__struct_fields__}
        stop = threading.Event()
        for name, kind in self._given.items():
            arguments[name] = call if kind is ToolCall else _own_context(context, stop, is_async=is_async)
        work = partial(self._function, **arguments)
        value = work() if is_async else await in_thread(work, stop)
        return as_result(await value if inspect.isawaitable(value) else value)

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Value_co:
        """The function itself still works."""
        return self._function(*args, **kwargs)


def _own_name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", "")
    if not name:
        raise TypeError(f'a tool of {function!r} needs a name: tool(name="…")(…)')
    return name


def _own_context(context: Context, stop: threading.Event, *, is_async: bool) -> Context:
    """The context of one call, which a thread may use too."""
    send = context.emit if is_async else partial(asyncio.get_running_loop().call_soon_threadsafe, context.emit)
    return msgspec.structs.replace(context, emit=send, stop=stop)


def is_async_function(function: Callable[..., Any]) -> bool:
    """Whether a function is called in the event loop, and not in a thread."""
    inner = inspect.unwrap(function)
    call = getattr(inner, "__call__", None)  # noqa: B004 - of an object with an async `__call__`
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(call)


def _is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling a function gives a generator, sync or async, in place of a result."""
    inner = inspect.unwrap(function)
    makers = inner, getattr(inner, "__call__", None)  # noqa: B004 - of an object that can be called
    return any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in makers)


async def in_thread(function: Callable[[], T], stop: threading.Event | None = None) -> T:
    """What a function that blocks returns or raises. Whoever stops waiting leaves it to itself, and sets `stop`.

    A thread cannot be stopped. One of a pool would keep the process until a function that hangs comes back; this one
    does not.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Callable[[], T]] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            value = context.run(function)
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            tell(partial(_raise, error))
        else:
            tell(lambda: value)

    def tell(outcome: Callable[[], T]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(lambda: done.done() or done.set_result(outcome))

    threading.Thread(target=work, daemon=True, name="toolwire tool").start()
    try:
        return (await done)()
    except asyncio.CancelledError:
        if stop is not None:
            stop.set()
        raise


def _raise(error: BaseException) -> Never:
    raise error


def as_result(value: Any) -> Result:
    """Whatever a function returned, as a result."""
    if isinstance(value, Result):
        return value
    if isinstance(value, ImagePart | TextPart):
        return Result((value,))
    if isinstance(value, list | tuple) and value and all(isinstance(each, Part) for each in cast("list[Any]", value)):
        return Result(tuple(cast("list[Part]", value)))
    if value is None or isinstance(value, str):
        return Result((TextPart(value or ""),))
    return Result((TextPart(encoded(cast("object", value))),))


class Decorator(Protocol):
    """Makes a tool of a function."""

    def __call__(self, function: Callable[Parameters, Value_co], /) -> FunctionTool[Parameters, Value_co]: ...


@overload
def tool(function: Callable[Parameters, Value_co], /) -> FunctionTool[Parameters, Value_co]: ...


@overload
def tool(*, name: str = "", parallel: bool = False, writes: bool = False) -> Decorator: ...


def tool(
    function: Callable[..., Any] | None = None, /, *, name: str = "", parallel: bool = False, writes: bool = False
) -> Any:
    """Make a tool of a function: the schema from its signature, the description from its docstring.

    `parallel`: it may run beside other such tools. `writes`: it changes something, and may need approval.
    """
    make = partial(FunctionTool, name=name, parallel=parallel, writes=writes)
    return make if function is None else make(function)


def as_tool(each: Tool | Callable[..., Any]) -> Tool:
    """A tool as it is, or one made of a plain function. Raises `TypeError` for anything else."""
    if hasattr(each, "as_tool"):
        raise TypeError("an agent is no tool by itself: give `agent.as_tool(name, description)`")
    if hasattr(each, "run"):
        return cast("Tool", each)
    if not callable(each):
        raise TypeError(f"tools: a tool or a function is needed, not {type(each).__name__}")
    return tool(each)


class Registry:
    """Tools by name, in the order in which they came."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._sources: list[Callable[[Registry], None]] = []
        self._advice: dict[str, str] = {}
        for each in tools:
            self.add(each)

    def add(self, tool: Tool) -> None:
        """Add a tool; `ValueError` if there is one of that name."""
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
        """Set what a model should know about the tools of a source."""
        self._advice[source] = text

    @property
    def advice(self) -> str:
        """What a model should know about the tools, for its instructions."""
        return "\n\n".join(f"About the tools of {source}:\n{text}" for source, text in self._advice.items() if text)

    def remove(self, name: str) -> None:
        """Remove a tool, if it is there."""
        self._tools.pop(name, None)

    def get(self, name: str) -> Tool | None:
        """The tool of this name, if there is one."""
        return self._tools.get(name)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)
