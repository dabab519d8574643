"""Tools, and where they are kept by name. `@tool` makes one of a typed Python function.

@tool(parallel=True)
async def weather(city: str, unit: Literal["C", "F"] = "C") -> str:
    \"\"\"The weather in a city.\"\"\"
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeAlias, cast, get_type_hints, overload

import msgspec

from toolwire.agent.call import CustomPayload, ToolCall, ToolError
from toolwire.core.events import CallKind
from toolwire.core.request import ImagePart, Part, TextPart
from toolwire.core.request import Tool as Declared

Emit: TypeAlias = Callable[[str], None]


class Result(msgspec.Struct, frozen=True):
    """What a tool gives back."""

    parts: tuple[Part, ...]
    failed: bool = False

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


class Context(msgspec.Struct, frozen=True):
    """What a tool may know of the turn it runs in."""

    cwd: Path
    emit: Emit
    """Takes output as it comes, for whoever watches."""
    writable: bool = True
    """False in read-only mode: nothing may be changed."""
    roots: tuple[Path, ...] = ()
    """Where files may be touched; the working directory if there are none."""


class Tool(Protocol):
    """Anything a model can call."""

    name: str
    description: str
    kind: CallKind
    parallel: bool
    """It may run beside others that may."""
    writes: bool
    """It changes something, or may."""

    @property
    def parameters(self) -> msgspec.Raw | None: ...

    @property
    def format(self) -> msgspec.Raw | None: ...

    async def run(self, call: ToolCall, context: Context) -> Result: ...


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
        arguments = self._arguments(call)
        for name in self._given:
            arguments[name] = context if name == "context" else call
        if inspect.iscoroutinefunction(self._function):
            value = await cast("Awaitable[Any]", self._function(**arguments))
        else:
            value = await asyncio.to_thread(self._function, **arguments)
        return as_result(value)

    def _arguments(self, call: ToolCall) -> dict[str, Any]:
        if isinstance(call.payload, CustomPayload):
            raise ToolError(f"{self.name} takes arguments, not free text")
        try:
            read = msgspec.json.decode(call.text or "{}", type=self._type)
        except msgspec.ValidationError as error:
            raise ToolError(f"invalid arguments for {self.name}: {error}") from None
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise ToolError(f"failed to parse function arguments: {error}") from None
        return {field: getattr(read, field) for field in read.__struct_fields__}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself still works."""
        return self._function(*args, **kwargs)


def as_result(value: Any) -> Result:
    """Whatever a function returned, as a result."""
    if isinstance(value, Result):
        return value
    if isinstance(value, ImagePart | TextPart):
        return Result((value,))
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
        kind: Any = hints.get(parameter.name, Any)
        if parameter.name in described:
            kind = _described(kind, described[parameter.name])
        has_default = parameter.default is not parameter.empty
        fields.append((parameter.name, kind, parameter.default) if has_default else (parameter.name, kind))
    fields.sort(key=len)  # those without a default first
    return given, msgspec.defstruct(f"{name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)


def _described(kind: Any, text: str) -> Any:
    return Annotated[kind, msgspec.Meta(description=text)]


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
    described: dict[str, str] = {}
    name = ""
    for line in rest.splitlines():
        if not line.strip():
            continue
        if not line.startswith(" "):
            break
        before, colon, after = line.strip().partition(":")
        if colon and line.startswith("    ") and not line.startswith("     "):
            name = before.split("(")[0].strip()
            described[name] = after.strip()
        elif name:
            described[name] += f" {line.strip()}"
    return head.strip(), described


class Registry:
    """Tools by name, in the order in which they came."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._sources: list[Callable[[Registry], None]] = []
        for each in tools:
            self.add(each)

    def add(self, tool: Tool) -> None:
        if tool.name in self._tools:
            raise ValueError(f"there are two tools named {tool.name!r}")
        self._tools[tool.name] = tool

    def follow(self, source: "Callable[[Registry], None]") -> None:
        """Let a source whose tools may change put them right before each request."""
        self._sources.append(source)

    def refresh(self) -> None:
        for source in self._sources:
            source(self)

    def remove(self, name: str) -> None:
        self._tools.pop(name, None)

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def declared(self) -> tuple[Declared, ...]:
        """The tools as a request declares them."""
        return tuple(
            Declared(each.name, each.description, each.parameters, kind=each.kind, format=each.format)
            for each in self._tools.values()
        )
