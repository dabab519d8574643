"""Presets: the facts about common servers, which an entry of `[[backends]]` may leave out.

[[backends]]
preset = "deepseek"

is a complete entry. Keys of the entry override those of the preset, even inside the profile. A preset contains only
facts from the server's documentation or its answers; docs/presets.md gives the reason for each.
"""

import re
from difflib import get_close_matches
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from toolwire.config.decode import Table
from toolwire.upstream.credentials import Header


class Preset(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts about one server."""

    title: str
    """The name of the server, for people."""
    kind: str = "chat"
    base_url: str = ""
    api_key_env: str = ""
    models: tuple[str, ...] = ()
    """Globs for the vendor's own models; empty for servers of other vendors' models."""
    profile: Table = {}
    query: dict[str, str] = {}
    key_header: Header | Literal[""] = ""
    auth: str = ""
    """The login in place of a key."""
    address: str = ""
    """The form of `base_url`, if it differs for each user."""
    owner: str = ""
    """The `owned_by` of the models in its list, if that identifies the server."""

    @property
    def fields(self) -> Table:
        """The keys that it fills in, as in a settings file."""
        filled = msgspec.to_builtins(self)
        return {
            "kind": self.kind,
            **{key: value for key, value in filled.items() if key not in ("title", "address", "owner")},
        }


_PLACEHOLDER = re.compile("[A-Z]{3,}")

_GEMINI_CHAT: Table = {
    "thought_signatures": True,
    "parallel": False,
    "refuses": ["frequency_penalty", "prompt_cache_key", "seed", "store"],
    "schema": ["inline_refs", "object_top", "no_const", "nullable", "plain", "items"],
}

PRESETS: dict[str, Preset] = {
    "openai": Preset(
        "OpenAI",
        "responses",
        base_url="https://api.openai.com/v1",
        api_key_env="OPENAI_API_KEY",
        models=("gpt-*", "o[0-9]*", "chatgpt-*", "codex-*"),
        profile={"compacts": True, "counts_tokens": True},
    ),
    "anthropic": Preset(
        "Anthropic",
        "messages",
        base_url="https://api.anthropic.com/v1",
        api_key_env="ANTHROPIC_API_KEY",
        models=("claude-*",),
    ),
    "gemini": Preset(
        "Gemini (Google AI Studio)",
        "gemini",
        base_url="https://generativelanguage.googleapis.com/v1beta",
        api_key_env="GEMINI_API_KEY",
        models=("gemini-*", "models/gemini-*"),
    ),
    "openrouter": Preset(
        "OpenRouter",
        base_url="https://openrouter.ai/api/v1",
        api_key_env="OPENROUTER_API_KEY",
    ),
    "deepseek": Preset(
        "DeepSeek",
        base_url="https://api.deepseek.com/v1",
        api_key_env="DEEPSEEK_API_KEY",
        models=("deepseek-*",),
    ),
    "kimi": Preset(
        "Kimi (Moonshot AI)",
        base_url="https://api.moonshot.ai/v1",
        api_key_env="MOONSHOT_API_KEY",
        models=("kimi-*", "moonshot-*"),
    ),
    "glm": Preset(
        "GLM (Z.ai)",
        base_url="https://api.z.ai/api/paas/v4",
        api_key_env="ZAI_API_KEY",
        models=("glm-*",),
    ),
    "qwen": Preset(
        "Qwen (Alibaba DashScope)",
        base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        api_key_env="DASHSCOPE_API_KEY",
        models=("qwen*", "qwq-*"),
    ),
    "groq": Preset(
        "Groq",
        base_url="https://api.groq.com/openai/v1",
        api_key_env="GROQ_API_KEY",
        profile={"reasoning": "drop", "refuses": ["logit_bias", "logprobs", "top_logprobs"]},
    ),
    "cerebras": Preset(
        "Cerebras",
        base_url="https://api.cerebras.ai/v1",
        api_key_env="CEREBRAS_API_KEY",
        profile={
            "parallel": False,
            "refuses": ["frequency_penalty", "logit_bias", "presence_penalty", "service_tier"],
        },
    ),
    "mistral": Preset(
        "Mistral AI",
        base_url="https://api.mistral.ai/v1",
        api_key_env="MISTRAL_API_KEY",
        models=("mistral-*", "codestral-*", "devstral-*", "magistral-*", "ministral-*"),
        profile={"id_exact": 9, "reasoning": "drop", "usage": False},
    ),
    "xai": Preset(
        "xAI (Grok)",
        base_url="https://api.x.ai/v1",
        api_key_env="XAI_API_KEY",
        models=("grok-*",),
    ),
    "ollama": Preset(
        "Ollama, on this machine",
        base_url="http://127.0.0.1:11434/v1",
        profile={"content_beside_calls": "empty"},
        owner="library",
    ),
    "vllm": Preset("vLLM, on this machine", base_url="http://127.0.0.1:8000/v1", owner="vllm"),
    "sglang": Preset("SGLang, on this machine", base_url="http://127.0.0.1:30000/v1", owner="sglang"),
    "llamacpp": Preset("llama.cpp, on this machine", base_url="http://127.0.0.1:8080/v1", owner="llamacpp"),
    "lmstudio": Preset("LM Studio, on this machine", base_url="http://127.0.0.1:1234/v1", owner="organization_owner"),
    "tgi": Preset("Text Generation Inference, on this machine", base_url="http://127.0.0.1:3000/v1"),
    "azure": Preset(
        "Azure OpenAI",
        "responses",
        api_key_env="AZURE_OPENAI_API_KEY",
        query={"api-version": "v1"},
        key_header="api-key",
        address="https://RESOURCE.openai.azure.com/openai/v1",
    ),
    "foundry": Preset(
        "Microsoft Foundry",
        api_key_env="AZURE_OPENAI_API_KEY",
        query={"api-version": "v1"},
        key_header="api-key",
        address="https://RESOURCE.services.ai.azure.com/openai/v1",
    ),
    "bedrock": Preset(
        "Amazon Bedrock",
        api_key_env="AWS_BEARER_TOKEN_BEDROCK",
        address="https://bedrock-runtime.REGION.amazonaws.com/openai/v1",
    ),
    "gemini-chat": Preset(
        "Gemini, by its Chat Completions endpoint",
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        api_key_env="GEMINI_API_KEY",
        models=("gemini-*", "models/gemini-*"),
        profile=_GEMINI_CHAT,
    ),
    "vertex": Preset(
        "Vertex AI (Google Cloud)",
        "gemini",
        models=("gemini-*",),
        profile={"vertex": True},
        auth="google",
        address="https://aiplatform.googleapis.com/v1/projects/PROJECT/locations/global/publishers/google",
    ),
    "vertex-chat": Preset(
        "Vertex AI, by its Chat Completions endpoint",
        api_key_env="VERTEX_ACCESS_TOKEN",
        models=("google/gemini-*",),
        profile=_GEMINI_CHAT,
        address="https://aiplatform.googleapis.com/v1/projects/PROJECT/locations/global/endpoints/openapi",
    ),
}


def with_preset(entry: Table, name: str) -> Table:
    """An entry of `[[backends]]` completed by its preset. Raises `KeyError`."""
    filled = PRESETS[name].fields
    profile, own = filled.get("profile", {}), entry.get("profile", {})
    if entry.get("kind", filled["kind"]) != filled["kind"]:
        profile = {}  # it is for another protocol
    merged = {"name": name, **filled, **entry}
    if isinstance(own, dict):  # any other type is reported later
        merged["profile"] = {**profile, **own}
    return merged


def find_preset(url: str, owner: str = "") -> str:
    """The preset of a server: a vendor's by its host, any other by the `owned_by` of its models; empty if unknown."""
    host = urlsplit(url).netloc
    for name, preset in PRESETS.items():
        form = re.escape(urlsplit(preset.base_url or preset.address).netloc)
        if (preset.api_key_env or preset.auth) and re.fullmatch(_PLACEHOLDER.sub("[^.]+", form), host):
            return name
    return next((name for name, preset in PRESETS.items() if owner and preset.owner == owner), "")


def find_placeholder(url: str, form: str) -> str:
    """A placeholder of the form of an address, such as RESOURCE, that is still in the address."""
    return next((word for word in _PLACEHOLDER.findall(form) if word in url), "")


def explain_preset(name: str) -> str:
    """The error message for an unknown preset: suggests the nearest by name or vendor, or lists all."""
    words = {
        word: key for key, preset in PRESETS.items() for word in (key, *re.findall(r"[\w.]+", preset.title.lower()))
    }
    near = get_close_matches(re.sub(r"[^a-z0-9]", "", name.lower()), words, n=1, cutoff=0.7)
    hint = f"did you mean {words[near[0]]}?" if near else f"there are {', '.join(PRESETS)}"
    return f"there is no preset {name!r}; {hint}"
