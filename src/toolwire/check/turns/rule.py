"""What a rule is, and what it is to break one."""

from typing import Any, Literal, TypeAlias

import msgspec

from toolwire.core.events import Dialect

Level: TypeAlias = Literal["MUST", "SHOULD"]
"""MUST: clients lose or mangle calls where it is broken. SHOULD: some client stumbles, or something is lost besides."""


class Rule(msgspec.Struct, frozen=True):
    """One demand on an endpoint."""

    id: str
    """Stable: `area.what`."""
    level: Level
    says: str
    """The demand in one sentence."""
    source: str
    """The specification or the client that demands it."""
    harm: str
    """What goes wrong where it is broken."""
    on: Literal["stream", "plain", "turn", "talk"] = "stream"
    """What can break it: a stream, a plain answer, either of them, or a conversation."""
    needs: Literal["", "call", "error", "text", "time"] = ""
    """What has to be in a turn for the rule to say anything about it."""
    explains: tuple[str, ...] = ()
    """Rules that break along with this one, in the same answer: ids, or `area.*` for all of an area."""

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]


class Finding(msgspec.Struct, frozen=True):
    """A rule that was seen broken."""

    rule: str
    says: str
    """What was seen."""
    frames: tuple[int, ...] = ()
    """The places of the frames that show it."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.says}"


class Asked(msgspec.Struct, frozen=True):
    """What a rule has to know of the request."""

    api: Dialect
    tools: tuple[str, ...] | None = None
    """The names of the declared tools; None if the request is not known."""
    usage: bool | None = None
    """Whether the tokens were asked for in a stream; None if the request is not known."""
    forced: bool = False
    """Whether the request named the tool that is to be called."""
    extended: bool = False
    """Whether events beyond the protocol were asked for."""
    socket: bool = False
    """A WebSocket carries the events: they have no names, and no marker ends them."""
    fields: dict[str, Any] = {}
    """The request as it was sent; empty if it is not known."""
