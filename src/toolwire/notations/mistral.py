"""Mistral: `[TOOL_CALLS]`, in the two forms of its tokenizers. Neither has an end marker.

    [TOOL_CALLS]search[ARGS]{"q": "x"}[TOOL_CALLS]get_date[ARGS]{}

    [TOOL_CALLS] [{"name": "search", "arguments": {"q": "x"}}, {"name": "get_date", "arguments": {}}]

Some tokenizers put `[CALL_ID]` and an id before `[ARGS]`, and some servers lose `[ARGS]`. The id is not used: the
structured calls of the same server have others.
"""

import re

from toolwire.notations.table import Head, Notation
from toolwire.notations.write import WrittenCall, escape_markers_in_json

MISTRAL = Notation(
    open="[TOOL_CALLS]",
    json=True,
    listed=True,
    head=Head(
        pattern=re.compile(r"(?P<name>[^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?"),
        end="[ARGS]",
        stop="{",
    ),
)


def write_mistral(name: str, arguments: str) -> WrittenCall:
    """One call, as the newer tokenizers write it."""
    return WrittenCall(f"{MISTRAL.open}{name}[ARGS]{escape_markers_in_json(arguments, (MISTRAL.open,))}")
