"""Clients of the gateway: how each gets its address, model and key.

Claude Code reads environment variables. Codex has none for the address; its option `-c KEY=VALUE` overrides its own
configuration file without changing it.
"""

import json
import os
from collections.abc import Sequence
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from toolwire.cli.gateway_address import GatewayAddress
from toolwire.config.decode import did_you_mean, join_reasons
from toolwire.config.presets import PRESETS
from toolwire.config.settings import DEMO, Backend, Settings, SettingsError
from toolwire.protocols import backend_kinds
from toolwire.upstream.credentials import NO_KEY

Program: TypeAlias = Literal["claude", "codex"]
Client: TypeAlias = Literal["claude", "codex", "openai", "anthropic"]

INSTALL = {
    "claude": "npm install -g @anthropic-ai/claude-code",
    "codex": "npm install -g @openai/codex",
}
"""The command that installs each program."""

OWN_MODELS = {"claude": "claude-sonnet-4-5", "codex": "gpt-5"}
"""A model that each program may choose by default."""

_TIERS = ("HAIKU", "SONNET", "OPUS", "FABLE")
"""The tiers of models that Claude Code uses for small tasks, subagents and so on."""
_MODEL_VARIABLES = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{tier}_MODEL" for tier in _TIERS))
_OLDER_VARIABLES = frozenset(("ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"))
"""Replaced only if they are set, because they may name a model that the gateway does not have."""
_TIER_WORDS = frozenset(("default", "best", "inherit", "opusplan", *(tier.lower() for tier in _TIERS)))

CODEX_KEY = "TOOLWIRE_KEY"


class ClientSetup(msgspec.Struct, frozen=True):
    """Environment variables for a program, and arguments that come before its own."""

    variables: dict[str, str]
    copied: dict[str, str] = {}
    """Variables with the value of another variable, so that `toolwire env` need not print a key."""
    arguments: tuple[str, ...] = ()


def check_model(settings: Settings, model: str) -> None:
    """Raise a `SettingsError` with the nearest names if no backend serves a model."""
    if not settings.serving(model):
        unset = settings.find_unset_key(model)
        hint = f"{unset} is not set" if unset else did_you_mean(model, settings.model_names)
        hint = hint or "toolwire models lists them"
        raise SettingsError(join_reasons(f"--model: there is no model {model!r} here", hint))


def choose_model(settings: Settings, client: Client) -> str:
    """The first model that the settings name, or the demo model; empty if the client's own choice is served.

    Raises `SettingsError` if the settings have globs only, which name no model.
    """
    real = [backend for backend in settings.backends if backend_kinds()[backend.kind].has_model]
    named = [name for backend in real for name in (*backend.literal_models, *backend.aliases)]
    if named:
        return named[0]
    if any(backend.serves(OWN_MODELS[client]) for backend in real):
        return ""
    globs = [f"{backend.name} serves {', '.join(backend.models)}" for backend in real if backend.models]
    if globs:
        raise SettingsError(f"choose a model with --model: {'; '.join(globs)}; toolwire models lists them")
    return DEMO.models[0]


def find_model(arguments: Sequence[str]) -> str:
    """The model in the arguments of a program; empty for the program's own words, such as `opus`."""
    found = ""
    for index, word in enumerate(arguments):
        if word == "--":
            break
        if word in ("--model", "-m") and index + 1 < len(arguments):
            found = arguments[index + 1]
        elif word.startswith("--model="):
            found = word.removeprefix("--model=")
    return "" if found.partition("[")[0] in _TIER_WORDS else found


def with_key_for(settings: Settings, model: str, gateway: GatewayAddress) -> GatewayAddress:
    """The gateway with the key to use for a model: the user's own where the gateway passes it on."""
    backend, _ = _find_backend(settings, model)
    key = find_key(backend) if not settings.keys else ""
    return msgspec.structs.replace(gateway, key=key, key_variable=find_key_variable(backend)) if key else gateway


def find_key(backend: Backend) -> str:
    """The user's own key for a backend that has none of its own; empty if there is none."""
    variable = find_key_variable(backend)
    return os.environ[variable].strip() if variable else ""


def find_key_variable(backend: Backend) -> str:
    """The variable with the user's own key: that of a preset at the same origin, so that no other server gets it."""
    if backend.has_key or not backend.base_url:
        return ""
    origin = urlsplit(backend.base_url)[:2]
    presets = [each for each in PRESETS.values() if urlsplit(each.base_url)[:2] == origin]
    return next((each.api_key_env for each in presets if os.environ.get(each.api_key_env)), "")


def _find_backend(settings: Settings, model: str) -> tuple[Backend, str]:
    """The first backend that serves a model, and the model's name there."""
    found = settings.serving(model)
    return found[0] if found else (DEMO, "")


def set_up_client(settings: Settings, client: Client, model: str, gateway: GatewayAddress) -> ClientSetup:
    """The environment and arguments with which a client uses the gateway. Without a model it chooses one itself."""
    backend, target = _find_backend(settings, model)
    window = backend.context_window(target) if model else 0
    gateway = with_key_for(settings, model or OWN_MODELS.get(client, ""), gateway)
    url, key = gateway.url, gateway.key or NO_KEY
    arguments: list[str] = []
    match client:
        case "claude":
            secret = "ANTHROPIC_AUTH_TOKEN"
            variables = {
                **{name: "" for name in os.environ if name.startswith("CLAUDE_CODE_USE_")},  # lead to other providers
                "ANTHROPIC_BASE_URL": url,
                secret: key,
                "ANTHROPIC_API_KEY": "",  # would win over the token
                "CLAUDE_CODE_PROVIDER_MANAGED_BY_HOST": "1",  # else `env` in its settings file wins over ours
                "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY": "1",  # /model lists ours
                # By default Claude Code uses tool search only at Anthropic's address.
                "ENABLE_TOOL_SEARCH": os.environ.get("ENABLE_TOOL_SEARCH") or "true",
            }
            if model:
                variables |= dict.fromkeys((*_MODEL_VARIABLES, *(_OLDER_VARIABLES & os.environ.keys())), model)
            if window:
                variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(window)
        case "codex":
            secret = CODEX_KEY
            variables = {secret: key}
            options = {
                "model_provider": "toolwire",
                "model_providers.toolwire.name": "Toolwire",
                "model_providers.toolwire.base_url": f"{url}/v1",
                "model_providers.toolwire.wire_api": "responses",
                "model_providers.toolwire.env_key": CODEX_KEY,
                "model_providers.toolwire.supports_websockets": settings.server.websocket,
                **({"model": model} if model else {}),
                **({"model_context_window": window} if window else {}),
            }
            for name, value in options.items():  # JSON writes strings, numbers and booleans as TOML does
                arguments += ("-c", f"{name}={json.dumps(value, ensure_ascii=False)}")
        case "openai":
            secret = "OPENAI_API_KEY"
            variables = {"OPENAI_BASE_URL": f"{url}/v1", secret: key}
        case "anthropic":
            secret = "ANTHROPIC_API_KEY"
            variables = {"ANTHROPIC_BASE_URL": url, secret: key}
    copied = {secret: gateway.key_variable} if gateway.key_variable else {}
    return ClientSetup(variables, copied, tuple(arguments))
