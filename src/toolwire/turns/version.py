"""A short name for settings, equal in every process and on every machine where they are equal."""

from hashlib import sha256

import msgspec

from toolwire.turns.masks import masked
from toolwire.turns.settings import Settings


def version_of(settings: Settings) -> str:
    """A hash of the settings in force but for secrets: it can be shown to anybody, and does not change with a key."""
    shown = masked(msgspec.to_builtins(msgspec.structs.replace(settings, file="")))
    return sha256(msgspec.json.encode(shown, order="deterministic")).hexdigest()[:12]
