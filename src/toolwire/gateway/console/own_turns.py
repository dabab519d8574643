"""Turns that the console asks for itself: a kept request once more, or one from its form.

They take the same way as a client's: the endpoint of the dialect, in this process. A replay runs in the name of the
owner of its turn, a request from the form in the name of the viewer.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolwire.config.flags import MODES
from toolwire.core.errors import BadRequest
from toolwire.gateway.console.threads import in_thread
from toolwire.gateway.exchange import FACTS, OUTPUT_MODE
from toolwire.gateway.keys import CALLER, Acting, Caller
from toolwire.protocols import dialects

TURN_HEADER = b"x-toolwire-turn"
MOST_REPLAYS = 4
"""Replays of one viewer at a time."""
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class OwnTurns:
    """Asks the endpoints of this process."""

    def __init__(self, endpoints: Mapping[str, ASGIApp]) -> None:
        self._endpoints = endpoints
        self._replays: Counter[str] = Counter()

    async def replay(self, viewer: str, kept: dict[str, Any], id: str, model: str, receive: Receive) -> dict[str, Any]:
        """Ask a kept request once more, of another model, for as long as whoever looks is there; what came of it."""
        mode, path = _split(kept["path"])
        if path not in self._endpoints:
            message = "This turn answered with tool outputs to a response, which takes them once. Replay that response."
            raise BadRequest(message, code="not_replayable")
        if self._replays[viewer] >= MOST_REPLAYS:
            raise BadRequest(f"{MOST_REPLAYS} replays are running already.", code="busy", status=429)
        caller = Acting(kept["key"], "", kept["owner"])
        heard = _ReplayOutcome()
        self._replays[viewer] += 1
        try:
            body = await in_thread(changed, kept["body"], model, path)
            scope = {"path": path, "headers": kept["headers"], **({OUTPUT_MODE: mode} if mode else {})}
            await self._ask(scope, body, caller, {"replay_of": id}, receive, heard.send)
        finally:
            self._replays[viewer] -= 1
        return {"status": heard.status, "turn": heard.turn, "error": heard.error}

    async def from_form(self, dialect: str, body: bytes, caller: Caller, receive: Receive, send: Send) -> None:
        """Ask what the page has put together, and send the answer to it as it comes."""
        if dialect not in dialects():
            raise BadRequest(f"dialect must be one of {', '.join(dialects())}.", "dialect")
        scope = {"path": dialects()[dialect].module.PATH, "headers": ()}
        await self._ask(scope, body, caller, {"replay_of": "form"}, receive, send)

    async def _ask(
        self, given_scope: Scope, body: bytes, caller: Caller, facts: dict[str, Any], receive: Receive, send: Send
    ) -> None:
        own = ((b"content-type", b"application/json"), (b"user-agent", b"toolwire console"))
        scope: Scope = {
            **given_scope,
            "type": "http",
            "method": "POST",
            "headers": [*own, *given_scope["headers"]],
            "query_string": b"",
            CALLER: caller,
            FACTS: facts,
        }
        given = iter((body,))

        async def request() -> Message:
            for part in given:
                return {"type": "http.request", "body": part, "more_body": False}
            return await receive()

        await self._endpoints[scope["path"]](scope, request, send)


class _ReplayOutcome:
    """Status, turn id and error of an answer; what it says is kept as that of every turn."""

    def __init__(self) -> None:
        self.status = 0
        self.turn = ""
        self.error = ""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.turn = dict(message["headers"]).get(TURN_HEADER, b"").decode()
        elif self.status >= 400:
            self.error = (self.error + message.get("body", b"").decode(errors="replace"))[:2000]


def _split(path: str) -> tuple[str, str]:
    """The output mode that the prefix of a path asks for, if it has one, and the rest of the path."""
    prefix, _, rest = path[1:].partition("/")
    return (prefix, f"/{rest}") if prefix in MODES else ("", path)


def changed(body: bytes, model: str, path: str) -> bytes:
    """A request for another model, which leaves nothing behind."""
    try:
        fields: dict[str, Any] = dict(_fields(body))
    except msgspec.DecodeError:
        raise BadRequest("The request was not kept whole, so it cannot be sent again.") from None
    for name in ("type", "stream_id", "background"):
        fields.pop(name, None)
    fields["model"] = model
    fields.pop("store", None)
    if any(path == side.module.PATH and side.decoding is None for side in dialects().values()):
        fields["store"] = False
    return msgspec.json.encode(fields)
