"""What an endpoint is asked, so that it can show what it does: each probe is one short conversation.

Prompts ask for the behaviour in words that a model understands, and quote what matters, which is what the built-in demo
model goes by. A model that does not do as it is asked breaks no rule: that is not observed.
"""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from toolwire.check.apis import Ask, Called, Result, Tool, User
from toolwire.check.exchange import Exchange
from toolwire.check.talks import Talk, why_not
from toolwire.check.turns.loose import Json, as_object, as_text, shown
from toolwire.check.turns.turn import Call

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

ONE = User('Call the tool get_weather for the city "Paris". Do nothing else.')
TWO = User('Call the tool get_weather for the city "Paris" and for the city "Rome", both at once in one turn.')
ODD = "naïve Zürich 東京 🌦 \\path 'q' <b>&amp;"
LONG = " ".join(f"line-{number}" for number in range(700))


@probe("one-call", "history.result", TURNS)
async def one_call(talk: Talk) -> None:
    """A call, streamed and plain, and its result."""
    for stream in (True, False):
        first = await talk.ask(Ask((ONE,), (WEATHER, TIME), stream=stream))
        if not talk.needs_turn("history.result", first):
            continue
        if not first.turn.calls:
            talk.unseen("history.result", "the model did not call the tool")
            continue
        results = [Result(call.id, "18 degrees, sunny") for call in first.turn.calls]
        await _goes_on(talk, "history.result", first, results, stream=stream)


async def _goes_on(
    talk: Talk, rule: str, first: Exchange, results: Sequence[Result], *, stream: bool, user: User = ONE
) -> None:
    entries = (user, Called(first.turn.calls), *results)
    next = await talk.ask(Ask(entries, (WEATHER, TIME), stream=stream))
    talk.judge(rule, next.ok, f"The request with the results was answered with {why_not(next)}.", next)


@probe("parallel", "parallel.calls", "history.results", TURNS)
async def parallel_calls(talk: Talk) -> None:
    """Two calls in one turn, and their results in the other order."""
    for stream in (True, False):
        first = await talk.ask(Ask((TWO,), (WEATHER, TIME), stream=stream))
        if not talk.needs_turn("parallel.calls", first):
            continue
        cities = sorted(str(as_object(call.value).get("city")) for call in first.turn.calls)
        if len(cities) < 2:
            talk.unseen("parallel.calls", "the model made one call only")
            talk.unseen("history.results", "the model made one call only")
            continue
        talk.judge("parallel.calls", cities == ["Paris", "Rome"], f"The calls are about {cities}.", first)
        results = [Result(call.id, "18 degrees, sunny") for call in reversed(first.turn.calls)]
        await _goes_on(talk, "history.results", first, results, stream=stream, user=TWO)


@probe("no-arguments", "arguments.empty", TURNS)
async def no_arguments(talk: Talk) -> None:
    """A tool without parameters."""
    ask = Ask((User('Call the tool "ping".'),), (PING,))
    for stream in (True, False):
        got = await talk.ask(msgspec.structs.replace(ask, stream=stream))
        if talk.needs_turn("arguments.empty", got):
            if not got.turn.calls:
                talk.unseen("arguments.empty", "the model did not call the tool")
            for call in got.turn.calls:
                says = f"A call without arguments has the arguments {call.arguments!r}."
                talk.judge("arguments.empty", isinstance(call.value, dict), says, got)


@probe("letters", "arguments.unicode")
async def odd_letters(talk: Talk) -> None:
    """Arguments in every script."""
    for stream in (True, False):
        await _carries(talk, "arguments.unicode", ODD, stream=stream)


@probe("huge", "arguments.huge", "stream.live")
async def huge_arguments(talk: Talk) -> None:
    """Arguments of several kilobytes."""
    for stream in (True, False):
        await _carries(talk, "arguments.huge", LONG, stream=stream)


