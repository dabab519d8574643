"""The few facts that differ between Chat Completions servers, as data."""

from typing import Literal

import msgspec

from toolwire.core.names import Limits


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one server takes."""

    content_beside_calls: Literal["null", "empty", "omit"] = "null"
    """What stands for no text in a message that holds calls: Ollama refuses null, Bedrock refuses the empty string."""
    reasoning: Literal["", "reasoning_content", "reasoning"] = ""
    """The field in which it wants its own reasoning back, if it does."""
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
    id_length: int = 0
    name_length: int = 64
    refuses: tuple[str, ...] = ()
    """Request fields it answers with an error."""

    @property
    def limits(self) -> Limits:
        return Limits(name_length=self.name_length, id_length=self.id_length, id_exact=self.id_exact)


OPENAI = Profile()
