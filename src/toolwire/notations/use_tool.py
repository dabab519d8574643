r"""`<use_tool>`: the text form Obsidian Copilot reads and writes.

    <use_tool>
    <name>localSearch</name>
    <query>piano practice</query>
    <salientTerms>["piano", "practice"]</salientTerms>
    </use_tool>

The client decodes no entities, trims every value, and turns a value into an object as soon as it holds a matched pair
of tags. So strings are written raw, numbers as they came, arrays and objects as JSON with every `<` as `\u003c`. A
string that would not survive is escaped (`</b>` becomes `</b >`), a name that cannot be a tag is replaced by one that
can, and both are reported.
"""

import re
from collections import Counter
from typing import ClassVar

import msgspec

from toolwire.core.collect import CallAssembler
from toolwire.core.events import CallArgs, CallEnded, CallStarted, Event, Note, TextDelta
from toolwire.core.policies import Events, Kinds, pass_any_text
from toolwire.core.raw import NULL, text_of
from toolwire.core.text import is_json
from toolwire.notations.table import JS_SPACE
from toolwire.notations.tool_call import KEY, make_tag_notation
from toolwire.notations.write import WrittenCall, read_parameters

USE_TOOL = make_tag_notation("use_tool")

_EMPTY_IS_LIST = frozenset(("chatHistory", "salientTerms"))
_KEY = re.compile(KEY)
_INVALID_CHARS = re.compile(r"[<>\s]+|^/+")
_MAX_SPACES = 8
"""Maximum spaces that are added to a closing tag; after that, all closing tags are broken in another way."""
_MAX_OPEN_ANGLES = 64
"""A value with more `<` before one `>` counts as unsafe and is not checked further."""


def survives(parameter: str, value: str) -> bool:
    """Whether the client reads exactly this string from a block."""
    if value != value.strip(JS_SPACE) or not _stays_whole(parameter, value):
        return False
    if any("<" in tag[:-1] for tag in value.split(">")[:-1]):  # `<…>`: the client does not parse it as JSON
        return True
    if not value:
        return parameter not in _EMPTY_IS_LIST
    is_composite = (value[0], value[-1]) in (("{", "}"), ("[", "]")) and is_json(value)
    return not is_composite


def write_use_tool(name: str, arguments: str) -> WrittenCall:
    """The canonical block for one call. A value that the client would not read unchanged is escaped."""
    changed: list[str] = []
    shown = name
    if name != name.strip(JS_SPACE) or not _stays_whole("name", name):
        changed.append("name")
        shown = _break_pairs("name", name)
    lines = [USE_TOOL.open, f"<name>{shown}</name>"]
    given, replaced = read_parameters(arguments)
    parameters = {parameter: raw for parameter, raw in given.items() if raw != NULL}
    taken, counts = {*parameters}, Counter[str]()
    for parameter, raw in parameters.items():
        is_string = bytes(raw).startswith(b'"')
        text = (
            text_of(raw) if is_string else msgspec.json.format(bytes(raw), indent=-1).decode().replace("<", "\\u003c")
        )
        key = base = parameter if _is_writable(parameter) else _INVALID_CHARS.sub("_", parameter) or "_"
        while not _is_writable(key) or (key != parameter and key in taken):
            counts[base] += 1
            key = f"{base}_{counts[base] if counts[base] > 1 else ''}"
        taken.add(key)
        is_safe = not is_string or survives(key, text)
        if key != parameter or not is_safe or parameter in replaced:
            changed.append(parameter)
        lines.append(f"<{key}>{text if is_safe else _break_pairs(key, text)}</{key}>")
    lines.append(USE_TOOL.close)
    return WrittenCall("\n".join(lines), tuple(changed))


def to_obsidian_xml(name: str, arguments: str) -> str:
    """The canonical `<use_tool>` block for one call."""
    return write_use_tool(name, arguments).text


class WriteUseTool:
    """A policy that puts a canonical block into the text after every call; it must follow `HoldCall`."""

    handles: ClassVar[Kinds] = (TextDelta, CallStarted, CallArgs, CallEnded)
    find_check = pass_any_text

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter
        self._calls = CallAssembler()
        self._gap = ""  # the separator between the text so far and the next block

    def feed(self, event: Event) -> Events | None:
        if isinstance(event, TextDelta):
            self._gap = "" if event.text.endswith("\n") else "\n\n"
            return None
        call = self._calls.feed(event)
        if call is None or not call.complete:
            return None
        written = write_use_tool(call.name, call.arguments)
        gap, self._gap = self._gap, self._delimiter
        notes = [Note("use_tool_changed", f"{call.id} {parameter}") for parameter in written.changed]
        return [event, *notes, TextDelta(gap + written.text)]


def _is_writable(parameter: str) -> bool:
    """Whether a parameter's name can be a tag, and is not the tag of the block."""
    return bool(_KEY.fullmatch(parameter)) and f"<{parameter}>" != USE_TOOL.open


def _stays_whole(parameter: str, value: str) -> bool:
    """Whether a value is read whole: nothing in it ends it early, and no matched pair of tags makes it an object."""
    if f"</{parameter}>" in value or USE_TOOL.close in value:
        return False
    opened: set[str] = set()
    for tag in value.split(">")[:-1]:
        pieces = tag.split("<")[1:]
        if len(pieces) > _MAX_OPEN_ANGLES:
            return False
        inner = ["<".join(pieces[index:]) for index in range(len(pieces))]
        if any(each.startswith("/") and each[1:] in opened for each in inner):
            return False
        opened.update(filter(None, inner))
    return True


def _break_pairs(parameter: str, value: str) -> str:
    """Break matched pairs of tags: `</b >` is the same HTML, but does not match `<b>` in the client."""
    guarded = value
    for _ in range(_MAX_SPACES):
        if _stays_whole(parameter, guarded):
            return guarded
        *tags, rest = guarded.split(">")
        closes = [tag.startswith("/", tag.rfind("<") + 1) and "<" in tag for tag in tags]
        guarded = ">".join((*(f"{tag} " if close else tag for tag, close in zip(tags, closes, strict=True)), rest))
    return value.replace("</", "< /")
