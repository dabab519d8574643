"""The rules of behaviour, and the talk in which an endpoint is tried for them."""

import msgspec

from toolwire.check.apis import Api, Ask
from toolwire.check.endpoint import LATE, Endpoint
from toolwire.check.exchange import Exchange
from toolwire.check.turns.loose import Json, as_object, parsed
from toolwire.check.turns.rule import Asked, Finding, Rule
from toolwire.check.turns.streams import StreamCheck, check_plain
from toolwire.check.turns.turn import Turn
from toolwire.core.events import Dialect


def _must(id: str, says: str, source: str, harm: str) -> Rule:
    return Rule(id, "MUST", says, source, harm, on="talk")


def _should(id: str, says: str, source: str, harm: str) -> Rule:
    return Rule(id, "SHOULD", says, source, harm, on="talk")


_ALL = "OpenAI Chat Completions, OpenAI Responses, Anthropic Messages"
_AGENTS = "every agent"

RULES = (
    _must(
        "stream.same",
        "Streamed or not, the same request gives the same kind of turn.",
        _AGENTS,
        "Calls are there in one way of asking and not in the other.",
    ),
    _must(
        "stream.disconnect",
        "A client that leaves in the middle of a stream does not disturb the next request.",
        "servers with many users",
        "The server hangs, or answers one user with the turn of another.",
    ),
    _must(
        "stream.failure",
        "A turn that fails in its middle is told as failed.",
        _ALL,
        "Half an answer is taken for a whole one.",
    ),
    _must(
        "choice.none",
        "`tool_choice` none gives no call.",
        _ALL,
        "A tool runs that the client has forbidden.",
    ),
    _must(
        "choice.required",
        "`tool_choice` required (any) gives a call.",
        _ALL,
        "Structured output by tools, as many libraries do it, fails.",
    ),
    _must(
        "choice.named",
        "A tool that is named in `tool_choice` is called, and no other.",
        _ALL,
        "Structured output by tools, as many libraries do it, fails.",
    ),
    _must(
        "choice.parallel",
        "With parallel calls switched off there is one call at most.",
        _ALL,
        "Tools run side by side that must not.",
    ),
    _should(
        "choice.allowed",
        "`allowed_tools` allows no others.",
        "OpenAI Chat Completions, Open Responses",
        "A tool runs that the client has forbidden.",
    ),
    _must(
        "parallel.calls",
        "Two calls of one turn arrive as two calls, each whole.",
        _ALL,
        "One call is lost, or both become one.",
    ),
    _must(
        "arguments.empty",
        "A call without arguments has the arguments `{}`.",
        "every client: arguments are parsed before they are used",
        "The client raises on an empty text.",
    ),
    _must(
        "arguments.unicode",
        "Letters of every script and every quote and backslash arrive in arguments as they were asked for.",
        _AGENTS,
        "Files get other names, and patches do not apply.",
    ),
    _must(
        "arguments.huge",
        "Arguments of many kilobytes arrive whole.",
        "agents that write files",
        "Files are cut in the middle.",
    ),
    _must(
        "arguments.cut",
        "A call that was cut by the token limit is told as cut.",
        _AGENTS,
        "Half a call is run.",
    ),
    _must(
        "history.result",
        "A result is taken with the id of its call, and the turn goes on.",
        _ALL,
        "The loop of an agent ends after its first call.",
    ),
    _must(
        "history.results",
        "The results of several calls are taken together, in any order.",
        _ALL,
        "Agents with parallel calls fail in their second request.",
    ),
    _must(
        "history.error-result",
        "A result that says that the tool has failed is taken like any other.",
        _ALL,
        "The first error of a tool ends the agent.",
    ),
    _must(
        "history.orphan-call",
        "A call without a result in the history is answered, or refused with 4xx.",
        "agents whose user has interrupted them",
        "The conversation can never be continued.",
    ),
    _must(
        "history.orphan-result",
        "A result without a call in the history is answered, or refused with 4xx.",
        "agents that shorten their history",
        "The conversation can never be continued.",
    ),
    _must(
        "errors.status",
        "A request that cannot be understood is refused with 4xx.",
        _ALL,
        "Clients take the mistake for a turn, or ask again and again.",
    ),
    _must(
        "errors.form",
        "An error is JSON in the form of the API, with a message.",
        "the OpenAI and Anthropic SDKs",
        "The SDK cannot say what is wrong.",
    ),
    _should(
        "errors.fields",
        "An error also has `type`, `param` and `code`, which may be null.",
        "OpenAI Chat Completions, OpenAI Responses; typed clients",
        "Clients that tell errors apart by them cannot.",
    ),
    _should(
        "errors.model",
        "A model that is not there is refused with 4xx.",
        _ALL,
        "A typing error is answered by another model.",
    ),
    _should(
        "errors.choice",
        "A `tool_choice` that names a tool that is not declared is refused with 4xx.",
        _ALL,
        "The client waits for a call that never comes.",
    ),
    _should(
        "legacy.functions",
        "`functions` is answered with `function_call`, and with that finish reason.",
        "OpenAI Chat Completions; clients from before November 2023",
        "They see no call.",
    ),
    _should(
        "state.previous",
        "`previous_response_id` continues a response that was stored, with nothing but the results.",
        "OpenAI Responses",
        "Agents that rely on it forget everything.",
    ),
    _must(
        "state.unknown",
        "An unknown `previous_response_id` is refused with 4xx.",
        "Open Responses",
        "The conversation starts anew, and nobody says so.",
    ),
    _should(
        "state.submit",
        "Where a response has a `required_action`, `submit_tool_outputs` answers it.",
        "clients of the Assistants API's contract",
        "The action can never be answered.",
    ),
    _should(
        "models.listed",
        "`GET /models` lists the models.",
        "OpenAI API; clients that offer a choice",
        "The client offers nothing.",
    ),
)


