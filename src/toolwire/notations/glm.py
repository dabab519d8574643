"""GLM: a name, then pairs of keys and values.

    <tool_call>search
    <arg_key>q</arg_key>
    <arg_value>x</arg_value>
    </tool_call>

Strings stand raw, anything else as JSON. The other bodies of `bodies.py` are read too: the opening tag is the same.
"""

from toolwire.notations.tool_call import TOOL_CALL
from toolwire.notations.write import WrittenCall, pad_value, write_values

GUARDED = (TOOL_CALL.open, TOOL_CALL.close, "<arg_", "</arg_")


def write_glm(name: str, arguments: str) -> WrittenCall:
    """The block for one call."""
    values, changed = write_values(arguments, GUARDED)
    pairs = [f"<arg_key>{key}</arg_key>\n<arg_value>{pad_value(text)}</arg_value>" for key, text in values]
    return WrittenCall("\n".join((f"{TOOL_CALL.open}{name}", *pairs, TOOL_CALL.close)), changed)
