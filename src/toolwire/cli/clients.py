"""Clients of the gateway: how each gets its address, model and key.

Most read environment variables or options, which take precedence over their own configuration files. Where a program
has neither, it reads a file that is made for it. The user's own configuration is never changed.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from toolwire.cli.gateway_address import GatewayAddress
from toolwire.config.decode import did_you_mean, join_reasons
from toolwire.config.presets import PRESETS
from toolwire.config.settings import DEMO, Backend, Settings, SettingsError
from toolwire.memory.private_files import open_private
from toolwire.protocols import backend_kinds
from toolwire.upstream.credentials import NO_KEY

KEY = "TOOLWIRE_KEY"
"""The variable with the key, for clients whose configuration names one."""
FOLDER = "{folder}"
"""In a variable: the directory of the files that are made for the program."""

DEFAULT_WINDOW = 131072
"""The context window for programs that insist on one, in tokens."""
MAX_ANSWER = 16384
"""The tokens of an answer for programs that insist on a limit."""

_TIERS = ("HAIKU", "SONNET", "OPUS", "FABLE")
"""The tiers of models that Claude Code uses for small tasks, subagents and so on."""
_MODEL_VARIABLES = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{tier}_MODEL" for tier in _TIERS))
_OLDER_VARIABLES = frozenset(("ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"))
"""Replaced only if they are set, because they may name a model that the gateway does not have."""
_TIER_WORDS = frozenset(("default", "best", "inherit", "opusplan", *(tier.lower() for tier in _TIERS)))


class Access(msgspec.Struct, frozen=True):
    """What a client needs to know of the gateway."""

    url: str
    """Without /v1."""
    key: str
    model: str
    """Empty: the client chooses one itself."""
    window: int
    """The context window of the model in tokens; 0 if it is unknown."""
    websocket: bool

    @property
    def api(self) -> str:
        """The base URL of OpenAI's APIs."""
        return f"{self.url}/v1"


class ClientSetup(msgspec.Struct, frozen=True):
    """Environment variables for a program, arguments that come before its own, and files for it."""

    variables: dict[str, str]
    arguments: tuple[str, ...] = ()
    files: dict[str, str] = {}
    """The content of files by name; variables contain `FOLDER` where they name one."""
    copied: dict[str, str] = {}
    """Variables with the value of another variable, so that `toolwire env` need not print a key."""

    def with_files_in(self, folder: Path) -> "ClientSetup":
        """Write the files to a directory; returns the setup with its path."""
        for name, content in self.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            with open_private(folder / name, "w") as file:
                file.write(content.encode())
        placed = {name: value.replace(FOLDER, str(folder)) for name, value in self.variables.items()}
        return msgspec.structs.replace(self, variables=placed, files={})


class Client(msgspec.Struct, frozen=True):
    """A program, or a library that many programs use."""

    title: str
    set_up: Callable[[Access], ClientSetup]
    key_variables: tuple[str, ...]
    """The variables that get the key."""
    install: str = ""
    """The command that installs the program; empty for a library."""
    own_model: str = ""
    """A model that the program may choose by default; programs without one must be given a model."""
    model_prefix: str = ""
    """Stands before the model's name in the program's own arguments."""


def _claude(access: Access) -> ClientSetup:
    variables = {
        **{name: "" for name in os.environ if name.startswith("CLAUDE_CODE_USE_")},  # lead to other providers
        "ANTHROPIC_BASE_URL": access.url,
        "ANTHROPIC_AUTH_TOKEN": access.key,
        "ANTHROPIC_API_KEY": "",  # would win over the token
        "CLAUDE_CODE_PROVIDER_MANAGED_BY_HOST": "1",  # else `env` in its settings file wins over ours
        "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY": "1",  # /model lists ours
        # By default Claude Code uses tool search only at Anthropic's address.
        "ENABLE_TOOL_SEARCH": os.environ.get("ENABLE_TOOL_SEARCH") or "true",
    }
    if access.model:
        variables |= dict.fromkeys((*_MODEL_VARIABLES, *(_OLDER_VARIABLES & os.environ.keys())), access.model)
    if access.window:
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(access.window)
    return ClientSetup(variables)


