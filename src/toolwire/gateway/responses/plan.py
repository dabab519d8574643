"""What is written down of a background run, so that another process can ask for it again.

Never a key that a client brought for its backend: a run that needs one is asked for by nobody else.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from toolwire.config.flags import HEADERS
from toolwire.dialects.responses import ParsedRequest
from toolwire.gateway.exchange import Exchange
from toolwire.gateway.keys import Caller
from toolwire.gateway.responses.history import ResumedRequest

_encode = msgspec.json.Encoder().encode


class Plan(msgspec.Struct, frozen=True):
    """A request as it was understood."""

    body: msgspec.Raw
    """Its fields and its new items; what these refer to is in them already."""
    headers: dict[str, str] = {}
    """The flags among its headers."""
    output_mode: str = ""
    """The one that its path named."""
    key_name: str = ""
    """The name of the gateway's key that it came with, for the log."""
    conversation: str = ""
    """The conversation that its turn belongs to, also if the request does not name it."""
    answers: str = ""
    """The response whose calls it answers."""
    needs_key: bool = False
    """Its backend gets a key of the client, which is known to nobody else."""

    @property
    def scope(self) -> dict[str, Any]:
        """The request as far as headers and path matter."""
        scope: dict[str, Any] = {"type": "http", "headers": _headers(self.headers)}
        return {**scope, "toolwire.output_mode": self.output_mode} if self.output_mode else scope


def _headers(given: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1", "replace")) for name, value in given.items()]


decode_plan = msgspec.json.Decoder(Plan).decode


def written_plan(exchange: Exchange, resumed: ResumedRequest, caller: Caller, *, needs_key: bool) -> bytes:
    """The plan of a request, as it is kept."""
    headers = {name: exchange.header(name.encode()) for name in HEADERS if name.encode() in exchange.headers}
    return _encode(
        Plan(
            msgspec.Raw(_encode(_body(resumed.asked))),
            headers,
            exchange.scope.get("toolwire.output_mode", ""),
            caller.name,
            resumed.conversation,
            resumed.previous if resumed.answers_calls else "",
            needs_key,
        )
    )


def _body(asked: ParsedRequest) -> dict[str, Any]:
    return {**asked.fields, "input": asked.items}


class ClaimedCaller(msgspec.Struct, frozen=True):
    """Whose run it is, of whom no more is known."""

    owner: str
    upstream_key: str = ""
