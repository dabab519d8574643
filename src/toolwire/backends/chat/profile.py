"""The few facts that differ between Chat Completions servers, as data."""

from typing import Literal

import msgspec

from toolwire.core.names import Limits
from toolwire.core.schemas import Need
from toolwire.notations.known import HERMES, TEACHABLE, NotationName, Taught


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one server takes."""

    arguments: Literal["delta", "snapshot"] = "delta"
    """Whether a streamed fragment of arguments is an increment or everything so far."""
    content_beside_calls: Literal["null", "empty", "omit"] = "null"
    """What stands for no text in a message that holds calls: Ollama refuses null, Bedrock refuses the empty string."""
    reasoning: Literal["", "reasoning_content", "reasoning", "drop"] = ""
    """The field in which it wants its own reasoning back, if not in the one in which it wrote it. `drop`: nowhere."""
    max_tokens: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    developer: bool = False
    """It knows the role developer; others are told the same as system."""
    strict: bool = True
    """It knows `strict` on a tool."""
    parallel: bool = True
    """It knows `parallel_tool_calls`."""
    usage: bool = True
    """It knows `stream_options`, without which some servers count nothing."""
    empty_result: str = ""
    """What stands for an empty result where the server refuses one."""
    id_exact: int = 0
    """Ids of calls have exactly this many letters and digits (Mistral: 9)."""
    id_length: int = 40
    """The longest id of a call, which is OpenAI's limit; 0 is none."""
    name_length: int = 64
    refuses: tuple[str, ...] = ()
    """Request fields it answers with an error."""
    notations: tuple[NotationName, ...] = ()
    """How its models write thoughts or calls into their text, where the server leaves them there."""
    tools: Literal["native", "prompt"] = "native"
    """`prompt`: it knows no tools, which are described in the prompt, and calls are read from the text."""
    hosts: tuple[str, ...] = ()
    """Types of tools that it runs itself, such as `web_search`."""
    schema: tuple[Need, ...] = ("object_top", "properties", "items")
    """What it needs of a tool's schema. OpenAI refuses alternatives at the top, and arrays of it knows not what."""

    @property
    def taught(self) -> Taught:
        """How a model that has no tools is taught to write calls: in a notation of its own, if it has one."""
        return next((TEACHABLE[name] for name in self.notations if name in TEACHABLE), HERMES)

    @property
    def limits(self) -> Limits:
        return Limits(
            name_length=self.name_length,
            id_length=self.id_length,
            id_exact=self.id_exact,
            strict=self.strict,
            schema=self.schema,
        )


OPENAI = Profile()