def _codex(access: Access) -> ClientSetup:
    options = {
        "model_provider": "toolwire",
        "model_providers.toolwire.name": "Toolwire",
        "model_providers.toolwire.base_url": access.api,
        "model_providers.toolwire.wire_api": "responses",
        "model_providers.toolwire.env_key": KEY,
        "model_providers.toolwire.supports_websockets": access.websocket,
        **({"model": access.model} if access.model else {}),
        **({"model_context_window": access.window} if access.window else {}),
    }
    # JSON writes strings, numbers and booleans as TOML does.
    pairs = (("-c", f"{name}={_write_json(value)}") for name, value in options.items())
    return ClientSetup({KEY: access.key}, tuple(word for pair in pairs for word in pair))


def _opencode(access: Access) -> ClientSetup:
    limit = {"limit": {"context": access.window, "output": min(access.window, MAX_ANSWER)}} if access.window else {}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Toolwire",
        "options": {"baseURL": access.api, "apiKey": f"{{env:{KEY}}}"},
        "models": {access.model: {"name": access.model, **limit}},
    }
    model = f"toolwire/{access.model}"
    settings = {"provider": {"toolwire": provider}, "model": model, "small_model": model}
    return ClientSetup({"OPENCODE_CONFIG_CONTENT": _write_json(settings), KEY: access.key})


def _aider(access: Access) -> ClientSetup:
    # Variables with its own prefix take precedence over its configuration file.
    variables = {"AIDER_OPENAI_API_BASE": access.api, "AIDER_OPENAI_API_KEY": access.key}
    return ClientSetup({**variables, **dict.fromkeys(("AIDER_MODEL", "AIDER_WEAK_MODEL"), f"openai/{access.model}")})


def _cline(access: Access) -> ClientSetup:
    name = "openai-compatible"
    settings = {"provider": name, "model": access.model, "baseUrl": access.api}
    file = {
        "version": 1,
        "lastUsedProvider": name,
        "modes": {},
        "providers": {name: {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}},
    }
    variables = {
        "CLINE_PROVIDER_SETTINGS_PATH": f"{FOLDER}/providers.json",
        "CLINE_SESSION_BACKEND_MODE": "local",  # else a daemon that outlives it would have the settings of another run
        "OPENAI_API_KEY": access.key,
    }
    return ClientSetup(variables, files={"providers.json": _write_json(file)})


def _qwen(access: Access) -> ClientSetup:
    window = {"generationConfig": {"contextWindowSize": access.window}} if access.window else {}
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"name": access.model},
        "modelProviders": {"openai": [{"id": access.model, "baseUrl": access.api, "envKey": KEY, **window}]},
    }
    # The settings of the system: a model of this name in the user's settings takes precedence over variables.
    variables = {"QWEN_CODE_SYSTEM_SETTINGS_PATH": f"{FOLDER}/settings.json", KEY: access.key}
    return ClientSetup(variables, files={"settings.json": _write_json(settings)})


def _crush(access: Access) -> ClientSetup:
    window = access.window or DEFAULT_WINDOW
    model = {"id": access.model, "name": access.model, "context_window": window, "default_max_tokens": MAX_ANSWER}
    provider = {
        "name": "Toolwire",
        "type": "openai-compat",
        "base_url": access.api,
        "api_key": f"${KEY}",
        "models": [model],
    }
    chosen = {"provider": "toolwire", "model": access.model}
    settings = {"providers": {"toolwire": provider}, "models": {"large": chosen, "small": chosen}}
    return ClientSetup({"CRUSH_GLOBAL_DATA": FOLDER, KEY: access.key}, files={"crush.json": _write_json(settings)})


def _goose(access: Access) -> ClientSetup:
    variables = {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": access.model,
        "OPENAI_HOST": access.url,
        "OPENAI_BASE_PATH": "v1/chat/completions",
        "OPENAI_API_KEY": access.key,
        **({"GOOSE_CONTEXT_LIMIT": str(access.window)} if access.window else {}),
    }
    return ClientSetup(variables)


def _gemini(access: Access) -> ClientSetup:
    # Only its settings choose the login, so it gets a home of its own, with the user's settings beside ours.
    own = Path(os.environ.get("GEMINI_CLI_HOME") or Path.home()) / ".gemini"
    settings = {
        **_read_json(own / "settings.json"),
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        **({"model": {"name": access.model}} if access.model else {}),
    }
    variables = {
        **_google(access),
        "GEMINI_CLI_HOME": FOLDER,
        "GEMINI_CLI_TRUSTED_FOLDERS_PATH": os.environ.get("GEMINI_CLI_TRUSTED_FOLDERS_PATH")
        or str(own / "trustedFolders.json"),
        **({"GEMINI_MODEL": access.model} if access.model else {}),
    }
    return ClientSetup(variables, files={".gemini/settings.json": _write_json(settings)})


