"""The few facts that differ between servers of the Gemini API, as data."""

import re
from typing import Annotated, Literal

import msgspec

from toolwire.adapt.names import Limits
from toolwire.adapt.schemas import Need

_GENERATION = re.compile(r"\bgemini-(\d+)")
_NEWEST = 3
_OPENAPI: tuple[Need, ...] = ("inline_refs", "no_const", "nullable", "plain", "items")


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The features and limits of one server."""

    vertex: bool = False
    """It is Vertex AI, not the Gemini API of AI Studio."""
    generation: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The generation of models whose names do not say it; 0: the newest."""
    schema_field: Literal["parametersJsonSchema", "parameters"] = "parametersJsonSchema"
    """The field for the schema of a tool. `parameters` takes only part of JSON Schema."""
    schema: tuple[Need, ...] = ("object_top",)
    """Requirements for the schema of a tool, besides those of `parameters`."""
    ids: Literal["own", "always", "never"] = "own"
    """Which calls keep their id: `own`, those of servers, but not those that were made here because there was none."""
    streams_arguments: bool = False
    """Arguments are streamed in fragments; only Vertex AI can."""
    counts_tokens: bool = True
    """It has `countTokens`."""
    refuses: tuple[str, ...] = ()
    """Request fields it answers with an error; `generationConfig.NAME` is a field in there."""
    name_length: Annotated[int, msgspec.Meta(ge=1)] = 64

    def generation_of(self, model: str) -> int:
        """The generation of a model, which its name usually says."""
        found = _GENERATION.search(model)
        return int(found[1]) if found else self.generation or _NEWEST

    @property
    def schema_needs(self) -> tuple[Need, ...]:
        """All requirements for a schema."""
        return (*(_OPENAPI if self.schema_field == "parameters" else ()), *self.schema)

    @property
    def limits(self) -> Limits:
        """The limits to which a request is lowered."""
        return Limits(
            name_length=self.name_length,
            strict=False,
            schema=self.schema_needs,
            schema_field=self.schema_field,
        )


GOOGLE = Profile()
