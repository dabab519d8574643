"""How many tokens a model takes, as the list of models of its server tells it.

{"data": [{"id": "qwen3", "max_model_len": 32768}]}

OpenAI's own list says nothing of it. Others have fields of their own: vLLM and SGLang `max_model_len`, OpenRouter,
Together and Kimi `context_length`, Groq `context_window`, Mistral `max_context_length`, Anthropic `max_input_tokens`,
llama.cpp `meta.n_ctx`, or in older versions only what the model was trained with, `meta.n_ctx_train`.
"""

from typing import Any

import msgspec

from toolwire.turns.routes import Route
from toolwire.upstream.reply import Broken


class _Meta(msgspec.Struct):
    n_ctx: Any = None
    n_ctx_train: Any = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: Any = None
    context_length: Any = None
    context_window: Any = None
    max_context_length: Any = None
    max_input_tokens: Any = None
    meta: _Meta | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


async def listed_window(route: Route, model: str, key: str) -> int:
    """Tokens that a model takes, by its server's list; 0 if that does not say."""
    if route.list_models is None or route.backend.auth:
        return 0  # behind a login the list is another one
    try:
        return window_in(await route.list_models(key), model)
    except Broken:
        return 0


def window_in(body: bytes, model: str) -> int:
    """The same of a list. A server with a single model serves it under any name."""
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0
    found = [each for each in models if each.id == model] or (models if len(models) == 1 else [])
    return _window(found[0]) if found else 0


def _window(model: _Model) -> int:
    meta = model.meta or _Meta()
    said = (
        model.max_model_len,
        model.context_length,
        model.context_window,
        model.max_context_length,
        model.max_input_tokens,
        meta.n_ctx,
        meta.n_ctx_train,
    )
    return next((number for number in said if type(number) is int and number > 0), 0)
