"""The few facts that differ between Chat Completions servers, as data."""

from typing import Annotated, Literal

import msgspec

from toolwire.adapt.names import Limits
from toolwire.adapt.schemas import Need
from toolwire.notations.registry import HERMES, PROMPT_NOTATIONS, NotationName, PromptNotation


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The features and limits of one server."""

    arguments: Literal["delta", "snapshot"] = "delta"
    """Whether a streamed fragment of arguments is an increment or everything so far."""
    content_beside_calls: Literal["null", "empty", "omit"] = "null"
    """How to write the missing text of a message with calls: Ollama refuses null, Bedrock the empty string."""
    reasoning: Literal["", "reasoning_content", "reasoning", "drop"] = ""
    """The field for returned reasoning, if not the one in which the server wrote it. `drop`: none is returned."""
    max_tokens: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    developer: bool = False
    """It supports the role developer; other servers get system messages instead."""
    system: Literal["anywhere", "first"] = "anywhere"
    """`first`: its template accepts one system message, at the beginning; later ones are sent as user text."""
    strict: bool = True
    """It supports `strict` on a tool."""
    parallel: bool = True
    """It supports `parallel_tool_calls`."""
    usage: bool = True
    """It supports `stream_options`, without which some servers report no usage."""
    empty_result: str = ""
    """The text of an empty result, where the server refuses one."""
    id_exact: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Ids of calls have exactly this many alphanumeric characters (Mistral: 9)."""
    id_length: Annotated[int, msgspec.Meta(ge=0)] = 40
    """The longest id of a call (40 is OpenAI's limit); 0 for no limit."""
    name_length: Annotated[int, msgspec.Meta(ge=1)] = 64
    refuses: tuple[str, ...] = ()
    """Request fields it answers with an error."""
    notations: tuple[NotationName, ...] = ()
    """Notations in which its models write reasoning or calls into their text, if the server does not parse them."""
    tools: Literal["native", "prompt"] = "native"
    """`prompt`: it supports no tools, so they are declared in the prompt, and calls are read from the text."""
    thought_signatures: bool = False
    """It refuses calls without Gemini's signature; Google's word for an unknown one stands in for a missing one."""
    hosts: tuple[str, ...] = ()
    """Types of tools that it runs itself, such as `web_search`."""
    schema: tuple[Need, ...] = ("object_top", "properties", "items")
    """Requirements for the schema of a tool. OpenAI refuses alternatives at the top, and arrays without `items`."""

    @property
    def prompt_notation(self) -> PromptNotation:
        """The notation in which a model without tools is asked to write calls: one it was trained on, if possible."""
        return next((PROMPT_NOTATIONS[name] for name in self.notations if name in PROMPT_NOTATIONS), HERMES)

    @property
    def limits(self) -> Limits:
        """The limits to which a request is lowered."""
        return Limits(
            name_length=self.name_length,
            id_length=self.id_length,
            id_exact=self.id_exact,
            strict=self.strict,
            schema=self.schema,
        )


OPENAI = Profile()
