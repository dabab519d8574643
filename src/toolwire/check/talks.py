"""A talk with an endpoint, in which it is tried for the rules of behaviour."""

from contextlib import AbstractAsyncContextManager

import msgspec

from toolwire.check.apis import Api, Ask
from toolwire.check.endpoint import LATE, Endpoint
from toolwire.check.exchange import Exchange
from toolwire.check.socket import Line, connected
from toolwire.check.turns.loose import Json, as_object, parsed
from toolwire.check.turns.rule import Asked, Finding
from toolwire.check.turns.streams import StreamCheck, check_plain
from toolwire.check.turns.turn import Turn
from toolwire.check.verdicts import Verdicts


class Talk:
    """One API of an endpoint, in all its probes: it asks, and says what it has seen."""

    def __init__(self, endpoint: Endpoint, api: Api, verdicts: Verdicts) -> None:
        self.api = api
        self._endpoint = endpoint
        self._verdicts = verdicts
        self._habits: dict[bytes, int] = {}
        model = endpoint.target.model
        self.is_demo = model == "demo" or model.endswith("/demo")

    async def ask(self, ask: Ask, situation: str = "", *, leave_after: int = 0) -> Exchange:
        """Ask the model; a scripted one can be asked for a situation. What breaks down by chance is asked again."""
        model = f"{self._endpoint.target.model}-{situation}" if situation and self.is_demo else ""
        got = await self._endpoint.ask(self.api, ask, model, leave_after=leave_after)
        if has_broken_down(got):
            got = await self._endpoint.ask(self.api, ask, model, leave_after=leave_after)
        if got.ok and not model:
            self._habits[_key(ask)] = max(self._habits.get(_key(ask), 0), len(got.turn.calls))
        return got

    async def calls_made(self, ask: Ask) -> int:
        """How many calls the model makes when it is asked so, which is asked once."""
        if _key(ask) not in self._habits:
            await self.ask(ask)
        return self._habits.setdefault(_key(ask), 0)

    async def post(self, body: bytes, path: str = "") -> Exchange:
        return await self._endpoint.post(self.api, body, path)

    def connected(self) -> AbstractAsyncContextManager[Line]:
        """The same API over a WebSocket. Raises `NoSocket`."""
        return connected(self._endpoint, self.api)

    async def get(self, path: str) -> Exchange:
        return await self._endpoint.get(path, self.api)

    def body(self, ask: Ask, model: str = "") -> Json:
        """What would be sent, to be changed and posted."""
        return self._endpoint.body(self.api, ask, model)

    # What was seen

    def judge(self, rule: str, holds: bool, says: str, exchange: Exchange) -> None:
        """The rule was put to the test."""
        self._verdicts.see(rule, self.api.name)
        if not holds:
            turn = exchange.turn
            frames = tuple(place for call in turn.calls for place in call.frames) or turn.last
            self._verdicts.find(self.api.name, Finding(rule, says, frames), exchange.number)

    def unseen(self, rule: str, why: str) -> None:
        """The rule could not be put to the test: the model did not do what it was asked for."""
        self._verdicts.miss(rule, self.api.name, why)

    def needs_turn(self, rule: str, exchange: Exchange) -> bool:
        """Whether a turn came that the rule can be seen in; if not, that is said. A request may be refused."""
        if has_broken_down(exchange):
            self.judge(rule, False, f"A sound request was answered twice with {why_not(exchange)}.", exchange)
        elif not exchange.ok:
            self.unseen(rule, why_not(exchange))
        return exchange.ok

    def needs_call(self, rule: str, exchange: Exchange) -> bool:
        """Whether a turn came that has a call."""
        if not self.needs_turn(rule, exchange):
            return False
        if not exchange.turn.calls:
            self.unseen(rule, "the model did not call the tool")
        return bool(exchange.turn.calls)

    def answered(self, rule: str, exchange: Exchange) -> None:
        """The request must be taken. A turn that began and did not end breaks other rules."""
        if _says_nothing(exchange) or (400 <= exchange.status < 500 and not self.was_answered_like(exchange)):
            self.unseen(rule, why_not(exchange))
        else:
            self.judge(rule, exchange.ok, f"The answer is {why_not(exchange)}.", exchange)

    def was_answered_like(self, exchange: Exchange) -> bool:
        """Whether a turn came in the same way, streamed or plain: not every server knows both."""
        stream = as_object(parsed(exchange.sent.body)).get("stream")
        return any(
            each.ok and each.api == exchange.api and each.streamed == stream and not each.is_socket
            for each in self._endpoint.exchanges
        )

    def refused_or_answered(self, rule: str, exchange: Exchange) -> None:
        """The request may be refused, but in the right way."""
        if 400 <= exchange.status < 500 and not _says_nothing(exchange):
            self.refused(rule, exchange, "The request")
        else:
            self.answered(rule, exchange)

    def refused(self, rule: str, exchange: Exchange, what: str) -> None:
        """The request must be refused, in the right way."""
        if exchange.status in BUSY:
            self.unseen(rule, why_not(exchange))
            return
        says = f"{what} was answered with {exchange.trouble or f'status {exchange.status}'}."
        self.judge(rule, 400 <= exchange.status < 500, says, exchange)
        if exchange.status >= 400 and not exchange.trouble:
            self.check_error(exchange)

    def check_error(self, exchange: Exchange) -> None:
        """Hold the form of an error against the rules."""
        fault = self.api.error_fault(exchange.fields)
        if "json" not in exchange.content_type.lower():
            fault = f"its content type is {exchange.content_type!r}"
        says = f"An error with status {exchange.status} is not well formed: {fault}."
        self.judge("errors.form", not fault, says, exchange)
        if not fault:
            missing = [key for key in self.api.error_fields if key not in as_object(exchange.fields.get("error"))]
            says = f"An error with status {exchange.status} has no {', '.join(missing)}."
            self.judge("errors.fields", not missing, says, exchange)


def _key(ask: Ask) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(ask, stream=True))


BUSY = (408, 429, 502, 503, 504, 529)
"""An answer that says nothing about the request: too many of them, or somebody behind is not there."""


def has_broken_down(exchange: Exchange) -> bool:
    """The server failed by itself. One that is overloaded says so, with another status."""
    return exchange.status == 500 or (not exchange.status and exchange.trouble != LATE)


def _says_nothing(exchange: Exchange) -> bool:
    return exchange.status in BUSY or (exchange.status == 200 and not exchange.turn.finish)


def why_not(exchange: Exchange) -> str:
    """Why there is no turn in an answer."""
    if exchange.trouble:
        return exchange.trouble
    if exchange.status != 200:
        return f"status {exchange.status}: {exchange.body[:200].decode(errors='replace')}"
    return "a turn that failed" if exchange.turn.finish == "failed" else "a turn that did not end"


def turn_in(got: Exchange) -> Turn:
    """The turn in an answer that no rule is asked about."""
    if got.status != 200 or not got.streamed:
        return check_plain(got.body, Asked(got.api))[1]
    stream = StreamCheck(Asked(got.api))
    stream.feed(got.body)
    stream.end()
    return stream.turn
