"""GLM: a name, then pairs of keys and values.

    <tool_call>search
    <arg_key>q</arg_key>
    <arg_value>x</arg_value>
    </tool_call>

Strings stand raw, anything else as JSON. The JSON body of `tool_call.py` is read too: the opening tag is the same.
"""

import re

from toolwire.notations.table import Head, Json, Notation, Tags
from toolwire.notations.write import Written, tag_value, written_values

GLM = Notation(
    open="<tool_call>",
    close="</tool_call>",
    json=Json(),
    tags=Tags(
        parameter=re.compile(r"<(arg_key)>"),
        key_close="</arg_key>",
        value_open="<arg_value>",
        parameter_close="</arg_value>",
        trim="newline",
    ),
    head=Head(pattern=re.compile(r"(?P<name>[^<>]*)"), stop="<", then=("tags",), declared=True),
)

GUARDED = (GLM.open, GLM.close, "<arg_", "</arg_")


def write_glm(name: str, arguments: str) -> Written:
    """The block for one call."""
    values, changed = written_values(arguments, GUARDED)
    pairs = [f"<arg_key>{key}</arg_key>\n<arg_value>{tag_value(text)}</arg_value>" for key, text in values]
    return Written("\n".join((f"{GLM.open}{name}", *pairs, GLM.close)), changed)