async def _carries(talk: Talk, rule: str, text: str, *, stream: bool) -> None:
    prompt = User(f'Call the tool save_text with exactly this text, every letter of it: "{text}"')
    got = await talk.ask(Ask((prompt,), (SAVE,), named="save_text", stream=stream, most=16384))
    if not talk.needs_turn(rule, got):
        return
    arrived = [as_text(as_object(call.value).get("text")) for call in got.turn.calls]
    if arrived == [text]:
        talk.judge(rule, True, "", got)
    elif any("\ufffd" in each or each in _mangled(text) for each in arrived):
        talk.judge(rule, False, f"The text arrived as {shown(arrived[0])}.", got)
    else:
        talk.unseen(rule, "the model did not repeat the text")


def _mangled(text: str) -> set[str]:
    """What becomes of a text on the way through a wrong encoding, which no model does by itself."""
    told = text.encode()
    return {told.decode("latin-1"), *(text.encode("ascii", how).decode() for how in ("replace", "ignore"))} - {text}


@probe("cut", "arguments.cut", TURNS)
async def cut_call(talk: Talk) -> None:
    """A call that meets the token limit."""
    prompt = User(f'Call the tool save_text with exactly this text, every letter of it: "{LONG}"')
    for stream in (True, False):
        got = await talk.ask(Ask((prompt,), (SAVE,), stream=stream, most=40), "length")
        if not talk.needs_turn("arguments.cut", got):
            continue
        cut = [call for call in got.turn.calls if not isinstance(call.value, dict)]
        if not cut and got.turn.finish != "length":
            talk.unseen("arguments.cut", "the call was not cut")
            continue
        says = f"A turn that was cut in a call ends as if it was {got.turn.finish!r}."
        talk.judge("arguments.cut", got.turn.finish == "length", says, got)


@probe("choices", "choice.none", "choice.required", "choice.named")
async def choices(talk: Talk) -> None:
    """`tool_choice` in all its forms."""
    tools = (WEATHER, TIME)
    for stream in (True, False):
        none = await talk.ask(Ask((ONE,), tools, "none", stream=stream))
        if talk.needs_turn("choice.none", none):
            talk.judge("choice.none", not none.turn.calls, f"There are {len(none.turn.calls)} calls.", none)
        some = await talk.ask(Ask((User("Say hello."),), tools, "required", stream=stream))
        if talk.needs_turn("choice.required", some):
            talk.judge("choice.required", bool(some.turn.calls), "There is no call.", some)
        named = await talk.ask(Ask((ONE,), tools, named="get_time", stream=stream))
        if talk.needs_turn("choice.named", named):
            names = {call.name for call in named.turn.calls}
            talk.judge("choice.named", names == {"get_time"}, f"Called was {', '.join(names) or 'nothing'}.", named)


@probe("one-at-a-time", "choice.parallel")
async def one_at_a_time(talk: Talk) -> None:
    """Two things are asked for, and parallel calls are off."""
    for stream in (True, False):
        got = await talk.ask(Ask((TWO,), (WEATHER, TIME), parallel=False, stream=stream))
        if talk.needs_turn("choice.parallel", got):
            says = f"There are {len(got.turn.calls)} calls."
            if got.turn.calls:
                talk.judge("choice.parallel", len(got.turn.calls) == 1, says, got)
            else:
                talk.unseen("choice.parallel", "the model did not call the tool")


@probe("allowed", "choice.allowed")
async def allowed_tools(talk: Talk) -> None:
    """A choice that allows one of two tools, while the prompt asks for the other."""
    if talk.api.name == "messages":
        return
    chat = talk.api.name == "chat"
    tool: Json = {"type": "function", **({"function": {"name": "get_time"}} if chat else {"name": "get_time"})}
    inner: Json = {"mode": "auto", "tools": [tool]}
    choice: Json = {"type": "allowed_tools", **({"allowed_tools": inner} if chat else inner)}
    got = await talk.ask(Ask((ONE,), (WEATHER, TIME), more={"tool_choice": choice}))
    if talk.needs_turn("choice.allowed", got):
        others = [call.name for call in got.turn.calls if call.name != "get_time"]
        talk.judge("choice.allowed", not others, f"Called was {', '.join(others)}.", got)


