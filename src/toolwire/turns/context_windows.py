"""The size of a model's context window, from its server's list of models.

{"data": [{"id": "qwen3", "max_model_len": 32768}]}

OpenAI's own list does not have it. Others have fields of their own: vLLM and SGLang `max_model_len`, OpenRouter,
Together and Kimi `context_length`, Groq `context_window`, Mistral `max_context_length`, Anthropic `max_input_tokens`,
llama.cpp `meta.n_ctx`, in older versions only the size used in training, `meta.n_ctx_train`.
"""

from typing import Any, cast

import msgspec

from toolwire.backends.decoder import UNREADABLE
from toolwire.turns.route import Route
from toolwire.upstream.reply import Broken

_FIELDS = ("max_model_len", "context_length", "context_window", "max_context_length", "max_input_tokens")
_META_FIELDS = ("n_ctx", "n_ctx_train")


class _Models(msgspec.Struct):
    data: list[dict[str, Any]] = []


async def fetch_window(route: Route, model: str, key: str) -> int:
    """The context window in tokens, from the server's list of models; 0 if the list lacks it."""
    if route.list_models is None or route.backend.auth:
        return 0  # the list behind a login has another form
    try:
        return find_window(await route.list_models(key), model)
    except Broken:
        return 0


def find_window(body: bytes, model: str) -> int:
    """The context window of a model in a list; 0 if there is none. A server with one model serves it under any name."""
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except UNREADABLE:
        return 0
    found = next((each for each in models if each.get("id") == model), models[0] if len(models) == 1 else {})
    meta = found.get("meta")
    sizes = [found.get(name) for name in _FIELDS]
    sizes += [cast("dict[str, Any]", meta).get(name) for name in _META_FIELDS] if isinstance(meta, dict) else []
    return next((size for size in sizes if type(size) is int and size > 0), 0)
