"""The Gemini API as a backend: Google AI Studio and Vertex AI.

POST {base_url}/models/MODEL:streamGenerateContent?alt=sse  →  data: {"candidates": […]} … until the body ends
POST {base_url}/models/MODEL:generateContent                →  {"candidates": […]}
"""

from collections.abc import Mapping

import msgspec

from toolwire.backends.decoder import UNREADABLE
from toolwire.backends.gemini.decode import DIALECT, Decoder
from toolwire.backends.gemini.encode import encode_request, make_path
from toolwire.backends.gemini.failures import refine_failure
from toolwire.backends.gemini.profile import GOOGLE, Profile
from toolwire.backends.lowered import LoweredConversation, fit_request
from toolwire.core.backend import Post
from toolwire.core.errors import Failure
from toolwire.core.raw import to_json
from toolwire.core.request import Request

__all__ = [
    "GOOGLE",
    "MODELS_PATH",
    "PATH",
    "Conversation",
    "Profile",
    "convert_models",
    "count_tokens",
    "profile_from",
    "read_count",
]

PATH = "/models/gemini-flash-latest:generateContent"
"""A path below the base URL. Each model has its own; this one Google keeps for its newest."""
MODELS_PATH = "/models?pageSize=1000"
"""The path of the list of models. By default Google returns only fifty."""


class Conversation(LoweredConversation):
    """One request to a server of the Gemini API and its answer. `seed` makes the minted ids unique."""

    def __init__(self, request: Request, seed: str, profile: Profile = GOOGLE) -> None:
        super().__init__(request, profile.limits)
        names = [tool.name for tool in self.lowered.tools]
        self.decoder = Decoder(seed, names, keeps_frames=request.dialect == DIALECT)
        self._profile = profile

    def start(self) -> Post:
        request, profile = self.lowered, self._profile
        body, notes = encode_request(request, profile, self.restore.declared)
        self.decoder.opening += notes
        method = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
        return Post(make_path(request.model, method), to_json(body))

    def read_error(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        return refine_failure(super().read_error(status, headers, body), body)


_COUNTED = ("contents", "systemInstruction", "tools", "generationConfig")


def count_tokens(request: Request, profile: Profile) -> Post:
    """The HTTP request that counts the tokens of a request."""
    lower, restore = fit_request(request, profile.limits)
    body, _ = encode_request(lower, profile, restore.declared)
    if profile.vertex:
        body = {name: body[name] for name in _COUNTED if name in body}
    else:
        body = {"generateContentRequest": {"model": f"models/{request.model.removeprefix('models/')}", **body}}
    return Post(make_path(request.model, "countTokens"), to_json(body))


class _TokenCount(msgspec.Struct, rename="camel"):
    total_tokens: int


def read_count(body: bytes) -> int:
    """The number of tokens in an answer to `count_tokens`. Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(body, type=_TokenCount).total_tokens


class _Model(msgspec.Struct, rename="camel"):
    name: str
    input_token_limit: int = 0


class _Models(msgspec.Struct):
    models: list[_Model]


def convert_models(body: bytes) -> bytes:
    """Google's list of models in OpenAI's form; anything else as it is."""
    try:
        listed = msgspec.json.decode(body, type=_Models).models
    except UNREADABLE:
        return body
    data = [{"id": each.name.removeprefix("models/"), "context_length": each.input_token_limit} for each in listed]
    return to_json({"data": data})


def profile_from(settings: Mapping[str, object]) -> Profile:
    """The default profile with the operator's settings."""
    return msgspec.convert(dict(settings), Profile)
