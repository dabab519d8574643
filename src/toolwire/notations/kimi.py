"""Kimi: a section of calls, each with a name and a number.

<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{"q": "x"}
<|tool_call_end|><|tool_calls_section_end|>
"""

import re

from toolwire.notations.table import Head, Notation, Wrapper
from toolwire.notations.write import WrittenCall, escape_markers_in_json

_CALL = Notation(
    open="<|tool_call_begin|>",
    close="<|tool_call_end|>",
    head=Head(
        pattern=re.compile(r"\s*(?:functions\.)?(?P<name>[^\s:]+)(?::\d+)?\s*"),
        end="<|tool_call_argument_begin|>",
    ),
)
_SECTION = Wrapper("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", (_CALL,))

KIMI = (_SECTION, _CALL)


def write_kimi(name: str, arguments: str) -> WrittenCall:
    """One call, in a section of its own."""
    given = escape_markers_in_json(arguments, ("<|tool_call",))
    call = f"{_CALL.open}functions.{name}:0<|tool_call_argument_begin|>{given}{_CALL.close}"
    return WrittenCall(f"{_SECTION.open}{call}{_SECTION.close}")
