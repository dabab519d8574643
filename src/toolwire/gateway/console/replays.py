"""Turns that the console starts: a recorded request sent again, or a request from the page's form.

They go through the endpoint of their dialect in this process, as those of clients do. A replay runs under the owner of
its turn, a request from the form under the viewer's key.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolwire.config.flags import MODES
from toolwire.core.errors import BadRequest
from toolwire.gateway.console.conversations import FORM
from toolwire.gateway.console.http import HEADERS, run_in_thread
from toolwire.gateway.endpoint import REPLAY_OF
from toolwire.gateway.http import OUTPUT_MODE
from toolwire.gateway.keys import CALLER, Caller
from toolwire.gateway.memory_budget import Reservation
from toolwire.protocols import dialects, find_dialect

TURN_HEADER = b"x-toolwire-turn"
MAX_REPLAYS = 4
"""Maximum number of replays of one viewer at a time."""
MAX_ERROR_LENGTH = 2000
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RecordedRequest(msgspec.Struct, frozen=True):
    """The request of a recorded turn, as `Handlers.request` gives it."""

    owner: str
    key: str
    path: str
    headers: Sequence[tuple[str, str]]
    body: bytes


class ReplayOutcome(msgspec.Struct):
    """The status of an answer, the id of its turn, and the beginning of its error."""

    status: int = 0
    turn: str = ""
    error: str = ""

    async def send(self, message: Message) -> None:
        """Read a message of the answer, whose content is recorded as in any turn."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.turn = dict(message["headers"]).get(TURN_HEADER, b"").decode()
        elif self.status >= 400:
            self.error = (self.error + message.get("body", b"").decode(errors="replace"))[:MAX_ERROR_LENGTH]


class Replays:
    """Sends requests to the endpoints of this process."""

    def __init__(self, endpoints: Mapping[str, ASGIApp]) -> None:
        self._endpoints = endpoints
        self._running: Counter[str] = Counter()

    async def replay(
        self, viewer: str, recorded: RecordedRequest, id: str, model: str, receive: Receive
    ) -> ReplayOutcome:
        """Send the request of a recorded turn to another model, until `receive` reports that the viewer left."""
        prefix, path = split_path(recorded.path)
        parameters = find_dialect(path).match(path)
        if parameters is None:
            message = "This turn submitted tool outputs, which a response accepts once. Replay the response's turn."
            raise BadRequest(message, code="not_replayable")
        if self._running[viewer] >= MAX_REPLAYS:
            raise BadRequest(f"{MAX_REPLAYS} replays are already running.", code="busy", status=429)
        outcome = ReplayOutcome()
        self._running[viewer] += 1
        try:
            body = await run_in_thread(_replace_model, recorded.body, model, path)
            headers = [(name.encode(), value.encode()) for name, value in recorded.headers]
            scope = {"path": path, "path_params": parameters, "headers": headers}
            scope |= {OUTPUT_MODE: prefix} if prefix else {}
            caller = Caller(recorded.key, acts_for=recorded.owner)
            await self._start(scope, body, caller, id, receive, outcome.send)
        finally:
            self._running[viewer] -= 1
        return outcome

    def submit_form(self, dialect: str, body: bytes, caller: Caller, claim: Reservation) -> ASGIApp:
        """The answer to a request that the page composed, streamed. `claim` counts the body until the endpoint does."""
        if dialect not in dialects():
            raise BadRequest(f"dialect must be one of {', '.join(dialects())}.", "dialect")
        scope = {"path": dialects()[dialect].module.PATH, "headers": ()}

        async def stream(_: Scope, receive: Receive, send: Send) -> None:
            claim.release()

            async def send_guarded(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message).update(HEADERS)
                await send(message)

            await self._start(scope, body, caller, FORM, receive, send_guarded)

        return stream

    async def _start(
        self, given: Scope, body: bytes, caller: Caller, replay_of: str, receive: Receive, send: Send
    ) -> None:
        own = ((b"content-type", b"application/json"), (b"user-agent", b"toolwire console"))
        scope: Scope = {
            **given,
            "type": "http",
            "method": "POST",
            "headers": [*own, *given["headers"]],
            "query_string": b"",
            CALLER: caller,
            REPLAY_OF: replay_of,
        }
        bodies = iter((body,))

        async def receive_body() -> Message:
            for part in bodies:
                return {"type": "http.request", "body": part, "more_body": False}
            return await receive()

        await self._endpoints[find_dialect(scope["path"]).module.PATH](scope, receive_body, send)


def split_path(path: str) -> tuple[str, str]:
    """The output mode that prefixes a path, if any, and the rest of the path."""
    prefix, _, rest = path[1:].partition("/")
    return (prefix, f"/{rest}") if prefix in MODES else ("", path)


def _replace_model(body: bytes, model: str, path: str) -> bytes:
    """The same request for another model, which stores nothing."""
    try:
        fields: dict[str, object] = {**_fields(body)}
    except msgspec.DecodeError:
        raise BadRequest("The request was not recorded completely, so it cannot be sent again.") from None
    except RecursionError:
        raise BadRequest("The request is nested too deeply.", code="invalid_json") from None
    for name in ("type", "stream_id", "background", "store"):
        fields.pop(name, None)
    fields["model"] = model
    if any(path == side.module.PATH and side.decode_steps is None for side in dialects().values()):
        fields["store"] = False  # its responses are stored by default
    return msgspec.json.encode(fields)
