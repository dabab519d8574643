"""Rules and findings."""

from functools import partial
from typing import Literal, TypeAlias

import msgspec

from toolwire.check.turns.loose import Json, as_object, as_objects, as_text
from toolwire.core.events import Dialect

Level: TypeAlias = Literal["MUST", "SHOULD"]
"""MUST: clients lose or mangle calls where it is broken. SHOULD: some clients fail, or
other information is lost."""

SPECIFICATIONS = {
    "chat": "OpenAI Chat Completions",
    "responses": "Open Responses",
    "messages": "Anthropic Messages",
    "sse": "WHATWG server-sent events",
    "socket": "Open Responses; Codex",
    "compact": "OpenAI Responses, Open Responses; Codex",
}
"""What an area's rules are taken from, for the areas that are not common to all APIs."""
ALL_APIS = "OpenAI Chat Completions, OpenAI Responses, Anthropic Messages"

CALL_ID = ("tool_calls.id", "call_id", "content_block.id", "content.id")
CALL_NAME = ("tool_calls.name", "item.name", "output.name", "content_block.name", "content.name")
CALL_ARGUMENTS = ("arguments", "partial_json", "content_block.input", "content.input")
FINISH = ("finish_reason", "stop_reason", "status")
"""Where the APIs have the id, the name and the arguments of a call, and the reason why a turn ended."""


class Rule(msgspec.Struct, frozen=True):
    """One requirement for an endpoint."""

    id: str
    """Stable: `area.what`."""
    requirement: str
    """The requirement in one sentence."""
    harm: str
    """Who is harmed where it is broken, and how."""
    level: Level
    required_by: str = ""
    """The specification or the client that requires it; empty if it is the specification of its area."""
    on: Literal["stream", "plain", "turn", "conversation"] = "stream"
    """What can break it: a stream, a plain answer, either of them, or a conversation."""
    needs: Literal["", "call", "error", "text", "time"] = ""
    """What a turn must contain to test the rule."""
    fields: tuple[str, ...] = ()
    """Where a frame or a request shows the fault: names of JSON fields, `outer.inner` for one inside of another."""
    explains: tuple[str, ...] = ()
    """Rules that break along with this one, in the same answer: ids, or `area.*` for all of an area."""

    implies: tuple[str, ...] = ()
    """Rules that break along with this one in other answers of the same API."""

    @property
    def area(self) -> str:
        """The first part of the id."""
        return self.id.partition(".")[0]

    @property
    def source(self) -> str:
        """The specification or the client that requires it."""
        return self.required_by or SPECIFICATIONS.get(self.area, ALL_APIS)


must = partial(Rule, level="MUST")
should = partial(Rule, level="SHOULD")


class Finding(msgspec.Struct, frozen=True):
    """One observed violation of a rule."""

    rule: str
    detail: str
    """What is wrong, in one sentence."""
    frames: tuple[int, ...] = ()
    """The positions of the frames that show it."""
    parts: tuple[str, ...] = ()
    """What is wrong in them: fields, as in the rule, or texts; those of the rule if there are none."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"


class RequestFacts(msgspec.Struct, frozen=True):
    """The facts about a request that the rules depend on."""

    api: Dialect
    tools: tuple[str, ...] | None = None
    """The names of the declared tools; None if the request is not known."""
    usage: bool | None = None
    """Whether token counts were requested in a stream; None if the request is not known."""
    forced: bool = False
    """Whether the request named the tool that is to be called."""
    extended: bool = False
    """Whether events beyond the protocol were requested."""
    socket: bool = False
    """A WebSocket carries the events: they have no names, and no marker ends them."""
    fields: Json = {}
    """The request as it was sent; empty if it is not known."""


def request_facts(api: Dialect, body: Json) -> RequestFacts:
    """The facts about a request that the rules depend on."""
    if not body:
        return RequestFacts(api)
    names = [_name(tool) for tool in as_objects(body.get("tools"))]
    streamed = api == "chat" and body.get("stream")
    usage = bool(as_object(body.get("stream_options")).get("include_usage")) if streamed else None
    forced = bool(_name(as_object(body.get("tool_choice"))))
    return RequestFacts(api, tuple(names) if all(names) else None, usage, forced=forced, fields=body)


def _name(tool: Json) -> str:
    return as_text(as_object(tool.get("function") or tool.get("custom") or tool).get("name"))
