"""Settings as they may be shown: without keys, and without what may be one."""

from hashlib import sha256
from typing import Any, cast

import msgspec

from toolwire.config.settings import Settings
from toolwire.core.urls import MASK, bare_url
from toolwire.upstream.environment import SECRET_WORDS

_SECRET_TABLES = ("headers", "http_headers", "env_http_headers", "env")
"""Tables whose values are hidden whatever their names are."""
_NOT_SECRET = ("_env", "env_key", "key_header", "api_key_env", "max_tokens", "counts_tokens")


def masked(value: Any, name: str = "", *, hidden: bool = False) -> Any:
    """A value of a setting with this name."""
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        inside = hidden or name in _SECRET_TABLES
        return {key: masked(each, key, hidden=inside) for key, each in table.items()}
    if isinstance(value, list | tuple):
        return [masked(each, name, hidden=hidden) for each in cast("list[Any]", value)]
    if not isinstance(value, str) or not value:
        return value
    if hidden or (any(word in name.upper() for word in SECRET_WORDS) and not name.endswith(_NOT_SECRET)):
        return MASK
    if "://" in value:
        return bare_url(value)
    # An address with a slip in it may hold a password all the same.
    return MASK if name == "url" and "@" in value and not value.startswith("sqlite:") else value


def version_of(settings: Settings) -> str:
    """A hash of the settings without their secrets: equal settings have equal versions in every process."""
    shown = masked(msgspec.to_builtins(msgspec.structs.replace(settings, file="")))
    return sha256(msgspec.json.encode(shown, order="deterministic")).hexdigest()[:12]