def _google(access: Access) -> dict[str, str]:
    # GOOGLE_API_KEY would win over the key.
    return {"GOOGLE_GEMINI_BASE_URL": access.url, "GEMINI_API_KEY": access.key, "GOOGLE_API_KEY": ""}


def _any_program(access: Access) -> ClientSetup:
    openai = {"OPENAI_BASE_URL": access.api, "OPENAI_API_BASE": access.api, "OPENAI_API_KEY": access.key}
    anthropic = {"ANTHROPIC_BASE_URL": access.url, "ANTHROPIC_API_KEY": access.key}
    models = dict.fromkeys(("OPENAI_MODEL", "ANTHROPIC_MODEL"), access.model) if access.model else {}
    return ClientSetup({**openai, **anthropic, **_google(access), **models})


def _read_json(file: Path) -> dict[str, Any]:
    """The object in a file; nothing if there is none."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return {}


def _write_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


CLIENTS: dict[str, Client] = {
    "claude": Client(
        "Claude Code",
        _claude,
        ("ANTHROPIC_AUTH_TOKEN",),
        "npm install -g @anthropic-ai/claude-code",
        "claude-sonnet-4-5",
    ),
    "codex": Client("Codex", _codex, (KEY,), "npm install -g @openai/codex", own_model="gpt-5"),
    "opencode": Client("OpenCode", _opencode, (KEY,), "npm install -g opencode-ai", model_prefix="toolwire/"),
    "aider": Client("Aider", _aider, ("AIDER_OPENAI_API_KEY",), "pipx install aider-chat", model_prefix="openai/"),
    "cline": Client("Cline", _cline, ("OPENAI_API_KEY",), "npm install -g cline"),
    "qwen": Client("Qwen Code", _qwen, (KEY,), "npm install -g @qwen-code/qwen-code"),
    "crush": Client("Crush", _crush, (KEY,), "npm install -g @charmland/crush"),
    "goose": Client("goose", _goose, ("OPENAI_API_KEY",), "brew install block-goose-cli"),
    "gemini": Client(
        "Gemini CLI", _gemini, ("GEMINI_API_KEY",), "npm install -g @google/gemini-cli", "gemini-3.1-pro-preview"
    ),
    "openai": Client(
        "OpenAI's library",
        lambda access: ClientSetup({"OPENAI_BASE_URL": access.api, "OPENAI_API_KEY": access.key}),
        ("OPENAI_API_KEY",),
    ),
    "anthropic": Client(
        "Anthropic's library",
        lambda access: ClientSetup({"ANTHROPIC_BASE_URL": access.url, "ANTHROPIC_API_KEY": access.key}),
        ("ANTHROPIC_API_KEY",),
    ),
    "google": Client("Google's library", lambda access: ClientSetup(_google(access)), ("GEMINI_API_KEY",)),
}
PROGRAMS: dict[str, Client] = {name: client for name, client in CLIENTS.items() if client.install}
ANY_PROGRAM = Client("any program", _any_program, ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"))


def check_model(settings: Settings, model: str) -> None:
    """Raise a `SettingsError` with the nearest names if no backend serves a model."""
    if not settings.serving(model):
        unset = settings.find_unset_key(model)
        hint = f"{unset} is not set" if unset else did_you_mean(model, settings.model_names)
        hint = hint or "toolwire models lists them"
        raise SettingsError(join_reasons(f"--model: there is no model {model!r} here", hint))


def choose_model(settings: Settings, own_model: str) -> str:
    """The first model that the settings name, or the demo model; empty if the client's own model is served.

    Raises `SettingsError` if the settings have globs only, which name no model.
    """
    real = [backend for backend in settings.backends if backend_kinds()[backend.kind].has_model]
    named = [name for backend in real for name in (*backend.literal_models, *backend.aliases)]
    if named:
        return named[0]
    if own_model and any(backend.serves(own_model) for backend in real):
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
    key = find_key(backend) if not settings.needs_key else ""
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
    """How a client uses the gateway. Without a model it chooses one itself."""
    backend, target = _find_backend(settings, model)
    window = backend.context_window(target) if model else 0
    gateway = with_key_for(settings, model or client.own_model, gateway)
    setup = client.set_up(Access(gateway.url, gateway.key or NO_KEY, model, window, settings.server.websocket))
    copied = dict.fromkeys(client.key_variables, gateway.key_variable) if gateway.key_variable else {}
    return msgspec.structs.replace(setup, copied=copied)
