"""What a notation is: markers and bodies, as data. The engine in `block.py` reads any of them.

A block is everything between `open` and `close`. Its body is one of

- JSON: `{"name": "search", "arguments": {"q": "x"}}`
- tags: `<name>search</name><q>x</q>`, or `<function=search><parameter=q>x</parameter></function>`
- a bare name: `get_date`
"""

import re
from typing import Literal

import msgspec

JS_SPACE = "\t\n\v\f\r \u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000\ufeff"
"""What JavaScript's `trim` removes, which is what the client that reads `<use_tool>` does."""


class Json(msgspec.Struct, frozen=True):
    """A JSON object with a name and arguments under any of these keys."""

    name: frozenset[str] = frozenset(("name", "tool", "tool_name", "function"))
    arguments: frozenset[str] = frozenset(("arguments", "parameters", "args", "input"))


class Tags(msgspec.Struct, frozen=True):
    """Tags. Patterns match one whole opening tag; their group is the name or the parameter it opens."""

    name: re.Pattern[str]
    name_close: str
    """Ends the name, when it is text between tags. Empty: the name stands in the tag itself."""
    parameter: re.Pattern[str]
    parameter_close: str
    """Ends a value; `{}` stands for the parameter."""
    ignored: frozenset[str]
    trim: Literal["space", "newline"]
    """What is cut off a value's ends: all white space, or exactly one line end."""


class Notation(msgspec.Struct, frozen=True):
    open: str
    close: str
    tags: Tags
    json: Json = Json()
    bare_names: bool = False
