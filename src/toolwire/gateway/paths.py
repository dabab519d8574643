"""Paths that clients write otherwise than they are served here: below a prefix, or with a base URL that is wrong."""

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from toolwire.protocols import dialects

HEALTH_PATHS = ("/healthz", "/readyz", "/metrics")

BASE = "/v1/"
_BASE_WORDS = frozenset(("api", "openai", "anthropic", "v1"))
"""What base URLs end in."""
_LONGEST = 1000


def path_below(path: str, prefix: str) -> str:
    """The rest of a path below the prefix that an application is mounted at."""
    rest = path.removeprefix(prefix.rstrip("/"))
    return rest if rest.startswith("/") else path if rest else "/"


def served_path(path: str) -> str:
    """The path that is meant by `/chat/completions`, `/v1/v1/messages`, `/v1/messages/v1/messages`, `//messages/`, …"""
    if len(path) > _LONGEST or path.startswith(f"{BASE}models/"):  # names of models may hold anything
        return path
    words = [word for word in path.split("/") if word]
    while length := _base_length(words):
        del words[:length]
    return BASE + "/".join(words) if _operation_at_start(words) else path


def _base_length(words: Sequence[str]) -> int:
    """How many words at the start belong to the base URL, which may be that of an operation itself."""
    if words and words[0] in _BASE_WORDS:
        return 1
    operation = _operation_at_start(words)
    rest = words[len(operation) :]
    return len(operation) if operation and rest and (rest[0] == "v1" or _operation_at_start(rest)) else 0


def _operation_at_start(words: Sequence[str]) -> Sequence[str]:
    paths = (side.module.PATH for side in dialects().values())
    operations = (*(path.removeprefix(BASE).split("/") for path in paths), ["models"], ["conversations"])
    return next((each for each in operations if words[: len(each)] == each), ())


def nearest_path(path: str, served: Collection[str]) -> str:
    """The path that was probably meant, if one looks like it."""
    return next(iter(get_close_matches(path[:_LONGEST], served, n=1)), "")
