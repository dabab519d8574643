"""Notations as data: markers and bodies. The reader in `block.py` reads any of them.

A call is enclosed by `open` and `close`, or ends with the last character of its body. Its body is one of

- JSON: `{"name": "search", "arguments": {"q": "x"}}`, or a list of such objects
- tags: `<name>search</name><q>x</q>`, or `<function=search><parameter=q>x</parameter></function>`
- a head that holds the name, and then JSON, tags or nothing: `search[ARGS]{"q": "x"}`, `name="search">…`, `get_date`

A wrapper holds several calls. A head without a name may decide where the text after it goes.
"""

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

JS_SPACE = "\t\n\v\f\r \u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000\ufeff"
"""The characters that JavaScript's `trim` removes, because the client that reads `<use_tool>` uses it."""

Channel: TypeAlias = Literal["text", "reasoning"]
"""Where text is delivered."""


class Tags(msgspec.Struct, frozen=True):
    """A kind of tags. Patterns match a whole opening tag; their first group is the name or the parameter."""

    parameter: re.Pattern[str]
    """An optional second group is `true` if the value is a string, `false` if it is JSON."""
    parameter_close: str
    """Ends a value; `{}` stands for the parameter."""
    trim: Literal["space", "newline"]
    """White space to remove at both ends of a value: all, or exactly one line end."""
    name: re.Pattern[str] | None = None
    name_close: str = ""
    """Ends the name, when it is text between tags. Empty: the name is part of the tag."""
    key_close: str = ""
    """Ends the parameter's name, when it is text between tags; `value_open` then opens the value."""
    value_open: str = ""
    ignored: frozenset[str] = frozenset()

    def matches(self, tag: str) -> bool:
        """Whether a tag is of this kind."""
        named = self.name is not None and self.name.fullmatch(tag)
        return bool(named or self.parameter.fullmatch(tag)) or tag in self.ignored


class Head(msgspec.Struct, frozen=True):
    """Text before the arguments, with the name in the group `name`. It ends after `end` or before `stop`."""

    pattern: re.Pattern[str]
    end: str = ""
    stop: str = ""
    json: bool = True
    """The arguments may follow as JSON."""
    tags: Tags | None = None
    """They may follow as tags."""
    declared: bool = False
    """The head alone is ambiguous: it is valid only where names are declared."""
    channels: Mapping[str, Channel] = {}
    """Where the text after a head without a name goes, by the pattern's group `channel`."""


class Notation(msgspec.Struct, frozen=True):
    """How one call is written."""

    open: str
    close: str = ""
    """Empty: the call ends with the last character of its JSON."""
    json: bool = False
    """It may hold a JSON object with a name and arguments."""
    listed: bool = False
    """A list of such objects is several calls."""
    tags: tuple[Tags, ...] = ()
    """The kinds of tags that it may hold; the first tag decides."""
    head: Head | None = None
    ends: tuple[str, ...] = ()
    """Markers that may follow the call or its channel's text, and are dropped."""


class Wrapper(msgspec.Struct, frozen=True):
    """Several calls between two markers, with nothing but white space around them."""

    open: str
    close: str
    calls: tuple[Notation, ...]
    ends: tuple[str, ...] = ()


Opener: TypeAlias = Notation | Wrapper
