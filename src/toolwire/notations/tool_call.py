"""`<tool_call>`: the text form of Hermes, Qwen, GLM and similar models, with any of the bodies of `bodies.py`.

<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>
"""

import msgspec

from toolwire.notations.bodies import between
from toolwire.notations.write import WrittenCall, escape_markers_in_json

TOOL_CALL = between("tool_call")


def write_tool_call(name: str, arguments: str) -> WrittenCall:
    """The block for one call, as Hermes writes it."""
    given = escape_markers_in_json(arguments, (TOOL_CALL.open, TOOL_CALL.close))
    quoted = msgspec.json.encode(name).decode()
    return WrittenCall(f'{TOOL_CALL.open}\n{{"name": {quoted}, "arguments": {given}}}\n{TOOL_CALL.close}')
