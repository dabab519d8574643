"""The Chat Completions API as a backend: vLLM, Ollama, llama.cpp, DeepSeek, and whatever else speaks it.

POST {base_url}/chat/completions  →  data: {"choices":[{"delta":{…}}]} … data: [DONE], or one plain completion
"""

from collections.abc import Mapping

import msgspec

from toolwire.backends.chat.decode import Decoder
from toolwire.backends.chat.encode import encode_request
from toolwire.backends.chat.fold import DIALECT
from toolwire.backends.chat.profile import OPENAI, Profile
from toolwire.backends.chat.prompt import with_prompted_tools
from toolwire.backends.chat.text_readers import with_text_readers
from toolwire.backends.lowered import LoweredConversation
from toolwire.core.backend import Post
from toolwire.core.request import Request

__all__ = ["OPENAI", "PATH", "Conversation", "Profile"]

PATH = "/chat/completions"
"""What follows the base URL."""


class Conversation(LoweredConversation):
    """One request to a Chat Completions server and its answer. `seed` makes the minted ids unique."""

    def __init__(self, request: Request, seed: str, profile: Profile = OPENAI) -> None:
        super().__init__(request, profile.limits)
        keeps, snapshots = request.dialect == DIALECT, profile.arguments == "snapshot"
        decoder = Decoder(seed, self._names, snapshots=snapshots, keeps_frames=keeps, choices=request.choices)
        self._decoder = with_text_readers(decoder, profile, self._request, seed)
        self._profile = profile
        self._declared = request.tools

    def start(self) -> Post:
        if self._profile.tools == "prompt":
            self._request, notes = with_prompted_tools(self._request, self._profile.prompt_notation)
            self._declared = self._request.tools
            self._decoder.begin(notes)
        request = self._request
        body, notes = encode_request(request, self._profile, stream=request.stream, declared=self._declared)
        self._decoder.begin(notes)
        accept = "text/event-stream" if self._request.stream else "application/json"
        return Post(PATH, body, {"accept": accept})


def profile_from(settings: Mapping[str, object]) -> Profile:
    """The default profile with the operator's settings."""
    return msgspec.convert({**msgspec.to_builtins(OPENAI), **settings}, Profile)
