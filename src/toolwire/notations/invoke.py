"""`<invoke>`: calls of models that were trained on XML, bare or in a wrapper, and with one of several prefixes.

    <function_calls>
    <invoke name="search">
    <parameter name="q">x</parameter>
    </invoke>
    </function_calls>

    <|DSML|tool_calls><|DSML|invoke name="search">
    <|DSML|parameter name="limit" string="false">3</|DSML|parameter>
    </|DSML|invoke></|DSML|tool_calls>

    <minimax:tool_call><invoke name="search">…</invoke></minimax:tool_call>

A value loses exactly one line end on each side. DSML (really written with full-width bars) marks whether a value is a
string; DeepSeek also writes all arguments as one JSON object between the tags.
"""

import re

from toolwire.notations.table import Head, Notation, Tags, Wrapper
from toolwire.notations.write import WrittenCall, pad_value, write_values

PREFIXES = ("", "antml:", "minimax:", "\uff5cDSML\uff5c", "|DSML|")
WRAPPERS = ("function_calls", "tool_calls")

_NAME = re.compile(r"""name\s*=\s*["'](?P<name>[^"'<>]*)["'](?:\s[^<>]*)?""")
_PARAMETER = r"""parameter\s+name\s*=\s*["']([^"'<>]*)["'](?:\s+string\s*=\s*["'](true|false)["'])?(?:\s[^<>]*)?>"""


CALLS = tuple(
    Notation(
        open=f"<{prefix}invoke ",
        close=f"</{prefix}invoke>",
        head=Head(
            pattern=_NAME,
            end=">",
            tags=Tags(
                parameter=re.compile("<" + re.escape(prefix) + _PARAMETER),
                parameter_close=f"</{prefix}parameter>",
                trim="newline",
            ),
        ),
    )
    for prefix in PREFIXES
)

INVOKE = (
    *CALLS,
    Wrapper("<minimax:tool_call>", "</minimax:tool_call>", CALLS),
    *(Wrapper(f"<{prefix}{name}>", f"</{prefix}{name}>", CALLS) for prefix in PREFIXES for name in WRAPPERS),
)

MARKERS = ("<invoke ", "</invoke>", "<function_calls>", "</function_calls>")
GUARDED = (*MARKERS, "</parameter>")


def write_invoke(name: str, arguments: str) -> WrittenCall:
    """The block for one call, in its wrapper."""
    values, changed = write_values(arguments, GUARDED)
    lines = [f'<parameter name="{key}">{pad_value(text)}</parameter>' for key, text in values]
    block = ("<function_calls>", f'<invoke name="{name}">', *lines, "</invoke>", "</function_calls>")
    return WrittenCall("\n".join(block), changed)