class Verdict(msgspec.Struct):
    """What is known about one rule on one API."""

    rule: str
    api: Dialect
    seen: int = 0
    """How often it could have been broken."""
    broken: list[tuple[Finding, int]] = []
    """The findings, each with the number of its exchange."""
    unseen: list[str] = []
    """Why it could not be seen, where it was tried for."""


class Talk:
    """One API of an endpoint, in all its probes: it asks, and says what it has seen."""

    def __init__(self, endpoint: Endpoint, api: Api, verdicts: "Verdicts") -> None:
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
        if _says_nothing(exchange) or (400 <= exchange.status < 500 and not self._was_answered_like(exchange)):
            self.unseen(rule, why_not(exchange))
        else:
            self.judge(rule, exchange.ok, f"The answer is {why_not(exchange)}.", exchange)

    def _was_answered_like(self, exchange: Exchange) -> bool:
        """Whether a turn came in the same way, streamed or plain: not every server knows both."""
        stream = as_object(parsed(exchange.sent.body)).get("stream")
        return any(
            each.ok and each.api == exchange.api and each.streamed == stream for each in self._endpoint.exchanges
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
            self._check_error(exchange)

    def _check_error(self, exchange: Exchange) -> None:
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


class Verdicts:
    """All verdicts, by API and rule."""

    def __init__(self) -> None:
        self._table: dict[tuple[Dialect, str], Verdict] = {}

    def of(self, rule: str, api: Dialect) -> Verdict:
        return self._table.setdefault((api, rule), Verdict(rule, api))

    def see(self, rule: str, api: Dialect) -> None:
        self.of(rule, api).seen += 1

    def find(self, api: Dialect, finding: Finding, exchange: int) -> None:
        self.of(finding.rule, api).broken.append((finding, exchange))

    def miss(self, rule: str, api: Dialect, why: str) -> None:
        verdict = self.of(rule, api)
        if why not in verdict.unseen:
            verdict.unseen.append(why)

    def all(self) -> list[Verdict]:
        return [*self._table.values()]
