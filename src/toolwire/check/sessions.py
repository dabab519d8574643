"""The session of the probes: sends their requests and records verdicts on the rules."""

import msgspec

from toolwire.check.apis import Api, ProbeRequest, make_facts
from toolwire.check.endpoint import LATE, Endpoint, describe_status
from toolwire.check.exchange import Exchange
from toolwire.check.turns.loose import Json, as_object, parse_json
from toolwire.check.turns.rule import Finding, RequestFacts
from toolwire.check.turns.streams import check_answer
from toolwire.check.turns.turn import ObservedTurn
from toolwire.check.verdicts import Verdicts


class ProbeSession:
    """One API of an endpoint during all probes: sends requests and records verdicts."""

    def __init__(self, endpoint: Endpoint, api: Api, verdicts: Verdicts) -> None:
        self.endpoint = endpoint
        self.api = api
        self._verdicts = verdicts
        self._call_counts: dict[bytes, int] = {}
        model = endpoint.target.model
        self.is_demo = model == "demo" or model.endswith("/demo")

    async def ask(self, request: ProbeRequest, situation: str = "", *, leave_after: int = 0) -> Exchange:
        """Send a request; a server error is retried once. The demo model can be asked for a situation."""
        model = self.choose_model(situation)
        answer = await self.ask_once(request, model, leave_after=leave_after)
        if has_broken_down(answer):
            answer = await self.ask_once(request, model, leave_after=leave_after)
        if answer.ok and not model:
            self._call_counts[_key(request)] = max(self._call_counts.get(_key(request), 0), len(answer.turn.calls))
        return answer

    def choose_model(self, situation: str) -> str:
        """The name under which the demo model acts out a situation; empty for any other model."""
        return f"{self.endpoint.target.model}-{situation}" if situation and self.is_demo else ""

    async def ask_once(self, request: ProbeRequest, model: str = "", *, leave_after: int = 0) -> Exchange:
        """Send a request and check its answer."""
        body = self.make_body(request, model)
        facts = make_facts(self.api.name, body, self.endpoint.target.headers.items())
        path, sent = self.api.split_body(body)
        return await self.endpoint.fetch(self.api, path, msgspec.json.encode(sent), facts, leave_after=leave_after)

    async def count_calls(self, request: ProbeRequest) -> int:
        """The number of calls that the model makes for this request. It is sent once; the number is cached."""
        if _key(request) not in self._call_counts:
            await self.ask(request)
        return self._call_counts.setdefault(_key(request), 0)

    async def post(self, body: Json | bytes, path: str = "") -> Exchange:
        """Send a body as it is; the answer is not checked as a turn."""
        fields: Json = {"model": self.endpoint.target.model} if isinstance(body, bytes) else body
        own_path, sent = self.api.split_body(fields)
        data = body if isinstance(body, bytes) else msgspec.json.encode(sent)
        return await self.endpoint.fetch(self.api, path or own_path, data)

    async def get(self, path: str) -> Exchange:
        """Send a GET request."""
        return await self.endpoint.fetch(self.api, path)

    def make_body(self, request: ProbeRequest, model: str = "") -> Json:
        """The body of a request, with the field names that this model expects."""
        fields = self.api.make_body(request, model or self.endpoint.target.model)
        return {self.endpoint.renamed.get(name, name): value for name, value in fields.items()}

    # Verdicts

    def judge(self, rule: str, holds: bool, detail: str, exchange: Exchange) -> None:
        """Record that the rule was tested, and whether it holds."""
        verdict = self._verdicts[self.api.name, rule]
        verdict.seen += 1
        if not holds:
            turn = exchange.turn
            frames = tuple(position for call in turn.calls for position in call.frames) or turn.last
            verdict.broken.append((Finding(rule, detail, frames), exchange.number))

    def judge_unless_busy(self, rule: str, holds: bool, detail: str, exchange: Exchange) -> None:
        """Record whether the rule holds, or that the server was too busy to test it."""
        if exchange.status in BUSY:
            self.skip(rule, describe_failure(exchange))
        else:
            self.judge(rule, holds, detail, exchange)

    def skip(self, rule: str, reason: str) -> None:
        """Record why the rule could not be tested."""
        verdict = self._verdicts[self.api.name, rule]
        if reason not in verdict.reasons:
            verdict.reasons.append(reason)

    def require_turn(self, rule: str, exchange: Exchange) -> bool:
        """Whether a complete turn was received; if not, records why the rule was not tested or is broken."""
        if has_broken_down(exchange):
            self.judge(rule, False, f"A sound request was answered twice with {describe_failure(exchange)}.", exchange)
        elif not exchange.ok:
            self.skip(rule, describe_failure(exchange))
        return exchange.ok

    def require_call(self, rule: str, exchange: Exchange) -> bool:
        """Whether a complete turn with a call was received; if not, records why."""
        if not self.require_turn(rule, exchange):
            return False
        if not exchange.turn.calls:
            self.skip(rule, "the model did not call the tool")
        return bool(exchange.turn.calls)

    def expect_answer(self, rule: str, exchange: Exchange) -> None:
        """The rule holds if the request was answered by a complete turn."""
        if _is_inconclusive(exchange) or (400 <= exchange.status < 500 and not self.has_answered_like(exchange)):
            self.skip(rule, describe_failure(exchange))
        else:
            self.judge(rule, exchange.ok, f"The answer is {describe_failure(exchange)}.", exchange)

    def has_answered_like(self, exchange: Exchange) -> bool:
        """Whether the server ever gave a complete turn in the same mode: streamed, plain or over a WebSocket."""
        fields = exchange.facts.fields if exchange.facts else as_object(parse_json(exchange.sent.body))
        stream = exchange.is_socket or fields.get("stream")
        return any(
            each.ok and each.api == exchange.api and each.streamed == stream and each.is_socket == exchange.is_socket
            for each in self.endpoint.exchanges
        )

    def expect_refusal_or_answer(self, rule: str, exchange: Exchange) -> None:
        """The rule holds if the request was answered, or refused with a well-formed error."""
        if 400 <= exchange.status < 500 and not _is_inconclusive(exchange):
            self.expect_refusal(rule, exchange, "The request")
        else:
            self.expect_answer(rule, exchange)

    def expect_refusal(self, rule: str, exchange: Exchange, what: str) -> None:
        """The rule holds if the request was refused with status 4xx; the error is checked too."""
        if exchange.status in BUSY:
            self.skip(rule, describe_failure(exchange))
            return
        detail = f"{what} was answered with {exchange.failure or f'status {exchange.status}'}."
        self.judge(rule, 400 <= exchange.status < 500, detail, exchange)
        if exchange.status >= 400 and not exchange.failure:
            self.check_error(exchange)

    def check_error(self, exchange: Exchange) -> None:
        """Check the form of an error."""
        fault = self.api.find_error_fault(exchange.fields)
        if "json" not in exchange.content_type.lower():
            fault = f"its content type is {exchange.content_type!r}"
        detail = f"An error with status {exchange.status} is not well formed: {fault}."
        self.judge("errors.form", not fault, detail, exchange)
        if not fault:
            missing = [key for key in self.api.error_fields if key not in as_object(exchange.fields.get("error"))]
            detail = f"An error with status {exchange.status} has no {', '.join(missing)}."
            self.judge("errors.fields", not missing, detail, exchange)


def _key(request: ProbeRequest) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(request, stream=True))


BUSY = (408, 429, 502, 503, 504, 529)
"""Statuses of an overloaded server or a missing upstream, which say nothing about the request."""


def has_broken_down(exchange: Exchange) -> bool:
    """Whether the server failed: status 500, or no answer for a reason other than a timeout."""
    return exchange.status == 500 or (not exchange.status and exchange.failure != LATE)


def _is_inconclusive(exchange: Exchange) -> bool:
    return exchange.status in BUSY or (exchange.status == 200 and not exchange.turn.finish)


def describe_failure(exchange: Exchange) -> str:
    """The reason why an answer holds no complete turn."""
    if exchange.failure:
        return exchange.failure
    if exchange.status != 200:
        return describe_status(exchange)
    return "a turn that failed" if exchange.turn.finish == "failed" else "a turn that did not end"


def read_turn(answer: Exchange) -> ObservedTurn:
    """The turn in an answer, without checking it."""
    is_stream = answer.status == 200 and answer.streamed
    return check_answer(answer.body, RequestFacts(answer.api), is_stream=is_stream)[1]
