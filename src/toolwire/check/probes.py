"""What an endpoint is asked, so that it can show what it does: each probe is one short conversation.

Prompts ask for the behaviour in words that a model understands, and quote what matters, which is what the built-in demo
model goes by. A model that does not do as it is asked breaks no rule: that is not observed.
"""

import html
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from toolwire.check.apis import Ask, Called, Result, Tool, User
from toolwire.check.endpoint import listed
from toolwire.check.exchange import Exchange
from toolwire.check.talks import BUSY, Talk, why_not
from toolwire.check.turns.loose import Json, as_object, as_text, shown
from toolwire.check.turns.rule import Asked
from toolwire.check.turns.streams import StreamCheck, check_plain
from toolwire.check.turns.turn import Call, Turn

TURNS = "*"
"""Stands for all rules that a turn by itself can break."""


class Probe(msgspec.Struct, frozen=True):
    """One short conversation, and the rules it can show."""

    name: str
    shows: tuple[str, ...]
    run: Callable[[Talk], Awaitable[None]]


_known: dict[str, Probe] = {}


def probe(name: str, *shows: str) -> Callable[[Callable[[Talk], Awaitable[None]]], Callable[[Talk], Awaitable[None]]]:
    def keep(run: Callable[[Talk], Awaitable[None]]) -> Callable[[Talk], Awaitable[None]]:
        _known[name] = Probe(name, shows, run)
        return run

    return keep


CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool("get_weather", "Get the weather in a city.", CITY)
TIME = Tool("get_time", "Get the local time in a city.", CITY)
PING = Tool("ping", "Check that the connection works. Takes no arguments.", {"type": "object", "properties": {}})
SAVE = Tool(
    "save_text",
    "Save a text, letter by letter.",
    {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)

BOTH = (WEATHER, TIME)
ONE = User('Call the tool get_weather for the city "Paris". Do nothing else.')
TWO = User('Call the tool get_weather for the city "Paris" and for the city "Rome", both at once in one turn.')
FAR = User('Call the tool get_weather for the city "Oslo". Do nothing else.')
HELLO = User("Say hello.")
SUNNY = "18 degrees, sunny"
ODD = "naïve Zürich 東京 🌦 \\path 'q' <b>&amp;"
LONG = " ".join(f"line-{number}" for number in range(700))
FEW = 40
"""Tokens in which no such text can be called for."""


@probe("one-call", "history.result", TURNS)
async def one_call(talk: Talk) -> None:
    """A call, streamed and plain, and its result."""
    for stream in (True, False):
        first = await talk.ask(Ask((ONE,), BOTH, stream=stream))
        if talk.needs_call("history.result", first):
            results = [Result(call.id, SUNNY) for call in first.turn.calls]
            await _goes_on(talk, "history.result", ONE, first, results, stream=stream)


async def _goes_on(
    talk: Talk, rule: str, user: User, first: Exchange, results: Sequence[Result], *, stream: bool
) -> None:
    next = await talk.ask(Ask((user, Called(first.turn.calls), *results), BOTH, stream=stream))
    if {(call.name, call.arguments) for call in first.turn.calls} & {
        (call.name, call.arguments) for call in next.turn.calls
    }:
        talk.unseen(rule, "the model made the same call again")
    else:
        talk.answered(rule, next)


@probe("parallel", "parallel.calls", "history.results", TURNS)
async def parallel_calls(talk: Talk) -> None:
    """Two calls in one turn, and their results in the other order."""
    for stream in (True, False):
        first = await talk.ask(Ask((TWO,), BOTH, stream=stream))
        if not talk.needs_call("parallel.calls", first):
            talk.unseen("history.results", "there were no two calls")
            continue
        calls = [(call.name, call.arguments) for call in first.turn.calls]
        told = "".join(arguments.lower() for _, arguments in calls)
        if not all(call.value for call in first.turn.calls):
            talk.judge("parallel.calls", False, f"The calls are {shown(calls)}.", first)
        elif len(calls) > 1 and "paris" in told and "rome" in told:
            talk.judge("parallel.calls", len(set(calls)) == len(calls), f"The calls are {shown(calls)}.", first)
            results = [Result(call.id, SUNNY) for call in reversed(first.turn.calls)]
            await _goes_on(talk, "history.results", TWO, first, results, stream=stream)
            continue
        else:
            talk.unseen("parallel.calls", "the model made one call only, or called for something else")
        talk.unseen("history.results", "there were no two calls")


@probe("no-arguments", "arguments.empty", TURNS)
async def no_arguments(talk: Talk) -> None:
    """A tool without parameters."""
    for stream in (True, False):
        got = await talk.ask(Ask((User('Call the tool "ping".'),), (PING,), stream=stream))
        if talk.needs_call("arguments.empty", got):
            told = [call.arguments for call in got.turn.calls if not isinstance(call.value, dict)]
            talk.judge("arguments.empty", not told, f"A call without arguments has {told!r} as its arguments.", got)


@probe("letters", "arguments.unicode")
async def odd_letters(talk: Talk) -> None:
    """Arguments in every script."""
    for stream in (True, False):
        await _carries(talk, "arguments.unicode", ODD, _is_mangled, stream=stream)


@probe("huge", "arguments.huge", "stream.live")
async def huge_arguments(talk: Talk) -> None:
    """Arguments of several kilobytes."""
    for stream in (True, False):
        await _carries(talk, "arguments.huge", LONG, _is_torn, stream=stream)


async def _carries(talk: Talk, rule: str, text: str, is_wrong: Callable[[Call], bool], *, stream: bool) -> None:
    got = await talk.ask(Ask((_save(text),), (SAVE,), named=SAVE.name, stream=stream, most=8192))
    if not talk.needs_call(rule, got):
        return
    if text in map(_saved, got.turn.calls):
        talk.judge(rule, True, "", got)
    elif got.turn.finish == "length":
        talk.unseen(rule, "the turn met its token limit")
    elif any(map(is_wrong, got.turn.calls)):
        arrived = shown(got.turn.calls[0].arguments)
        talk.judge(rule, False, f"{len(text)} letters arrived as {arrived}.", got)
    else:
        talk.unseen(rule, "the model did not repeat the text")


def _save(text: str) -> User:
    return User(f'Call the tool save_text with exactly this text, every letter of it: "{text}"')


def _saved(call: Call) -> str:
    return as_text(as_object(call.value).get("text"))


def _is_mangled(call: Call) -> bool:
    """Whether the text went through wrong hands: no model does this by itself."""
    escaped = msgspec.json.encode(ODD).decode()[1:-1]
    wrong = {
        ODD.encode().decode("latin-1"),
        ODD.encode().decode("cp1252", "replace"),
        *(ODD.encode("ascii", how).decode() for how in ("replace", "ignore", "backslashreplace")),
        *(html.escape(ODD, quote=quote) for quote in (True, False)),
        escaped,
    }
    return "\ufffd" in call.arguments or _saved(call) in wrong


def _is_torn(call: Call) -> bool:
    return not isinstance(call.value, dict) or is_torn(_saved(call), LONG)


def is_torn(arrived: str, text: str) -> bool:
    """Whether a stretch is missing from a text, or is there twice, that is not made of words. Models keep to words."""
    more = len(text) - len(arrived)
    head, tail = _same(arrived, text), _same(arrived[::-1], text[::-1])
    seams = range(len(arrived) - tail, head + 1)
    return bool(arrived and more and seams) and not any(
        _parts_words(text, seam) and _parts_words(text, seam + more) for seam in seams
    )


def _parts_words(text: str, place: int) -> bool:
    return " " in f" {text} "[place : place + 2]


def _same(one: str, other: str) -> int:
    """How many letters two texts have in common at their beginning."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@probe("cut", "arguments.cut", TURNS)
async def cut_call(talk: Talk) -> None:
    """A call that meets the token limit."""
    for stream in (True, False):
        got = await talk.ask(Ask((_save(LONG),), (SAVE,), stream=stream, most=FEW), "length")
        if not talk.needs_turn("arguments.cut", got):
            continue
        told = got.turn.finish == "length"
        # A server may leave half a call out. Whether there was one is only known of the scripted model.
        if any(_is_cut(call, got.turn) for call in got.turn.calls) or (told and (got.turn.calls or talk.is_demo)):
            talk.judge("arguments.cut", told, f"A turn that was cut in a call ends as {got.turn.finish!r}.", got)
        else:
            talk.unseen("arguments.cut", "no call was cut")


def _is_cut(call: Call, turn: Turn) -> bool:
    """Half a call, or one that was made whole afterwards."""
    at_the_limit = turn.usage is not None and abs(turn.usage.output - FEW) <= 2
    return _is_torn(call) or (LONG.startswith(_saved(call)) and at_the_limit)


@probe("choice-none", "choice.none")
async def choice_none(talk: Talk) -> None:
    """No call is allowed where the model would make one."""
    for stream in (True, False):
        got = await talk.ask(Ask((ONE,), BOTH, "none", stream=stream))
        if not talk.needs_turn("choice.none", got):
            continue
        if got.turn.calls or await talk.calls_made(Ask((ONE,), BOTH)):
            talk.judge("choice.none", not got.turn.calls, f"There are {len(got.turn.calls)} calls.", got)
        else:
            talk.unseen("choice.none", "the model makes no call anyway")


@probe("choice-required", "choice.required")
async def choice_required(talk: Talk) -> None:
    """A call is demanded where the model would make none."""
    for stream in (True, False):
        got = await talk.ask(Ask((HELLO,), BOTH, "required", stream=stream))
        if _was_free("choice.required", talk, got):
            talk.judge("choice.required", bool(got.turn.calls), "There is no call.", got)


@probe("choice-named", "choice.named")
async def choice_named(talk: Talk) -> None:
    """A call is demanded other than the one that the model would make."""
    for stream in (True, False):
        got = await talk.ask(Ask((ONE,), BOTH, named="get_time", stream=stream))
        if _was_free("choice.named", talk, got):
            names = sorted({call.name for call in got.turn.calls})
            talk.judge("choice.named", names == ["get_time"], f"Called was {', '.join(names) or 'nothing'}.", got)


def _was_free(rule: str, talk: Talk, got: Exchange) -> bool:
    """Whether the model could make its call: it may have met its token limit before, or have refused."""
    if not talk.needs_turn(rule, got):
        return False
    if not got.turn.calls and got.turn.finish in ("length", "filter"):
        talk.unseen(rule, f"the turn ended before its call: {got.turn.finish}")
        return False
    return True


@probe("one-at-a-time", "choice.parallel")
async def one_at_a_time(talk: Talk) -> None:
    """Two things are asked for, and parallel calls are off."""
    for stream in (True, False):
        got = await talk.ask(Ask((TWO,), BOTH, parallel=False, stream=stream))
        if not talk.needs_call("choice.parallel", got):
            continue
        calls = len(got.turn.calls)
        if calls > 1 or await talk.calls_made(Ask((TWO,), BOTH)) > 1:
            talk.judge("choice.parallel", calls == 1, f"There are {calls} calls.", got)
        else:
            talk.unseen("choice.parallel", "the model makes one call anyway")


@probe("allowed", "choice.allowed")
async def allowed_tools(talk: Talk) -> None:
    """A choice that allows one of two tools, while the prompt asks for the other."""
    if talk.api.name == "messages":
        return
    chat = talk.api.name == "chat"
    tool: Json = {"type": "function", **({"function": {"name": "get_time"}} if chat else {"name": "get_time"})}
    inner: Json = {"mode": "auto", "tools": [tool]}
    choice: Json = {"type": "allowed_tools", **({"allowed_tools": inner} if chat else inner)}
    for stream in (True, False):
        got = await talk.ask(Ask((ONE,), BOTH, stream=stream, more={"tool_choice": choice}))
        if not talk.needs_turn("choice.allowed", got):
            continue
        others = [call.name for call in got.turn.calls if call.name != "get_time"]
        if got.turn.calls or await talk.calls_made(Ask((ONE,), BOTH)):
            talk.judge("choice.allowed", not others, f"Called was {', '.join(others)}.", got)
        else:
            talk.unseen("choice.allowed", "the model makes no call anyway")


@probe("same", "stream.same")
async def same_turn(talk: Talk) -> None:
    """The same forced call, streamed and plain."""
    ask = Ask((ONE,), BOTH, named="get_weather")
    turns = [await talk.ask(ask), await talk.ask(msgspec.structs.replace(ask, stream=False))]
    if all(_was_free("stream.same", talk, got) for got in turns):
        seen = [(got.turn.finish, sorted({call.name for call in got.turn.calls})) for got in turns]
        talk.judge("stream.same", seen[0] == seen[1], f"Streamed it is {seen[0]}, plain {seen[1]}.", turns[1])


@probe("failed-tool", "history.error-result")
async def failed_tool(talk: Talk) -> None:
    """A result that says that the tool has failed. Mistral takes ids of nine letters only."""
    calls = (Call("callcheck", "get_weather", '{"city":"Paris"}'),)
    results = (Result("callcheck", "Error: the weather service is down", failed=True),)
    talk.answered("history.error-result", await talk.ask(Ask((ONE, Called(calls), *results), BOTH)))


@probe("orphans", "history.orphan-call", "history.orphan-result", "errors.form")
async def orphans(talk: Talk) -> None:
    """Histories that agents have after an interruption, or after they were shortened."""
    calls = (Call("callchec2", "get_weather", '{"city":"Paris"}'),)
    open_call = await talk.ask(Ask((ONE, Called(calls), User("Never mind. Say hello.")), (WEATHER,)))
    talk.refused_or_answered("history.orphan-call", open_call)
    alone = await talk.ask(Ask((ONE, Result("callchec3", SUNNY), HELLO), (WEATHER,)))
    talk.refused_or_answered("history.orphan-result", alone)


@probe("leaving", "stream.disconnect")
async def leaving(talk: Talk) -> None:
    """A client that leaves in the middle of a stream, and the next request."""
    left = await talk.ask(Ask((FAR,), BOTH), "slow", leave_after=2)
    if not left.left:
        talk.unseen("stream.disconnect", why_not(left) if not left.ok else "the stream was too short to leave it")
        return
    next = await talk.ask(Ask((ONE,), BOTH, stream=False))
    if "Oslo" in f"{next.turn.text}{next.turn.calls}":
        talk.judge("stream.disconnect", False, "The next answer is that of the request that was left.", next)
    else:
        talk.answered("stream.disconnect", next)


@probe("bad-requests", "errors.status", "errors.form")
async def bad_requests(talk: Talk) -> None:
    """Requests that cannot be understood."""
    field = "input" if talk.api.name == "responses" else "messages"
    sound = talk.body(Ask((ONE,), (WEATHER,), stream=False))
    bodies: dict[str, bytes] = {
        "no JSON": b'{"model": ',
        f"no {field}": _json({**sound, field: None}),
        f"{field} that are a number": _json({**sound, field: 7}),
        f"{field} that are a number, streamed": _json({**sound, "stream": True, field: 7}),
        "tools that are a text": _json({**sound, "tools": "get_weather"}),
        "a tool without a name": _json({**sound, "tools": [_nameless(talk)]}),
    }
    for name, body in bodies.items():
        talk.refused("errors.status", await talk.post(body), f"A request with {name}")


@probe("unknown-model", "errors.model", "errors.form")
async def unknown_model(talk: Talk) -> None:
    """A model that is not there."""
    body = talk.body(Ask((ONE,), (WEATHER,), stream=False), "toolwire-check-no-such-model")
    talk.refused("errors.model", await talk.post(_json(body)), "The request")


@probe("unknown-choice", "errors.choice", "errors.form")
async def unknown_choice(talk: Talk) -> None:
    """A choice of a tool that is not there."""
    body = talk.body(Ask((ONE,), (WEATHER,), named="no_such_tool"))
    talk.refused("errors.choice", await talk.post(_json(body)), "The request")


def _nameless(talk: Talk) -> Json:
    match talk.api.name:
        case "chat":
            return {"type": "function", "function": {"parameters": CITY}}
        case "responses":
            return {"type": "function", "parameters": CITY}
        case _:
            return {"input_schema": CITY}


def _json(value: Json) -> bytes:
    return msgspec.json.encode({name: each for name, each in value.items() if each is not None})


@probe("legacy", "legacy.functions")
async def legacy_functions(talk: Talk) -> None:
    """The contract from before tools."""
    if talk.api.name != "chat":
        return
    inner = {"name": WEATHER.name, "description": WEATHER.description, "parameters": WEATHER.parameters}
    for stream in (True, False):
        more: Json = {"functions": [inner], "function_call": "auto"}
        got = await talk.post(_json(talk.body(Ask((ONE,), stream=stream, more=more))))
        turn = _turn_in(got)
        if got.status != 200 or got.trouble or not turn.calls:
            talk.unseen("legacy.functions", "the model called nothing" if turn.is_over else why_not(got))
            continue
        said = got.body.replace(b" ", b"")
        told = b'"finish_reason":"function_call"' in said and b'"tool_calls":[' not in said
        talk.judge("legacy.functions", told, "The call or its finish reason are those of `tools`.", got)


def _turn_in(got: Exchange) -> Turn:
    """The turn in an answer that no rule is asked about."""
    if got.status != 200 or not got.streamed:
        return check_plain(got.body, Asked(got.api))[1]
    stream = StreamCheck(Asked(got.api))
    stream.feed(got.body)
    stream.end()
    return stream.turn


@probe("continued", "state.previous", "state.submit")
async def continued(talk: Talk) -> None:
    """A response that is continued by its id."""
    if talk.api.name != "responses":
        return
    first = await talk.ask(Ask((ONE,), BOTH, named="get_weather", stream=False, more={"store": True}))
    if not talk.needs_call("state.previous", first):
        talk.unseen("state.submit", "there is no call to answer")
        return
    results = tuple(Result(call.id, SUNNY) for call in first.turn.calls)
    for stream in (True, False):
        next = await talk.ask(Ask(results, BOTH, stream=stream, more={"previous_response_id": first.turn.id}))
        if 400 <= next.status < 500:
            talk.unseen("state.previous", why_not(next))
        elif next.ok and _previous(next) != first.turn.id:
            talk.judge("state.previous", False, "The response does not say that it continues another.", next)
        else:
            talk.answered("state.previous", next)
    await _submit(talk, first, results)


def _previous(got: Exchange) -> str:
    """What a response says that it continues."""
    told = [as_object(each.fields.get("response")) for each in got.heard if "response" in each.fields] or [got.fields]
    return as_text(told[-1].get("previous_response_id"))


async def _submit(talk: Talk, first: Exchange, results: Sequence[Result]) -> None:
    if not first.fields.get("required_action"):
        talk.unseen("state.submit", "the response has no `required_action`")
        return
    outputs = [{"tool_call_id": result.id, "output": result.text} for result in results]
    path = f"/responses/{first.turn.id}/submit_tool_outputs"
    got = await talk.post(msgspec.json.encode({"tool_outputs": outputs}), path)
    if got.status in BUSY:
        talk.unseen("state.submit", why_not(got))
    else:
        talk.judge("state.submit", _turn_in(got).is_over, f"The answer is {why_not(got)}.", got)


@probe("unknown-response", "state.unknown", "errors.form")
async def unknown_response(talk: Talk) -> None:
    """A response that continues nothing."""
    if talk.api.name != "responses":
        return
    ask = Ask((ONE,), BOTH, stream=False, more={"previous_response_id": "resp_no_such_response"})
    talk.refused("state.unknown", await talk.ask(ask), "The request")


@probe("broken-turn", TURNS)
async def broken_turn(talk: Talk) -> None:
    """A turn that fails in its middle, where the model can be asked for that."""
    if talk.is_demo:
        await talk.ask(Ask((HELLO,), (), stream=True), "error-middle")


@probe("words", TURNS)
async def plain_talk(talk: Talk) -> None:
    """An answer in words, with tools declared."""
    for stream in (True, False):
        await talk.ask(Ask((User("Say hello in three words, and call no tool."),), (WEATHER,), "none", stream=stream))


@probe("models", "models.listed")
async def model_list(talk: Talk) -> None:
    """The list of models."""
    got = await talk.get("/models")
    if got.status in BUSY:
        talk.unseen("models.listed", why_not(got))
    else:
        says = f"The answer is {'a list without models' if got.status == 200 else why_not(got)}."
        talk.judge("models.listed", got.status == 200 and any(listed(got.fields)), says, got)


ORDER = (
    "one-call",
    "parallel",
    "no-arguments",
    "choice-none",
    "choice-required",
    "choice-named",
    "one-at-a-time",
    "same",
    "words",
    "letters",
    "huge",
    "cut",
    "failed-tool",
    "orphans",
    "bad-requests",
    "unknown-model",
    "unknown-choice",
    "allowed",
    "legacy",
    "continued",
    "unknown-response",
    "broken-turn",
    "leaving",
    "models",
)
"""What matters most comes first, should the budget end."""
PROBES = [_known[name] for name in ORDER]
