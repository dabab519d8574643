"""The Responses API as a backend: OpenAI, the ChatGPT Codex backend and compatible servers.

POST {base_url}/responses  →  event: response.created … response.completed, or one plain response object
"""

from collections.abc import Mapping

import msgspec

from toolwire.backends.lowered import LoweredConversation, fit_request, select_fields
from toolwire.backends.responses.decode import Decoder
from toolwire.backends.responses.encode import encode_request
from toolwire.backends.responses.profile import CHATGPT, OPENAI, USAGE_PATH, Profile
from toolwire.backends.responses.wire import DIALECT
from toolwire.core.backend import Opening, Post
from toolwire.core.errors import Failure
from toolwire.core.request import Request

__all__ = [
    "CHATGPT",
    "OPENAI",
    "PATH",
    "USAGE_PATH",
    "Conversation",
    "Profile",
    "count_tokens",
    "profile_from",
]

PATH = "/responses"
"""The path below the base URL."""


class Conversation(LoweredConversation):
    """One request to a Responses server and its answer. `seed` makes the minted ids unique."""

    def __init__(self, request: Request, seed: str, profile: Profile = OPENAI) -> None:
        super().__init__(request, profile.limits)
        keeps, snapshots = request.dialect == DIALECT, profile.arguments == "snapshot"
        self.decoder = Decoder(seed, self.lowered.tool_names, snapshots=snapshots, keeps_frames=keeps)
        self._profile = profile

    def start(self) -> Opening:
        streamed = self.lowered.stream or self._profile.always_streams
        body, notes = encode_request(self.lowered, self._profile, stream=streamed)
        self.decoder.opening += notes
        accept = "text/event-stream" if streamed else "application/json"
        return Post(PATH, body, {"accept": accept, **self._profile.headers})

    def read_error(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        failure = super().read_error(status, headers, body)
        if status == 401 and self._profile.login_hint:
            message = f"{failure.message.rstrip('.')}. {self._profile.login_hint}"
            return msgspec.structs.replace(failure, message=message)
        return failure


_COUNTED = frozenset(
    ("model", "input", "instructions", "tools", "tool_choice", "text", "reasoning", "truncation", "parallel_tool_calls")
)


def count_tokens(request: Request, profile: Profile) -> Post:
    """The HTTP request that counts the tokens of a request."""
    lower, _ = fit_request(request, profile.limits)
    body, _ = encode_request(lower, profile, stream=False)
    return Post("/responses/input_tokens", select_fields(body, _COUNTED))


def profile_from(settings: Mapping[str, object], base: Profile = OPENAI) -> Profile:
    """A profile with the operator's settings."""
    return msgspec.convert({**msgspec.to_builtins(base), **settings}, Profile)