@probe("same", "stream.same")
async def same_turn(talk: Talk) -> None:
    """The same forced call, streamed and plain."""
    ask = Ask((ONE,), (WEATHER, TIME), named="get_weather")
    turns = [await talk.ask(ask), await talk.ask(msgspec.structs.replace(ask, stream=False))]
    if all(talk.needs_turn("stream.same", got) for got in turns):
        seen = [(got.turn.finish, sorted({call.name for call in got.turn.calls})) for got in turns]
        talk.judge("stream.same", seen[0] == seen[1], f"Streamed it is {seen[0]}, plain {seen[1]}.", turns[1])


@probe("failed-tool", "history.error-result")
async def failed_tool(talk: Talk) -> None:
    """A result that says that the tool has failed."""
    calls = (Call("call_check_1", "get_weather", '{"city":"Paris"}'),)
    results = (Result("call_check_1", "Error: the weather service is down", failed=True),)
    got = await talk.ask(Ask((ONE, Called(calls), *results), (WEATHER, TIME)))
    talk.judge("history.error-result", got.ok, f"The answer is {why_not(got)}.", got)


@probe("orphans", "history.orphan-call", "history.orphan-result", "errors.form")
async def orphans(talk: Talk) -> None:
    """Histories that agents have after an interruption, or after they were shortened."""
    calls = (Call("call_check_2", "get_weather", '{"city":"Paris"}'),)
    open_call = await talk.ask(Ask((ONE, Called(calls), User("Never mind. Say hello.")), (WEATHER,)))
    talk.refused_or_answered("history.orphan-call", open_call)
    alone = await talk.ask(Ask((ONE, Result("call_check_3", "18 degrees"), User("Say hello.")), (WEATHER,)))
    talk.refused_or_answered("history.orphan-result", alone)


@probe("leaving", "stream.disconnect")
async def leaving(talk: Talk) -> None:
    """A client that leaves in the middle of a stream, and the next request."""
    left = await talk.ask(Ask((TWO,), (WEATHER, TIME)), "slow", leave_after=2)
    if left.status != 200:
        talk.unseen("stream.disconnect", why_not(left))
        return
    next = await talk.ask(Ask((ONE,), (WEATHER, TIME)))
    talk.judge("stream.disconnect", next.ok, f"The next request was answered with {why_not(next)}.", next)


@probe("bad-requests", "errors.status", "errors.form", "errors.model", "errors.choice")
async def bad_requests(talk: Talk) -> None:
    """Requests that cannot be understood."""
    field = "input" if talk.api.name == "responses" else "messages"
    sound = talk.api.body(Ask((ONE,), (WEATHER,), stream=False), talk.model)
    streamed = talk.api.body(Ask((ONE,), (WEATHER,), stream=True), talk.model)
    bodies: dict[str, bytes] = {
        "no JSON": b'{"model": ',
        f"no {field}": _json({**sound, field: None}),
        f"{field} that are a number": _json({**sound, field: 7}),
        f"{field} that are a number, streamed": _json({**streamed, field: 7}),
        "tools that are a text": _json({**sound, "tools": "get_weather"}),
        "a tool without a name": _json({**sound, "tools": [_nameless(talk)]}),
    }
    for name, body in bodies.items():
        got = await talk.post(body)
        says = f"A request with {name} was answered with {got.trouble or f'status {got.status}'}."
        talk.judge("errors.status", 400 <= got.status < 500, says, got)
        if 400 <= got.status < 600:
            talk.check_error(got)
    unknown = await talk.post(_json({**sound, "model": "toolwire-check-no-such-model"}))
    talk.judge("errors.model", 400 <= unknown.status < 500, f"The answer has status {unknown.status}.", unknown)
    choice = await talk.post(_json(talk.api.body(Ask((ONE,), (WEATHER,), named="no_such_tool"), talk.model)))
    talk.judge("errors.choice", 400 <= choice.status < 500, f"The answer has status {choice.status}.", choice)


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
        more: Json = {"functions": [inner], "function_call": {"name": WEATHER.name}}
        got = await talk.post(_json(talk.api.body(Ask((ONE,), stream=stream, more=more), talk.model)))
        if got.status != 200:
            talk.unseen("legacy.functions", why_not(got))
            continue
        told = b'"function_call":{' in got.body.replace(b" ", b"") and b'"tool_calls":[' not in got.body
        talk.judge("legacy.functions", told, "There is no `function_call`, or there are `tool_calls`.", got)


