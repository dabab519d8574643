r"""`<tool_call>`: the text form of Hermes, Qwen, GLM and similar models. Any of these bodies is read between the tags,
and between those of `<use_tool>`:

    {"name": "search", "arguments": {"q": "x"}}

    <name>search</name>
    <q>x</q>

    <function=search>
    <parameter=q>
    x
    </parameter>
    </function>

    search
    <arg_key>q</arg_key>
    <arg_value>x</arg_value>

    get_date

A value in a tag with the parameter's name is trimmed; any other loses exactly one line end on each side.
"""

import re

from toolwire.core.raw import to_json
from toolwire.notations.table import Head, Notation, Tags
from toolwire.notations.write import WrittenCall, escape_markers_in_json, pad_value, write_values

KEY = r"[^<>/\s][^<>\s]*"
"""The pattern of a tag name."""

_NAMED = Tags(
    name=re.compile(r"<(name)>"),
    name_close="</name>",
    parameter=re.compile(rf"<({KEY})>"),
    parameter_close="</{}>",
    trim="space",
)

_FUNCTION = Tags(
    name=re.compile(r"<function=([^<>]+)>"),
    parameter=re.compile(r"<parameter=([^<>]+)>"),
    parameter_close="</parameter>",
    ignored=frozenset(("</function>",)),
    trim="newline",
)

_PAIRS = Tags(
    parameter=re.compile(r"<(arg_key)>"),
    key_close="</arg_key>",
    value_open="<arg_value>",
    parameter_close="</arg_value>",
    trim="newline",
)


def make_tag_notation(tag: str) -> Notation:
    """Calls between tags of this name."""
    return Notation(
        open=f"<{tag}>",
        close=f"</{tag}>",
        json=True,
        tags=(_FUNCTION, _NAMED),
        head=Head(pattern=re.compile(r"(?P<name>[^<>]*)"), stop="<", json=False, tags=_PAIRS, declared=True),
    )


TOOL_CALL = make_tag_notation("tool_call")
GLM_MARKERS = (TOOL_CALL.open, TOOL_CALL.close, "<arg_", "</arg_")


def write_tool_call(name: str, arguments: str) -> WrittenCall:
    """A call as Hermes writes it: JSON."""
    given = escape_markers_in_json(arguments, (TOOL_CALL.open, TOOL_CALL.close))
    quoted = to_json(name).decode()
    return WrittenCall(f'{TOOL_CALL.open}\n{{"name": {quoted}, "arguments": {given}}}\n{TOOL_CALL.close}')


def write_glm(name: str, arguments: str) -> WrittenCall:
    """A call as GLM writes it: a name, then pairs of keys and values. Strings are written raw, other values as JSON."""
    values, changed = write_values(arguments, GLM_MARKERS)
    pairs = [f"<arg_key>{key}</arg_key>\n<arg_value>{pad_value(text)}</arg_value>" for key, text in values]
    return WrittenCall("\n".join((f"{TOOL_CALL.open}{name}", *pairs, TOOL_CALL.close)), changed)
