"""Decoding helpers for all dialects. Invalid input becomes a `BadRequest` that names the field."""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from toolwire.core.cache import Cache
from toolwire.core.errors import BadRequest, split_validation_error
from toolwire.core.events import Note
from toolwire.core.raw import NULL, Fields, Maybe, list_of
from toolwire.core.request import HostedTool, Tool

T = TypeVar("T")


def value_of(raw: Maybe) -> msgspec.Raw | None:
    """The JSON of a field, or None if it is null or absent."""
    return None if raw is msgspec.UNSET or raw == NULL else raw


def begins_with(raw: msgspec.Raw, char: bytes) -> bool:
    """Whether JSON begins with this character. Copies nothing, since the JSON may be large."""
    return memoryview(raw)[:1].tobytes() == char


def read(decode: Callable[[bytes], T], data: bytes, what: str = "The body") -> T:
    """Decode a document. Raises `BadRequest`; `what` names the document in the message."""
    try:
        return decode(data)
    except msgspec.ValidationError as error:
        raise as_bad_request(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{what} is not valid JSON: {error}", code="invalid_json") from None


def read_at(decode: Callable[[msgspec.Raw], T], raw: msgspec.Raw, path: str) -> T:
    """Decode the value at this path of the body. Raises `BadRequest`."""
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        raise as_bad_request(error, path) from None


def find_extra(fields: Fields, known: frozenset[str], defaults: frozenset[bytes]) -> Fields:
    """The fields that are neither known nor set to a default value."""
    return {name: value for name, value in fields.items() if name not in known and bytes(value) not in defaults}


def missing_field(path: str) -> BadRequest:
    """The error for a missing required field."""
    return BadRequest(f"{path}: This field is required.", path, "missing_required_parameter")


def as_bad_request(error: msgspec.ValidationError, path: str = "") -> BadRequest:
    """Convert a msgspec error about the value at this path to one that names the field."""
    text, param = split_validation_error(error)
    param = f"{path}.{param}" if path and param and not param.startswith("[") else path + param
    missing = re.match(r"Object missing required field `(\w+)`", text)
    if missing:
        return missing_field(f"{param}.{missing[1]}" if param else missing[1])
    code = "invalid_type" if text.startswith("Expected") else "invalid_value"
    return BadRequest(f"{param}: {text}." if param else f"The body: {text}.", param or None, code)


class DeclaredTools(msgspec.Struct, frozen=True):
    """The tools of a request: `tools` run at the client, `hosted` ones at the backend."""

    tools: tuple[Tool, ...] = ()
    hosted: tuple[HostedTool, ...] = ()
    notes: tuple[Note, ...] = ()


def make_tool_cache(read_tool: Callable[[msgspec.Raw, str], Tool | HostedTool]) -> Cache[bytes, DeclaredTools]:
    """A cache of decoded tool lists, since an agent repeats its list in every request. `read_tool` decodes one tool."""

    def declare(data: bytes) -> DeclaredTools:
        found = read_tools(data, read_tool)
        tools = tuple(tool for tool in found if isinstance(tool, Tool))
        return DeclaredTools(tools, tuple(tool for tool in found if isinstance(tool, HostedTool)))

    return Cache(declare)


def read_tools(data: bytes, read_tool: Callable[[msgspec.Raw, str], T]) -> list[T]:
    """Decode a list of tools; `read_tool` gets each tool and its path."""
    if not data.startswith(b"["):
        raise BadRequest("tools must be a list.", "tools")
    return [read_tool(raw, f"tools[{index}]") for index, raw in enumerate(list_of(data))]


def require_tool_name(name: str | None, path: str) -> str:
    """The name of the tool at this path. Raises `BadRequest` if it has none."""
    if not name:
        raise BadRequest(f"{path}.name: A tool needs a name.", f"{path}.name")
    return name
