r"""Calls between `<use_tool>` or `<tool_call>` tags: the same bodies are read under either.

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

from toolwire.notations.table import Head, Notation, Tags

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


def between(tag: str) -> Notation:
    """Calls between tags of this name."""
    return Notation(
        open=f"<{tag}>",
        close=f"</{tag}>",
        json=True,
        tags=(_FUNCTION, _NAMED),
        head=Head(pattern=re.compile(r"(?P<name>[^<>]*)"), stop="<", json=False, tags=_PAIRS, declared=True),
    )
