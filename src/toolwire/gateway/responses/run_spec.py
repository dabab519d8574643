"""The specification of a background run, stored with it so that another process can ask for it again.

It never holds a key that the client sent for its backend: a run that needs one cannot be repeated elsewhere.
"""

from typing import Any

import msgspec

from toolwire.config.flags import HEADERS
from toolwire.gateway.exchange import Exchange
from toolwire.gateway.http import OUTPUT_MODE
from toolwire.gateway.keys import Caller
from toolwire.gateway.responses.history import ResumedRequest

_encode = msgspec.json.Encoder().encode


class RunSpec(msgspec.Struct, frozen=True):
    """A request of a background run."""

    body: msgspec.Raw
    """Its fields and its new items, with references resolved."""
    headers: dict[str, str] = {}
    """The flags among its headers."""
    output_mode: str = ""
    """The output mode of its path prefix."""
    key_name: str = ""
    """The name of the gateway key that it was sent with, for the log."""
    conversation: str = ""
    """The conversation that its turn belongs to, also if the request does not name it."""
    answers: str = ""
    """The response whose calls it answers."""
    needs_key: bool = False
    """Its backend gets the client's key, which no other process has."""

    @property
    def scope(self) -> dict[str, Any]:
        """An ASGI scope with the headers and the path prefix of the request."""
        headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in self.headers.items()]
        scope: dict[str, Any] = {"type": "http", "headers": headers}
        return {**scope, OUTPUT_MODE: self.output_mode} if self.output_mode else scope


decode_spec = msgspec.json.Decoder(RunSpec).decode


def encode_spec(exchange: Exchange, resumed: ResumedRequest, caller: Caller, *, needs_key: bool) -> bytes:
    """The specification of a request, as it is stored."""
    headers = exchange.turn.head.headers
    return _encode(
        RunSpec(
            msgspec.Raw(_encode({**resumed.parsed.fields, "input": resumed.parsed.items})),
            {name: headers[name.encode()].decode("latin-1") for name in HEADERS if name.encode() in headers},
            exchange.scope.get(OUTPUT_MODE, ""),
            caller.name,
            resumed.conversation,
            resumed.previous if resumed.answers_calls else "",
            needs_key,
        )
    )
