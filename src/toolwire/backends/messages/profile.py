"""The few facts that differ between Messages servers, as data."""

import msgspec

from toolwire.core.names import Limits


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one server takes."""

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
    refuses: tuple[str, ...] = ()
    """Request fields it answers with an error."""

    @property
    def limits(self) -> Limits:
        return Limits(name_length=128, id_letters="A-Za-z0-9_-", id_length=0)


ANTHROPIC = Profile()
