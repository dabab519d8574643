"""The operator's settings for workers, and the configuration files of workers.

Codex's own tools and retries are off. There are two files: `config.toml`, and a catalogue of models, because much of
Codex's behaviour depends on its entry for the model. Without ours it would cut long results, summarise long
conversations by itself, or hide the client's tools behind a script of its own.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, cast

import msgspec

from toolwire.adapt.names import Limits

_BARE_KEY = re.compile("[A-Za-z0-9_-]+")

PROVIDER = "toolwire"
"""The model provider in the configuration of workers, unless the operator names another."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The operator's settings for workers."""

    turns: Annotated[int, msgspec.Meta(ge=1)] = 100
    """Concurrent turns of one worker."""
    queue: Annotated[int, msgspec.Meta(ge=0)] = 200
    """Requests that may wait for a worker."""
    patience: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    """Seconds that a request waits for a worker."""
    keep: Annotated[float, msgspec.Meta(ge=0)] = 600.0
    """Seconds that a thread waits for the results of its calls."""
    threads: Annotated[int, msgspec.Meta(ge=1)] = 200
    """Threads after which a worker is replaced: each takes about a megabyte until its worker ends."""
    silence: Annotated[float, msgspec.Meta(gt=0)] = 15.0
    """Seconds without a line after which a worker is asked for the status of its thread."""
    summary: str = "auto"
    """The kind of reasoning summary to ask for."""


LIMITS = Limits(
    name_length=64,  # the limit of its own server
    reserved=("exec_command", "mcp", "shell_command"),
    reserved_start="mcp__",
    strict=False,
    schema=("object_top", "properties", "items", "codex"),
    schema_field="inputSchema",
)
"""The limits of app-server for tools. It would silently omit two of the reserved names."""

_CONFIG = """\
model_provider = "{provider}"
model_catalog_json = {catalogue}
approval_policy = "never"
sandbox_mode = "read-only"
web_search = "disabled"
include_environment_context = false
include_permissions_instructions = false
include_apps_instructions = false
include_collaboration_mode_instructions = false
project_doc_max_bytes = 0
check_for_update_on_startup = false
cli_auth_credentials_store = "file"

[analytics]
enabled = false

[feedback]
enabled = false

[history]
persistence = "none"

[tools]
experimental_request_user_input = {{ enabled = false }}
update_plan = {{ enabled = false }}

[skills]
include_instructions = false
bundled = {{ enabled = false }}

[agents]
enabled = false

[features]
shell_tool = false
unified_exec = false
view_image = false
multi_agent = false
goals = false
apps = false
plugins = false
image_generation = false
tool_suggest = false
hooks = false
shell_snapshot = false
code_mode_host = false
skill_search = false
sleep_tool = false
unbounded_connection_retries = false

[model_providers.{provider}]
wire_api = "responses"
supports_websockets = false
request_max_retries = 0
stream_max_retries = 0
stream_idle_timeout_ms = {idle}
{server}
"""

_LOGIN = """\
name = "OpenAI"
requires_openai_auth = true
"""
"""With this name and the user's login Codex uses its own server, and its retries can still be configured."""

_MODEL: dict[str, Any] = {
    "description": None,
    "default_reasoning_level": None,
    "supported_reasoning_levels": [],
    "visibility": "list",
    "supported_in_api": True,
    "priority": 1,
    "availability_nux": None,
    "upgrade": None,
    "base_instructions": "You are a helpful assistant.",
    "support_verbosity": True,
    "default_verbosity": None,
    "shell_type": "disabled",
    "apply_patch_tool_type": None,
    "tool_mode": "direct",
    "multi_agent_version": "disabled",
    "use_responses_lite": False,
    "supports_search_tool": False,
    "experimental_supported_tools": [],
    "truncation_policy": {"mode": "tokens", "limit": 1_000_000_000},
}
"""The catalogue entry of every model. Nothing in it makes Codex add, cut or summarise content."""


def write_configuration(catalogue: str, idle: float, base_url: str = "", key_variable: str = "") -> str:
    """The text of `config.toml`. Without an address the user's own login determines the server."""
    lines = _LOGIN if not base_url else f'name = "{PROVIDER}"\nbase_url = {_to_toml(base_url)}\n'
    if key_variable:
        lines += f"env_key = {_to_toml(key_variable)}\n"
    return _CONFIG.format(provider=PROVIDER, catalogue=_to_toml(catalogue), idle=int(idle * 1000), server=lines)


def write_catalogue(models: Iterable[str]) -> bytes:
    """The catalogue of models, as JSON. It must list at least one."""
    names = [*dict.fromkeys(models)] or ["none"]
    return msgspec.json.encode({"models": [{"slug": name, "display_name": name, **_MODEL} for name in names]})


def make_arguments(overrides: Mapping[str, Any]) -> list[str]:
    """Further settings as arguments: `-c key=value`, with a dot between the names of nested tables.

    Codex splits keys at every dot and knows no quotes there, so a table with another name in it is a value.
    """
    return [each for key, value in _flatten(overrides, "") for each in ("-c", f"{key}={_to_toml(value)}")]


def find_key_variables(overrides: Mapping[str, Any]) -> list[str]:
    """The environment variables from which providers of these settings take their keys."""
    found: list[str] = []
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            found += find_key_variables(cast("Mapping[str, Any]", value))
        elif isinstance(value, str) and key.rpartition(".")[2] == "env_key":
            found.append(value)
    return found


def _flatten(table: Mapping[str, Any], path: str) -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, Mapping) and all(map(_BARE_KEY.fullmatch, cast("Mapping[str, Any]", value))):
            yield from _flatten(cast("Mapping[str, Any]", value), name)
        else:
            yield name, value


def _to_toml(value: Any) -> str:
    """A value in TOML, where strings, numbers and booleans are written as in JSON."""
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        return f"{{{','.join(f'{_to_toml(key)}={_to_toml(each)}' for key, each in table.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_to_toml, cast('list[Any]', value)))}]"
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
