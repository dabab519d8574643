r"""`<use_tool>`: the text form Obsidian Copilot reads and writes.

    <use_tool>
    <name>localSearch</name>
    <query>piano practice</query>
    <salientTerms>["piano", "practice"]</salientTerms>
    </use_tool>

The client decodes no entities, trims every value, and turns a value into an object as soon as it holds a matched pair
of tags. So strings are written raw, arrays and objects as JSON with every `<` as `\u003c`, and a string that would not
survive is guarded (`</b>` becomes `</b >`) and reported.
"""

import re
from typing import Any, ClassVar, cast

import msgspec

from toolwire.core.events import CallArgs, CallEnded, CallStarted, Event, Note, TextDelta
from toolwire.core.policies import Events, Kinds
from toolwire.notations.table import JS_SPACE, Json, Notation, Tags
from toolwire.notations.write import Written

USE_TOOL = Notation(
    open="<use_tool>",
    close="</use_tool>",
    json=Json(),
    tags=Tags(
        name=re.compile(r"<(name)>"),
        name_close="</name>",
        parameter=re.compile(r"<([^<>/\s]+)>"),
        parameter_close="</{}>",
        trim="space",
    ),
)

_EMPTY_IS_LIST = frozenset(("chatHistory", "salientTerms"))
_TAG_LIKE = re.compile(r"<[^>]+>")
_OPENING = re.compile(r"<([^>/][^>]*)>")


def survives(parameter: str, value: str) -> bool:
    """Whether the client reads this string back exactly."""
    if value != value.strip(JS_SPACE):
        return False
    if f"</{parameter}>" in value or USE_TOOL.close in value:
        return False
    if _TAG_LIKE.search(value):
        return not _has_pair(value)
    if not value:
        return parameter not in _EMPTY_IS_LIST
    return not _is_composite(value)


def write_use_tool(name: str, arguments: str) -> Written:
    """The canonical block for one call, by the survival rule."""
    lines = [USE_TOOL.open, f"<name>{name}</name>"]
    changed: list[str] = []
    for parameter, value in _parameters(arguments):
        text = _value(value)
        if isinstance(value, str) and not survives(parameter, value):
            changed.append(parameter)
            text = _guarded(parameter, value)
        lines.append(f"<{parameter}>{text}</{parameter}>")
    lines.append(USE_TOOL.close)
    return Written("\n".join(lines), tuple(changed))


def to_obsidian_xml(name: str, arguments: str) -> str:
    """The canonical `<use_tool>` block for one call."""
    return write_use_tool(name, arguments).text


class WriteUseTool:
    """Puts a canonical block into the text after every call. Stands behind `HoldCall`."""

    handles: ClassVar[Kinds] = (TextDelta, CallStarted, CallArgs, CallEnded)

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter
        self._name = ""
        self._arguments = ""
        self._gap = ""  # what must stand between the text so far and the next block

    def feed(self, event: Event) -> Events:
        match event:
            case TextDelta(text):
                self._gap = "" if text.endswith("\n") else "\n\n"
            case CallStarted(_, name):
                self._name = name
            case CallArgs(_, text):
                self._arguments = text
            case CallEnded(id, complete) if complete:
                written = write_use_tool(self._name, self._arguments)
                gap, self._gap = self._gap, self._delimiter
                notes = [Note("use_tool_changed", f"{id} {parameter}") for parameter in written.changed]
                return [event, *notes, TextDelta(gap + written.text)]
            case _:
                pass
        return (event,)

    def end(self) -> Events:
        return ()


def _parameters(arguments: str) -> list[tuple[str, Any]]:
    """The arguments in their own order, without nulls; arguments that are no object become one parameter."""
    try:
        read = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return [("args", arguments)] if arguments.strip() else []
    if not isinstance(read, dict):
        return [("args", arguments)]
    return [(key, value) for key, value in cast("dict[str, Any]", read).items() if value is not None]


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


def _guarded(parameter: str, value: str) -> str:
    """Break the pairs: `</b >` is the same HTML and no partner of `<b>` to the client."""
    if _has_pair(value) or f"</{parameter}>" in value or USE_TOOL.close in value:
        return re.sub(r"</([^>]*?)>", r"</\1 >", value)
    return value


def _has_pair(value: str) -> bool:
    """An opening tag whose exact inner text recurs in a later closing tag."""
    return any(f"</{tag[1]}>" in value[tag.end() :] for tag in _OPENING.finditer(value))


def _is_composite(value: str) -> bool:
    if (value[0], value[-1]) not in (("{", "}"), ("[", "]")):
        return False
    try:
        msgspec.json.decode(value)
    except msgspec.DecodeError:
        return False
    return True
