"""The Anthropic Messages API as a backend.

POST {base_url}/messages                         →  event: message_start … message_stop, or one plain message
POST {base_url}/models/MODEL:streamRawPredict    the same on Vertex AI
"""

from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from toolwire.backends.lowered import LoweredConversation, fit_request, select_fields
from toolwire.backends.messages.decode import DIALECT, Decoder
from toolwire.backends.messages.encode import encode_request
from toolwire.backends.messages.profile import ANTHROPIC, Profile
from toolwire.core.backend import Post
from toolwire.core.errors import Failure
from toolwire.core.raw import fields_of, to_json
from toolwire.core.request import Request

__all__ = [
    "ANTHROPIC",
    "MODELS_PATH",
    "PATH",
    "Conversation",
    "Profile",
    "count_tokens",
    "profile_from",
]

PATH = "/messages"
"""The path below the base URL."""
MODELS_PATH = "/models?limit=1000"
"""The path of the list of models. By default Anthropic returns only twenty."""


class Conversation(LoweredConversation):
    """One request to a Messages server and its answer. `seed` makes the minted ids unique."""

    def __init__(self, request: Request, seed: str, profile: Profile = ANTHROPIC) -> None:
        super().__init__(request, profile.limits)
        keeps, snapshots = request.dialect == DIALECT, profile.arguments == "snapshot"
        names = [tool.name for tool in self.lowered.tools]
        self.decoder = Decoder(seed, names, snapshots=snapshots, keeps_frames=keeps)
        self._profile = profile

    def start(self) -> Post:
        body, notes = encode_request(self.lowered, self._profile, stream=self.lowered.stream)
        self.decoder.opening += notes
        return _make_post(self.lowered, self._profile, body)

    def read_error(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        failure = super().read_error(status, headers, body)
        if status == 529 and self.lowered.dialect != DIALECT:  # Anthropic's status for overload
            return msgspec.structs.replace(failure, status=503, code="server_is_overloaded")
        return failure


VERTEX_VERSION = "vertex-2023-10-16"
"""The version of the API on Vertex AI."""


def _make_post(request: Request, profile: Profile, body: bytes) -> Post:
    headers = _make_headers(request, profile)
    if not profile.vertex:
        return Post(PATH, body, headers)
    method = "streamRawPredict" if request.stream else "rawPredict"
    fields = {name: value for name, value in fields_of(body).items() if name != "model"}
    body = to_json({"anthropic_version": VERTEX_VERSION, **fields})
    return Post(f"/models/{quote(request.model, safe='@')}:{method}", body, headers)


def _make_headers(request: Request, profile: Profile) -> dict[str, str]:
    betas = {"anthropic-beta": request.betas} if request.betas and request.dialect == DIALECT else {}
    return {"anthropic-version": profile.version, **profile.headers, **betas}


_COUNTED = frozenset(("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"))


def count_tokens(request: Request, profile: Profile) -> Post:
    """The HTTP request that counts the tokens of a request."""
    lower, _ = fit_request(request, profile.limits)
    body, _ = encode_request(lower, profile, stream=False)
    counted, path = select_fields(body, _COUNTED), "/messages/count_tokens"
    if profile.vertex:
        path = "/models/count-tokens:rawPredict"
        counted = to_json({"anthropic_version": VERTEX_VERSION, **fields_of(counted)})
    return Post(path, counted, _make_headers(request, profile))


def profile_from(settings: Mapping[str, object]) -> Profile:
    """The default profile with the operator's settings."""
    return msgspec.convert(dict(settings), Profile)
