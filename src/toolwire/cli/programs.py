"""Programs that talk to the gateway, and what tells each of them where it is.

Claude Code reads its environment. Codex has no variable for the address: it is told by `-c KEY=VALUE`, which goes
before its own configuration file and changes nothing in it.
"""

import json
import os
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from toolwire.cli.reach import Access

Program: TypeAlias = Literal["claude", "codex"]
Client: TypeAlias = Literal["claude", "codex", "openai", "anthropic"]

INSTALL = {
    "claude": "npm install -g @anthropic-ai/claude-code",
    "codex": "npm install -g @openai/codex",
}
"""How to get a program."""

OWN_MODELS = {"claude": "claude-sonnet-4-5", "codex": "gpt-5"}
"""A model of the kind that a program asks for by itself."""

_TIERS = ("HAIKU", "SONNET", "OPUS", "FABLE")
"""Claude Code asks for small tasks, subagents and the like by these names."""
_MODEL_VARIABLES = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{tier}_MODEL" for tier in _TIERS))
_OLDER_VARIABLES = frozenset(("ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"))
"""Set only where they are set already, to something that the gateway may not have."""
_TIER_WORDS = frozenset(("default", "best", "inherit", "opusplan", *(tier.lower() for tier in _TIERS)))

NO_KEY = "unused"
"""Stands where a client insists on a key and the gateway has none."""

CODEX_KEY = "TOOLWIRE_KEY"


class ClientSetup(msgspec.Struct, frozen=True):
    """What a program is told: variables, and arguments that come before its own."""

    variables: dict[str, str]
    copied: dict[str, str] = {}
    """Those among them that are the same as another variable, so that nobody has to see a key."""
    arguments: tuple[str, ...] = ()


def client_setup(
    client: Client, reached: Access, model: str = "", window: int = 0, *, websocket: bool = True
) -> ClientSetup:
    """What a client needs to use the gateway. Without a model it chooses one itself."""
    key = reached.key or NO_KEY
    match client:
        case "claude":
            secret, variables = "ANTHROPIC_AUTH_TOKEN", _claude(reached.url, key, model, window)
        case "codex":
            secret, variables = CODEX_KEY, {CODEX_KEY: key}
        case "openai":
            secret = "OPENAI_API_KEY"
            variables = {"OPENAI_BASE_URL": f"{reached.url}/v1", secret: key}
        case "anthropic":
            secret = "ANTHROPIC_API_KEY"
            variables = {"ANTHROPIC_BASE_URL": reached.url, secret: key}
    copied = {secret: reached.key_variable} if reached.key_variable else {}
    arguments = _codex(f"{reached.url}/v1", model, window, websocket=websocket) if client == "codex" else ()
    return ClientSetup(variables, copied, arguments)


def _claude(url: str, key: str, model: str, window: int) -> dict[str, str]:
    variables = {
        **{name: "" for name in os.environ if name.startswith("CLAUDE_CODE_USE_")},  # lead to other providers
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": key,
        "ANTHROPIC_API_KEY": "",  # would win over the token
        "CLAUDE_CODE_PROVIDER_MANAGED_BY_HOST": "1",  # else `env` in its settings file wins over ours
        "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY": "1",  # /model lists ours
        "ENABLE_TOOL_SEARCH": os.environ.get("ENABLE_TOOL_SEARCH") or "true",  # else only at Anthropic's address
    }
    if model:
        variables |= dict.fromkeys((*_MODEL_VARIABLES, *(_OLDER_VARIABLES & os.environ.keys())), model)
    if window:
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(window)
    return variables


def _codex(url: str, model: str, window: int, *, websocket: bool) -> tuple[str, ...]:
    settings: dict[str, str | int | bool] = {
        "model_provider": "toolwire",
        "model_providers.toolwire.name": "Toolwire",
        "model_providers.toolwire.base_url": url,
        "model_providers.toolwire.wire_api": "responses",
        "model_providers.toolwire.env_key": CODEX_KEY,
        "model_providers.toolwire.supports_websockets": websocket,
    }
    if model:
        settings["model"] = model
    if window:
        settings["model_context_window"] = window
    # JSON is TOML here: a string, a number or a truth value.
    return tuple(
        word for key, value in settings.items() for word in ("-c", f"{key}={json.dumps(value, ensure_ascii=False)}")
    )


def model_in(arguments: Sequence[str]) -> str:
    """The model that the arguments of a program name; not a word of its own for one, such as `opus`."""
    found = ""
    for index, word in enumerate(arguments):
        if word == "--":
            break
        if word in ("--model", "-m") and index + 1 < len(arguments):
            found = arguments[index + 1]
        elif word.startswith("--model="):
            found = word.removeprefix("--model=")
    return "" if found.partition("[")[0] in _TIER_WORDS else found
