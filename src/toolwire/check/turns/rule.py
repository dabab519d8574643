"""Rules and findings."""

from typing import Literal, TypeAlias

import msgspec

from toolwire.check.turns.loose import Json
from toolwire.core.events import Dialect

Level: TypeAlias = Literal["MUST", "SHOULD"]
"""MUST: clients lose or mangle calls if it is broken. SHOULD: some clients fail, or other information is lost."""

ALL_APIS = "OpenAI Chat Completions, OpenAI Responses, Anthropic Messages, Google Gemini"


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One requirement for an endpoint."""

    id: str
    """Stable; `area.name`."""
    requirement: str
    """The requirement in one sentence."""
    harm: str
    """Who is harmed if it is broken, and how."""
    level: Level
    required_by: str = ""
    """The specification or the client that requires it; empty if it is the specification of its area."""
    on: Literal["stream", "plain", "turn", "conversation"] = "stream"
    """What can break it: a stream, a plain answer, either of them, or a conversation."""
    needs: Literal["", "call", "error", "text", "time"] = ""
    """What a turn must contain to test the rule."""
    fields: tuple[str, ...] = ()
    """The JSON fields that show the fault in a frame or a request; `outer.inner` is a field in another."""
    explains: tuple[str, ...] = ()
    """Rules that break along with this one, in the same answer: ids, or `area.*` for all of an area."""
    implies: tuple[str, ...] = ()
    """Rules that break along with this one in other answers of the same API."""
    apis: tuple[str, ...] = ()
    """The APIs that it applies to; empty for all."""
    specification: str = ALL_APIS
    """The specification of its area."""

    @property
    def area(self) -> str:
        """The first part of the id."""
        return self.id.partition(".")[0]

    @property
    def source(self) -> str:
        """The specification or the client that requires it."""
        return self.required_by or self.specification


class Finding(msgspec.Struct, frozen=True):
    """One observed violation of a rule."""

    rule: str
    detail: str
    """What is wrong, in one sentence."""
    frames: tuple[int, ...] = ()
    """The positions of the frames that show it."""
    parts: tuple[str, ...] = ()
    """The faulty parts of these frames: fields, as in the rule, or texts; by default the fields of the rule."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"


class RequestFacts(msgspec.Struct, frozen=True):
    """The facts about a request that the rules depend on."""

    api: Dialect
    tools: tuple[str, ...] | None = None
    """The names of the declared tools; None if the request is unknown."""
    usage: bool | None = None
    """Whether token counts were requested in a stream; None if the request is unknown."""
    forced: bool = False
    """Whether the request named the tool to call."""
    extended: bool = False
    """Whether events beyond the protocol were requested."""
    socket: bool = False
    """Whether the events come over a WebSocket, without names and without a final marker."""
    fields: Json = {}
    """The request as it was sent; empty if it is unknown."""