@probe("continued", "state.previous", "state.unknown", "state.submit")
async def continued(talk: Talk) -> None:
    """A response that is continued by its id."""
    if talk.api.name != "responses":
        return
    tools = (WEATHER, TIME)
    first = await talk.ask(Ask((ONE,), tools, named="get_weather", stream=False, more={"store": True}))
    if not talk.needs_turn("state.previous", first) or not first.turn.calls:
        talk.unseen("state.previous", "there is no call to continue with")
    else:
        results = tuple(Result(call.id, "18 degrees, sunny") for call in first.turn.calls)
        next = await talk.ask(Ask(results, tools, stream=False, more={"previous_response_id": first.turn.id}))
        if 400 <= next.status < 500:
            talk.unseen("state.previous", why_not(next))
        else:
            talk.judge("state.previous", next.ok, f"The answer is {why_not(next)}.", next)
        await _submit(talk, first, results)
    unknown = await talk.ask(Ask((ONE,), tools, stream=False, more={"previous_response_id": "resp_no_such_response"}))
    talk.judge("state.unknown", 400 <= unknown.status < 500, f"The answer has status {unknown.status}.", unknown)


async def _submit(talk: Talk, first: Exchange, results: Sequence[Result]) -> None:
    if not first.fields.get("required_action"):
        talk.unseen("state.submit", "the response has no `required_action`")
        return
    outputs = [{"tool_call_id": result.id, "output": result.text} for result in results]
    path = f"/responses/{first.turn.id}/submit_tool_outputs"
    got = await talk.post(msgspec.json.encode({"tool_outputs": outputs}), path)
    talk.judge("state.submit", got.status == 200, f"The answer is {why_not(got)}.", got)


@probe("broken-turn", TURNS)
async def broken_turn(talk: Talk) -> None:
    """A turn that fails in its middle, where the model can be asked for that."""
    await talk.ask(Ask((User("Say hello."),), (), stream=True), "error-middle")


@probe("words", TURNS)
async def plain_talk(talk: Talk) -> None:
    """An answer in words, with tools declared."""
    for stream in (True, False):
        await talk.ask(Ask((User("Say hello in three words, and call no tool."),), (WEATHER,), "none", stream=stream))


@probe("models", "models.listed")
async def model_list(talk: Talk) -> None:
    """The list of models."""
    got = await talk.get("/models")
    listed = isinstance(got.fields.get("data"), list)
    talk.judge("models.listed", got.status == 200 and listed, f"The answer is {why_not(got)}.", got)


ORDER = (
    "one-call",
    "parallel",
    "no-arguments",
    "choices",
    "one-at-a-time",
    "same",
    "words",
    "letters",
    "huge",
    "cut",
    "failed-tool",
    "orphans",
    "bad-requests",
    "allowed",
    "legacy",
    "continued",
    "broken-turn",
    "leaving",
    "models",
)
"""What matters most comes first, should the budget end."""
PROBES = [_known[name] for name in ORDER]
