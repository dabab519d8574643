"""The few facts that differ between Responses servers, as data."""

from typing import Annotated, Literal

import msgspec

from toolwire.adapt.names import Limits
from toolwire.adapt.schemas import Need


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The features and limits of one server."""

    arguments: Literal["delta", "snapshot"] = "delta"
    """Whether an arguments delta is an increment or everything so far."""
    always_streams: bool = False
    """It answers every request with a stream."""
    system: Literal["input", "instructions"] = "input"
    """The field that opening system and developer messages are sent in."""
    instructions: str = ""
    """Sent when the client has no system message and the server requires one."""
    refuses: tuple[str, ...] = ()
    """Request fields it answers with an error."""
    item_fields_dropped: tuple[str, ...] = ("internal_chat_message_metadata_passthrough",)
    """Fields of input items that are meant for another server; Codex sends one to every provider named OpenAI."""
    include: tuple[str, ...] = ()
    summary: str = ""
    """The kind of reasoning summary to request; some accounts may not request any."""
    compacts: bool = False
    """It answers a `compaction_trigger` with a compaction item."""
    additional_tools: bool = True
    """It supports `additional_tools` items; for other servers their tools are moved to `tools`."""
    tool_search: bool = True
    """It supports tool search: `tool_search`, `defer_loading` and namespaces of tools."""
    counts_tokens: bool = False
    """It has `/responses/input_tokens`."""
    headers: dict[str, str] = {}
    base_url: str = ""
    """Its fixed base URL, where that is not a setting."""
    login_hint: str = ""
    """Advice to the user, added to the message of a 401."""
    name_length: Annotated[int, msgspec.Meta(ge=1)] = 64
    reserved_names: tuple[str, ...] = ()
    """Tool names that clients may not use."""
    id_length: Annotated[int, msgspec.Meta(ge=0)] = 64
    schema: tuple[Need, ...] = ("object_top", "properties", "items")
    """Requirements for the schema of a tool. OpenAI refuses alternatives at the top, and arrays without `items`."""

    @property
    def limits(self) -> Limits:
        """The limits to which a request is lowered."""
        return Limits(
            name_length=self.name_length,
            reserved=self.reserved_names,
            id_length=self.id_length,
            custom=True,
            namespaces=self.tool_search,
            additional_tools=True,
            search="responses" if self.tool_search else "",
            schema=self.schema,
        )


OPENAI = Profile()

CHATGPT = Profile(
    always_streams=True,
    compacts=True,
    system="instructions",
    instructions="You are a helpful assistant.",
    refuses=(
        "max_output_tokens",
        "metadata",
        "prompt_cache_retention",
        "safety_identifier",
        "temperature",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
    ),
    item_fields_dropped=(),
    include=("reasoning.encrypted_content",),
    summary="auto",
    headers={"OpenAI-Beta": "responses=experimental", "originator": "codex_cli_rs"},
    base_url="https://chatgpt.com/backend-api/codex",
    login_hint="Run `codex login` to log in again.",
)
"""The server for accounts that logged in to ChatGPT with `codex login`."""

USAGE_PATH = "/wham/usage"
"""The path of the account's usage on that server."""
