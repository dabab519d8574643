"""The Anthropic Messages API as a backend.

POST {base_url}/messages  →  event: message_start … message_stop, or one plain message
"""

from collections.abc import Mapping, Sequence

import msgspec

from toolwire.backends.failures import refusal
from toolwire.backends.messages.decode import Decoder
from toolwire.backends.messages.encode import encode_request
from toolwire.backends.messages.profile import ANTHROPIC, Profile
from toolwire.core.backend import Post
from toolwire.core.errors import Failure
from toolwire.core.events import Event
from toolwire.core.identity import Call
from toolwire.core.lowering import lowered
from toolwire.core.request import Request
from toolwire.core.sse import Frame

__all__ = ["ANTHROPIC", "Conversation", "Profile", "count_tokens"]


class Conversation:
    """One request to a Messages server and its answer. `seed` makes the ids minted here unique."""

    def __init__(self, request: Request, seed: str, profile: Profile = ANTHROPIC) -> None:
        self._request, self._restore = lowered(request, profile.limits)
        self._decoder = Decoder(seed, [tool.name for tool in self._request.tools])
        self._profile = profile

    def start(self) -> Post:
        body, notes = encode_request(self._request, self._profile, stream=self._request.stream)
        self._decoder.begin(notes)
        return Post("/messages", body, {"anthropic-version": self._profile.version, **self._profile.headers})

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
        failure = refusal(status, headers, body)
        if status == 529:  # Anthropic's own word for 503
            return msgspec.structs.replace(failure, status=503, code="server_is_overloaded")
        return failure

    def _restored(self, events: Sequence[Event]) -> Sequence[Event]:
        if not self._restore.table:
            return events
        return [out for event in events for out in self._restore.feed(event)]


_COUNTED = frozenset(("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"))


def count_tokens(request: Request, profile: Profile) -> Post:
    """The question how many tokens a request has."""
    lower, _ = lowered(request, profile.limits)
    body, _ = encode_request(lower, profile, stream=False)
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    counted = {name: value for name, value in fields.items() if name in _COUNTED}
    headers = {"anthropic-version": profile.version, **profile.headers}
    return Post("/messages/count_tokens", msgspec.json.encode(counted), headers)


def profile_from(settings: Mapping[str, object]) -> Profile:
    """A profile with some facts set by the operator."""
    return msgspec.convert({**msgspec.to_builtins(ANTHROPIC), **settings}, Profile)
