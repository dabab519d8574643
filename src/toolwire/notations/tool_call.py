"""`<tool_call>`: the text form of Hermes, Qwen and their kin, with a JSON or a tag body.

    <tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>

    <tool_call>
    <function=search>
    <parameter=q>
    x
    </parameter>
    </function>
    </tool_call>

    <tool_call>get_date</tool_call>

Of a value between tags exactly one line end is cut off at each side. A closing tag cannot occur inside a value there.
"""

import re

import msgspec

from toolwire.notations.table import Head, Json, Notation, Tags
from toolwire.notations.write import Written, guarded_json

TOOL_CALL = Notation(
    open="<tool_call>",
    close="</tool_call>",
    json=Json(),
    tags=Tags(
        name=re.compile(r"<function=([^<>]+)>"),
        parameter=re.compile(r"<parameter=([^<>]+)>"),
        parameter_close="</parameter>",
        ignored=frozenset(("</function>",)),
        trim="newline",
    ),
    head=Head(pattern=re.compile(r"(?P<name>[^<>]*)"), stop="<", then=(), declared=True),
)


def write_tool_call(name: str, arguments: str) -> Written:
    """The block for one call, as Hermes writes it."""
    given = guarded_json(arguments, (TOOL_CALL.open, TOOL_CALL.close))
    quoted = msgspec.json.encode(name).decode()
    return Written(f'{TOOL_CALL.open}\n{{"name": {quoted}, "arguments": {given}}}\n{TOOL_CALL.close}')
