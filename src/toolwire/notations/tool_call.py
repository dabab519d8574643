"""`<tool_call>`: the text form of Hermes, Qwen and their kin, with a JSON or a tag body.

    <tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>

    <tool_call>
    <function=search>
    <parameter=q>
    x
    </parameter>
    </function>
    </tool_call>

Of a value between tags exactly one line end is cut off at each side. A closing tag cannot occur inside a value there.
"""

import re

from toolwire.notations.table import Notation, Tags

TOOL_CALL = Notation(
    open="<tool_call>",
    close="</tool_call>",
    tags=Tags(
        name=re.compile(r"<function=([^<>]+)>"),
        name_close="",
        parameter=re.compile(r"<parameter=([^<>]+)>"),
        parameter_close="</parameter>",
        ignored=frozenset(("</function>",)),
        trim="newline",
    ),
    bare_names=True,
)
