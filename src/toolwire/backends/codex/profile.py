"""The few facts about a `codex app-server` that an operator may set."""

import msgspec

from toolwire.adapt.names import Limits


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    turns: int = 100
    """Turns that one worker has at a time."""
    queue: int = 200
    """Requests that may wait for a worker."""
    patience: float = 30.0
    """Seconds for which they do."""
    keep: float = 600.0
    """Seconds for which a thread waits for the results of its calls."""
    threads: int = 200
    """Threads after which a worker is replaced: each costs about a megabyte until its worker ends."""
    silence: float = 15.0
    """Seconds without a line after which a worker is asked for the status of its thread."""
    summary: str = "auto"
    """The kind of reasoning summary to ask for."""


LIMITS = Limits(
    name_length=64,  # what its own server takes
    reserved=("exec_command", "mcp", "shell_command"),
    reserved_start="mcp__",
    strict=False,
    schema=("object_top", "properties", "items", "codex"),
    schema_field="inputSchema",
)
"""What app-server takes of tools. Two of the reserved names it would leave out silently."""
