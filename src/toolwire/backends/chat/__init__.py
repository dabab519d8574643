"""The Chat Completions API as a backend: vLLM, Ollama, llama.cpp, DeepSeek, and whatever else speaks it.

POST {base_url}/chat/completions  →  data: {"choices":[{"delta":{…}}]} … data: [DONE], or one plain completion
"""

from collections.abc import Mapping, Sequence

import msgspec

from toolwire.backends.chat.decode import Decoder
from toolwire.backends.chat.encode import encode_request
from toolwire.backends.chat.profile import OPENAI, Profile
from toolwire.backends.failures import refusal
from toolwire.core.backend import Post
from toolwire.core.errors import Failure
from toolwire.core.events import Event
from toolwire.core.identity import Call
from toolwire.core.lowering import lowered
from toolwire.core.request import Request
from toolwire.core.sse import Frame

__all__ = ["OPENAI", "Conversation", "Profile"]


class Conversation:
    """One request to a Chat Completions server and its answer. `seed` makes the ids minted here unique."""

    def __init__(self, request: Request, seed: str, profile: Profile = OPENAI) -> None:
        self._request, self._restore = lowered(request, profile.limits)
        self._decoder = Decoder(seed, [tool.name for tool in self._request.tools])
        self._profile = profile

    def start(self) -> Post:
        body, notes = encode_request(self._request, self._profile, stream=self._request.stream)
        self._decoder.begin(notes)
        accept = "text/event-stream" if self._request.stream else "application/json"
        return Post("/chat/completions", body, {"accept": accept})

    def feed(self, frame: Frame) -> Sequence[Event]:
        return self._restored(self._decoder.feed(frame))

    @property
    def ended(self) -> bool:
        return self._decoder.ended

    def end(self) -> Sequence[Event]:
        return self._restored(self._decoder.end())

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        return self._restored(self._decoder.feed_plain(body))

    def calls(self) -> Sequence[Call]:
        return self._decoder.calls()

    def refused(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        return refusal(status, headers, body)

    def _restored(self, events: Sequence[Event]) -> Sequence[Event]:
        if not self._restore.table:
            return events
        return [out for event in events for out in self._restore.feed(event)]


def profile_from(settings: Mapping[str, object]) -> Profile:
    """A profile with some facts set by the operator."""
    return msgspec.convert({**msgspec.to_builtins(OPENAI), **settings}, Profile)
