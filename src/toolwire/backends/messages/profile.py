"""The few facts that differ between Messages servers, as data."""

from typing import Literal

import msgspec

from toolwire.core.names import Limits
from toolwire.core.schemas import Need


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one server takes."""

    arguments: Literal["delta", "snapshot"] = "delta"
    """Whether a `partial_json` is an increment or all of the input so far."""
    max_tokens: int = 32000
    """Sent when the client sets no limit; the API insists on one."""
    version: str = "2023-06-01"
    headers: dict[str, str] = {}
    effort: bool = True
    """It knows `output_config.effort` and adaptive thinking."""
    strict: bool = True
    """It knows `strict` on a tool."""
    counts_tokens: bool = True
    """It has `/messages/count_tokens`."""
    empty_result: str = ""
    """What stands for an empty result where the server refuses one."""
    refuses: tuple[str, ...] = ()
    """Request fields it answers with an error; `tools.NAME` is a field of every tool."""
    name_length: int = 128
    reserved_names: tuple[str, ...] = ()
    """Names of tools that it keeps for itself."""
    schema: tuple[Need, ...] = ("object_top",)
    """What it needs of a tool's schema. Anthropic refuses alternatives at the top."""

    @property
    def limits(self) -> Limits:
        return Limits(
            name_length=self.name_length,
            reserved=self.reserved_names,
            id_letters="A-Za-z0-9_-",
            unique_ids=True,
            strict=self.strict,
            schema=self.schema,
            schema_field="input_schema",
        )


ANTHROPIC = Profile()
