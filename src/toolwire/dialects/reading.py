"""How every dialect reads what a client sent, and reports what is wrong with it."""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from toolwire.core.cache import Cache
from toolwire.core.errors import BadRequest, validation_message
from toolwire.core.events import Note
from toolwire.core.raw import NULL, Fields, list_of
from toolwire.core.request import HostedTool, Tool

T = TypeVar("T")
Maybe = msgspec.Raw | msgspec.UnsetType
"""JSON that is passed on as it is; `given` distinguishes a value from null or absence."""


def given(raw: Maybe) -> msgspec.Raw | None:
    """The value of a field, or None if it is null or absent."""
    return None if raw is msgspec.UNSET or raw == NULL else raw


def begins_with(raw: msgspec.Raw, char: bytes) -> bool:
    """Whether JSON begins with this character. Nothing is copied, however large it is."""
    return memoryview(raw)[:1].tobytes() == char


def read(decode: Callable[[bytes], T], data: bytes, what: str = "The body") -> T:
    """The decoded data, or a `BadRequest` that says what is wrong with it."""
    try:
        return decode(data)
    except msgspec.ValidationError as error:
        raise as_bad_request(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{what} is not valid JSON: {error}", code="invalid_json") from None


def read_at(decode: Callable[[msgspec.Raw], T], raw: msgspec.Raw, path: str) -> T:
    """The decoded value at this path of the body, or a `BadRequest` that says what is wrong with it."""
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        raise as_bad_request(error, path) from None


def extra_fields(fields: Fields, known: frozenset[str], defaults: frozenset[bytes]) -> Fields:
    """The fields that we do not know, unless their value is one that means nothing."""
    return {name: value for name, value in fields.items() if name not in known and bytes(value) not in defaults}


def required(path: str) -> BadRequest:
    """The error for a missing required field."""
    return BadRequest(f"{path}: This field is required.", path, "missing_required_parameter")


def as_bad_request(error: msgspec.ValidationError, path: str = "") -> BadRequest:
    """A msgspec error about the value at this path, as the error for the client, which names the field."""
    text, param = validation_message(error)
    param = f"{path}.{param}" if path and param and not param.startswith("[") else path + param
    missing = re.match(r"Object missing required field `(\w+)`", text)
    if missing:
        return required(f"{param}.{missing[1]}" if param else missing[1])
    code = "invalid_type" if text.startswith("Expected") else "invalid_value"
    return BadRequest(f"{param}: {text}." if param else f"The body: {text}.", param or None, code)


class DeclaredTools(msgspec.Struct, frozen=True):
    """The tools of a request: those that the client runs, and those that the backend runs."""

    tools: tuple[Tool, ...] = ()
    hosted: tuple[HostedTool, ...] = ()
    notes: tuple[Note, ...] = ()


def tool_cache(read_tool: Callable[[msgspec.Raw, str], Tool | HostedTool]) -> Cache[bytes, DeclaredTools]:
    """The tools of a list, which an agent sends with every request: they are read once, each with `read_tool`."""

    def declared(data: bytes) -> DeclaredTools:
        found = read_tools(data, read_tool)
        tools = tuple(tool for tool in found if isinstance(tool, Tool))
        return DeclaredTools(tools, tuple(tool for tool in found if isinstance(tool, HostedTool)))

    return Cache(declared)


def read_tools(data: bytes, read_tool: Callable[[msgspec.Raw, str], T]) -> list[T]:
    """What `read_tool` makes of each tool in a list and its path."""
    if not data.startswith(b"["):
        raise BadRequest("tools must be a list.", "tools")
    return [read_tool(raw, f"tools[{index}]") for index, raw in enumerate(list_of(data))]


def tool_name(name: str | None, path: str) -> str:
    """The name of a tool, which is required."""
    if not name:
        raise BadRequest(f"{path}.name: A tool needs a name.", f"{path}.name")
    return name
