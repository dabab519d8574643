"""Tools, and where they are kept by name. `@tool` makes one of a typed Python function.

@tool(parallel=True)
async def weather(city: str, unit: Literal["C", "F"] = "C") -> str:
    \"\"\"The weather in a city.\"\"\"
"""

import asyncio
import contextvars
import copy
import inspect
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Never, Protocol, TypeAlias, TypeVar, cast, get_type_hints, overload

import msgspec

from toolwire.core.events import CallKind
from toolwire.core.request import ImagePart, Part, TextPart
from toolwire.turns.tools.call import ToolCall, read_arguments
from toolwire.upstream.environment import inherited

Emit: TypeAlias = Callable[[str], None]
Inherit: TypeAlias = Callable[[], dict[str, str]]
T = TypeVar("T")


def ignore(_: object) -> None:
    """Take something that nobody asks for."""


class Result(msgspec.Struct, frozen=True):
    """What a tool returns."""

    parts: tuple[Part, ...]
    failed: bool = False

    @property
    def text(self) -> str:
        """Its text, without images."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


class Context(msgspec.Struct, frozen=True):
    """What a tool may know of the turn it runs in."""

    cwd: Path
    emit: Emit = ignore
    """Takes output while the tool runs."""
    writable: bool = True
    """False in read-only mode: nothing may be changed."""
    roots: tuple[Path, ...] = ()
    """Where files may be touched; the working directory if there are none."""
    inherit: Inherit = inherited
    """Gives the variables of a process that the tool starts."""


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


class FunctionTool:
    """A Python function as a tool. Parameters named `context` and `call` are given by the engine."""

    kind: CallKind = "function"
    format: msgspec.Raw | None = None

    def __init__(
        self, function: Callable[..., Any], name: str = "", *, parallel: bool = False, writes: bool = False
    ) -> None:
        self._function = function
        self.name = name or function.__name__
        self.parallel = parallel
        self.writes = writes
        self.description, described = _documented(inspect.getdoc(function) or "")
        self._given, self._type = _parameters(function, self.name, described)
        self.parameters: msgspec.Raw | None = msgspec.Raw(msgspec.json.encode(_schema(self._type)))

    async def run(self, call: ToolCall, context: Context) -> Result:
        """Call the function with the arguments of a call; in a thread, unless it is async."""
        is_async = inspect.iscoroutinefunction(inspect.unwrap(self._function))
        read = read_arguments(call, self._type)
        arguments: dict[str, Any] = {field: getattr(read, field) for field in read.__struct_fields__}
        if "call" in self._given:
            arguments["call"] = call
        if "context" in self._given:
            send = context.emit if is_async else partial(asyncio.get_running_loop().call_soon_threadsafe, context.emit)
            arguments["context"] = msgspec.structs.replace(context, emit=send)
        value = self._function(**arguments) if is_async else await _in_thread(partial(self._function, **arguments))
        return as_result(await value if inspect.isawaitable(value) else value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself still works."""
        return self._function(*args, **kwargs)


async def _in_thread(function: Callable[[], T]) -> T:
    """What a function that blocks returns or raises. Whoever stops waiting leaves it to itself.

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
    return (await done)()


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
    return Result((TextPart(msgspec.json.encode(value, enc_hook=str).decode()),))


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(
    *, name: str = "", parallel: bool = False, writes: bool = False
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(
    function: Callable[..., Any] | None = None, /, *, name: str = "", parallel: bool = False, writes: bool = False
) -> Any:
    """Make a tool of a function: the schema from its signature, the description from its docstring.

    `parallel`: it may run beside other such tools. `writes`: it changes something, and may need approval.
    """
    make = partial(FunctionTool, name=name, parallel=parallel, writes=writes)
    return make if function is None else make(function)


def as_tool(each: Tool | Callable[..., Any]) -> Tool:
    """A tool as it is, or one made of a plain function."""
    return each if hasattr(each, "run") else tool(each)  # type: ignore[return-value, arg-type]


_GIVEN = ("context", "call")


def _parameters(
    function: Callable[..., Any], name: str, described: dict[str, str]
) -> tuple[list[str], type[msgspec.Struct]]:
    """The parameters that the engine gives, and a type for those of the model."""
    hints = get_type_hints(function, include_extras=True)
    given: list[str] = []
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in _GIVEN:
            given.append(parameter.name)
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{name}: the parameter {parameter.name} cannot be given by name")
        kind = _described(hints.get(parameter.name, Any), described.get(parameter.name, ""))
        default = () if parameter.default is parameter.empty else (_default(parameter.default),)
        fields.append((parameter.name, kind, *default))
    fields.sort(key=len)  # those without a default first
    return given, msgspec.defstruct(f"{name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)


def _described(kind: Any, text: str) -> Any:
    """The type with a description: the one given, or the first text among its annotations."""
    text = text or next((each for each in getattr(kind, "__metadata__", ()) if isinstance(each, str)), "")
    return Annotated[kind, msgspec.Meta(description=text)] if text else kind


def _default(value: Any) -> Any:
    """A default that each call has for itself."""
    if isinstance(value, list | dict | set | bytearray):
        return msgspec.field(default_factory=partial(copy.deepcopy, cast("Any", value)))
    return value


def _schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of a type's fields, with the others that it needs."""
    schema = msgspec.json.schema(kind)
    definitions: dict[str, Any] = schema.pop("$defs", {})
    own: dict[str, Any] = definitions.pop(schema["$ref"].rpartition("/")[2]) if "$ref" in schema else schema
    own.pop("title", None)
    if not own.get("required"):
        own.pop("required", None)
    return {**own, "$defs": definitions} if definitions else own


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """A docstring's description, and what its section `Args:` says of each parameter."""
    head, _, rest = text.partition("\nArgs:\n")
    section = re.split(r"^(?=\S)", rest, maxsplit=1, flags=re.MULTILINE)[0]  # up to the next line without an indent
    described: dict[str, str] = {}
    for entry in re.split(r"^ {4}(?=\S[^:\n]*:)", section, flags=re.MULTILINE)[1:]:
        name, _, about = entry.partition(":")
        described[name.split("(")[0].strip()] = " ".join(line.strip() for line in about.splitlines() if line.strip())
    return head.strip(), described


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
