"""The few facts that differ between Messages servers, as data."""

from typing import Annotated, Literal

import msgspec

from toolwire.adapt.names import Limits
from toolwire.adapt.schemas import Need


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The features and limits of one server."""

    arguments: Literal["delta", "snapshot"] = "delta"
    """Whether a `partial_json` is an increment or all of the input so far."""
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] = 32000
    """Sent when the client sets no limit; the API requires one."""
    version: str = "2023-06-01"
    vertex: bool = False
    """It is Vertex AI: the model is in the path, the version in the body."""
    headers: dict[str, str] = {}
    effort: bool = True
    """It supports `output_config.effort` and adaptive thinking."""
    strict: bool = True
    """It supports `strict` on a tool."""
    tool_search: bool = True
    """It supports tool search: `tool_search_tool_…`, `defer_loading` and `tool_reference`."""
    counts_tokens: bool = True
    """It has `/messages/count_tokens`."""
    empty_result: str = ""
    """The text of an empty result, where the server refuses one."""
    refuses: tuple[str, ...] = ()
    """Request fields it answers with an error; `tools.NAME` is a field of every tool."""
    name_length: Annotated[int, msgspec.Meta(ge=1)] = 128
    reserved_names: tuple[str, ...] = ()
    """Tool names that clients may not use."""
    schema: tuple[Need, ...] = ("object_top",)
    """Requirements for the schema of a tool. Anthropic refuses alternatives at the top."""

    @property
    def limits(self) -> Limits:
        """The limits to which a request is lowered."""
        return Limits(
            name_length=self.name_length,
            reserved=self.reserved_names,
            id_chars="A-Za-z0-9_-",
            unique_ids=True,
            search="messages" if self.tool_search else "",
            strict=self.strict,
            schema=self.schema,
            schema_field="input_schema",
        )


ANTHROPIC = Profile()
